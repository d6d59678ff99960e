// plan.json. Keys and their order are docs/plan.schema.json's.

#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <ostream>

#include "base/format.h"
#include "report/report.h"
#include "search/joint.h"
#include "search/sharing.h"
#include "search/stage_cut.h"

namespace shardfit::report {
namespace {

using search::Gpu;
using search::Option;

class JsonWriter {
 public:
  JsonWriter() : json_(buffer_) { json_.SetIndent(' ', 2); }

  template <class Body>
  void object(Body body) {
    json_.StartObject();
    body();
    json_.EndObject();
  }
  template <class List, class Each>
  void array(const List& list, Each each) {
    json_.StartArray();
    for (const auto& item : list) each(item);
    json_.EndArray();
  }
  void key(const char* name) { json_.Key(name); }
  void text(const std::string& value) {
    json_.String(value.c_str(), static_cast<rapidjson::SizeType>(value.size()));
  }
  void text(const char* name, const std::string& value) {
    key(name);
    text(value);
  }
  void number(std::int64_t value) { json_.Int64(value); }
  void number(const char* name, std::int64_t value) {
    key(name);
    number(value);
  }
  void digits(const char* name, const std::string& value) {
    key(name);
    json_.RawValue(value.c_str(), value.size(), rapidjson::kNumberType);
  }
  void real(const char* name, double value) { digits(name, format_exact(value)); }
  void range(const char* name, const search::Money& range) {
    key(name);
    json_.SetFormatOptions(rapidjson::kFormatSingleLineArray);
    json_.StartArray();
    for (const double value : {range.low, range.high}) {
      const std::string text = format_exact(value);
      json_.RawValue(text.c_str(), text.size(), rapidjson::kNumberType);
    }
    json_.EndArray();
    json_.SetFormatOptions(rapidjson::kFormatDefault);
  }
  void null() { json_.Null(); }
  void boolean(bool value) { json_.Bool(value); }
  void none(const char* name) {
    key(name);
    null();
  }
  void pair(const char* name, std::int64_t low, std::int64_t high) {
    key(name);
    json_.SetFormatOptions(rapidjson::kFormatSingleLineArray);
    json_.StartArray();
    number(low);
    number(high);
    json_.EndArray();
    json_.SetFormatOptions(rapidjson::kFormatDefault);
  }
  std::string result() const { return buffer_.GetString(); }

 private:
  rapidjson::StringBuffer buffer_;
  rapidjson::PrettyWriter<rapidjson::StringBuffer> json_;
};

void write_words(JsonWriter& json, const std::vector<JobWord>& words) {
  json.object([&] {
    for (const JobWord& word : words) {
      if (word.number) {
        json.digits(word.key.c_str(), word.value);
      } else {
        json.text(word.key.c_str(), word.value);
      }
    }
  });
}

void write_assumptions(JsonWriter& json, const Option& option) {
  json.array(option.assumptions, [&](const search::AssumptionEffect& effect) {
    json.object([&] {
      json.text("key", effect.assumption.key);
      json.text("value", effect.assumption.value);
      json.text("because", effect.assumption.because);
      json.pair("effect_bytes", effect.low, effect.high);
    });
  });
}

void write_categories(JsonWriter& json, const char* name, const run::ByCategory& bytes) {
  json.key(name);
  json.object([&] {
    for (int c = 0; c < category_count; ++c) {
      json.number(category_name(static_cast<Category>(c)), bytes[static_cast<std::size_t>(c)]);
    }
  });
}

void write_phase(JsonWriter& json, const search::Phase& phase) {
  json.object([&] {
    json.text("name", phase.name);
    json.number("allocated_bytes", phase.allocated);
    json.number("reserved_bytes", phase.reserved);
    if (phase.instruction < 0) {
      json.none("cause");
      return;
    }
    json.key("cause");
    json.object([&] {
      json.text("operator", phase.cause.kind);
      json.text("layer", phase.cause.layer);
      json.text("category", category_name(phase.cause.category));
    });
  });
}

void write_gpu(JsonWriter& json, const Gpu& gpu) {
  const search::Judgement& judged = gpu.judgement;
  json.object([&] {
    json.number("index", gpu.index);
    json.number("rank", gpu.rank);
    json.text("role", gpu.role);
    json.number("usable_bytes", gpu.card.usable);
    json.number("context_bytes", gpu.card.context.bytes());
    json.pair("context_interval_bytes", gpu.card.context.low, gpu.card.context.high);
    json.number("exchange_bytes", gpu.card.exchange.bytes());
    json.pair("exchange_interval_bytes", gpu.card.exchange.low, gpu.card.exchange.high);
    json.number("stray_bytes", gpu.card.stray.bytes());
    json.pair("stray_interval_bytes", gpu.card.stray.low, gpu.card.stray.high);
    json.number("budget_bytes", judged.budget);
    json.number("requested_bytes", gpu.peak.requested);
    json.number("allocated_bytes", gpu.peak.allocated);
    json.number("reserved_bytes", judged.unlimited.reserved_peak);
    json.number("device_bytes", gpu.device_bytes());
    json.pair("interval_bytes", judged.low, judged.high);
    json.number("needed_bytes", judged.needed);
    json.number("headroom_bytes", judged.headroom());
    write_categories(json, "categories", gpu.peak.allocated_by);
    write_categories(json, "requested_categories", gpu.peak.requested_by);
    json.text("worst_phase", gpu.phases[gpu.worst].name);
    json.key("phases");
    json.array(gpu.phases, [&](const search::Phase& phase) { write_phase(json, phase); });
    if (judged.limited.failure) {
      const auto& failure = *judged.limited.failure;
      json.key("out_of_memory");
      json.object([&] {
        json.number("step", failure.step);
        json.text("phase", failure.phase);
        json.number("requested_bytes", failure.error.requested);
        json.number("tried_bytes", failure.error.tried);
        json.number("short_bytes", -judged.headroom());
        json.text("message", failure.error.text());
      });
    } else {
      json.none("out_of_memory");
    }
  });
}

void write_degrees(JsonWriter& json, spec::Parallel parallel, const spec::Split& split) {
  json.key("degrees");
  json.object([&] {
    for (const auto& [name, degree] : degrees_of(parallel, split)) json.number(name, degree);
  });
}

void write_timing(JsonWriter& json, const std::optional<search::Timing>& timing) {
  if (!timing) {
    for (const char* key : {"step_seconds", "step_interval_seconds", "exchange"}) json.none(key);
    return;
  }
  json.real("step_seconds", timing->step_seconds);
  json.range("step_interval_seconds", {timing->low_seconds, timing->high_seconds});
  json.key("exchange");
  json.object([&] {
    json.number("bytes", timing->exchange_bytes);
    json.real("seconds", timing->exchange_seconds);
    json.real("exposed_seconds", timing->exposed_seconds);
  });
}

void write_work(JsonWriter& json, const search::Rent::Work& work) {
  json.range("cost", work.cost);
  json.real("hours", work.hours);
  json.real("steps", work.steps);
  json.real("samples", work.samples);
  if (work.epochs) {
    json.real("epochs", *work.epochs);
  } else {
    json.none("epochs");
  }
}

void write_rent(JsonWriter& json, const search::Rent& rent) {
  json.key("rent");
  json.object([&] {
    json.text("currency", rent.currency);
    json.text("prices_of", rent.date);
    json.range("hour", rent.hour);
    if (rent.step) json.range("step", *rent.step);
    if (rent.epoch) {
      json.key("epoch");
      json.object([&] { write_work(json, *rent.epoch); });
    }
    json.key("windows");
    json.array(rent.windows, [&](const search::Rent::Window& window) {
      json.object([&] {
        json.number("days", window.days);
        write_work(json, window.work);
      });
    });
  });
}

void write_alternative(JsonWriter& json, const search::Alternative& other) {
  json.object([&] {
    json.text("parallel", search::name_of(other.parallel));
    write_degrees(json, other.parallel, other.split);
    if (other.applies) {
      json.text("verdict", verdict_text(other.verdict));
      json.number("needed_bytes", other.needed);
      json.number("headroom_bytes", other.headroom);
      json.number("global_batch", other.global_batch);
      write_timing(json, other.timing);
      if (other.timing) {
        json.real("samples_per_second", other.samples_per_second);
      } else {
        json.none("samples_per_second");
      }
    } else {
      json.none("verdict");
    }
    json.text("because", other.because);
  });
}

void write_imbalance(JsonWriter& json, const search::Imbalance& one) {
  json.object([&] {
    json.text("kind", kind_name(one.kind));
    json.number("gpu", static_cast<std::int64_t>(one.gpu));
    json.number("against", static_cast<std::int64_t>(one.against));
    json.real("ratio", one.ratio);
    json.text("what", one.what);
    json.text("cause", one.cause);
    json.number("cost_bytes", one.cost_bytes);
    json.real("cost_seconds", one.cost_seconds);
    if (!one.fix) return json.none("fix");
    json.key("fix");
    json.object([&] {
      json.text("words", one.fix->words);
      json.text("verdict", verdict_text(one.fix->verdict));
      json.number("needed_bytes", one.fix->needed);
      json.number("held_bytes", one.fix->held);
      if (one.fix->step_seconds) {
        json.real("step_seconds", *one.fix->step_seconds);
      } else {
        json.none("step_seconds");
      }
    });
  });
}

void write_found(JsonWriter& json, const search::Found& found) {
  const search::Configuration& c = found.configuration;
  json.text("parallel", search::name_of(c.parallel));
  json.number("micro_batch", c.micro_batch);
  json.number("accumulation", c.accumulation);
  json.text("recompute", c.recompute_words());
  if (!c.stage_layers.empty()) json.text("stage_layers", search::cut_words(c.stage_layers));
  json.text("verdict", verdict_text(found.verdict));
  json.number("needed_bytes", found.needed);
  json.number("headroom_bytes", found.headroom);
  if (found.step_seconds) {
    json.real("step_seconds", *found.step_seconds);
    json.real("samples_per_second", found.samples_per_second);
  } else {
    json.none("step_seconds");
    json.none("samples_per_second");
  }
}

void write_best(JsonWriter& json, const search::Best& best) {
  json.object([&] {
    json.text("objective", spec::objective_names()[static_cast<std::size_t>(best.objective)]);
    if (best.found) {
      json.real("value", best.value);
    } else {
      json.none("value");
    }
    json.real("lower_bound", best.bound);
    json.real("gap", best.gap());
    json.key("proven");
    json.boolean(best.proven);
    json.key("configuration");
    if (best.found) {
      json.object([&] { write_found(json, *best.found); });
    } else {
      json.null();
    }
  });
}

void write_search(JsonWriter& json, const search::SearchResult& result) {
  json.key("search");
  json.object([&] {
    json.text("objective", spec::objective_names()[static_cast<std::size_t>(result.objective)]);
    json.number("configurations", result.configurations);
    json.number("run", result.run);
    json.number("too_large", result.too_large);
    json.number("not_better", result.not_better);
    json.number("left", result.left);
    json.text("stopped", result.stopped.empty() ? "end" : result.stopped);
    json.key("not_tried");
    json.array(result.not_tried, [&](const std::string& words) { json.text(words); });
    json.key("best");
    json.array(result.best, [&](const search::Best& best) { write_best(json, best); });
    json.key("shadow_price");
    if (!result.shadow) {
      json.null();
      return;
    }
    json.object([&] {
      json.real("seconds_per_gib", result.shadow->seconds_per_gib());
      json.real("saved_seconds", result.shadow->saved_seconds);
      json.real("more_samples_per_second", result.shadow->more_samples_per_second);
      json.number("short_bytes", result.shadow->short_bytes);
      json.key("configuration");
      json.object([&] { write_found(json, result.shadow->next); });
    });
  });
}

void write_option(JsonWriter& json, const Option& option) {
  const spec::ClusterSpec& cluster = option.spec->cluster;
  json.object([&] {
    json.text("name", option.spec->name);
    json.text("device", cluster.device.name);
    json.number("count", cluster.count);
    json.text("parallel", search::name_of(option.parallel));
    write_degrees(json, option.parallel, option.split);
    json.text("shares", option.shares);
    json.key("job");
    write_words(json, job_words(option));
    json.text("verdict", verdict_text(option));
    json.text("reason", option.reason);
    json.key("gpus");
    json.array(option.gpus, [&](const Gpu& gpu) { write_gpu(json, gpu); });
    write_timing(json, option.timing);
    if (option.timing) {
      json.real("samples_per_second", option.samples_per_second());
    } else {
      json.none("samples_per_second");
    }
    if (option.rent) write_rent(json, *option.rent);
    if (option.search) write_search(json, *option.search);
    json.key("alternatives");
    json.array(option.others,
               [&](const search::Alternative& other) { write_alternative(json, other); });
    json.key("changes");
    json.array(option.changes, [&](const search::Change& change) {
      json.object([&] {
        json.text("words", change.words);
        json.text("verdict", verdict_text(change.verdict));
        json.number("needed_bytes", change.needed);
        json.number("headroom_bytes", change.headroom);
        if (change.step_seconds) {
          json.real("step_seconds", *change.step_seconds);
        } else {
          json.none("step_seconds");
        }
      });
    });
    json.key("imbalances");
    json.array(option.imbalances,
               [&](const search::Imbalance& one) { write_imbalance(json, one); });
    json.key("assumptions");
    write_assumptions(json, option);
    json.key("warnings");
    json.array(option.warnings, [&](const std::string& warning) { json.text(warning); });
  });
}

}  // namespace

void write_json(const Report& report, std::span<const std::string> terms, std::ostream& out) {
  JsonWriter json;
  const std::vector<Option>& options = report.plan.options;
  json.object([&] {
    json.text("version", "1");
    json.key("job");
    write_words(json, job_words(options.front()));
    json.number("parameters", report.plan.parameters);
    json.key("assumptions");
    write_assumptions(json, options.front());
    json.key("options");
    json.array(options, [&](const Option& option) { write_option(json, option); });
    json.key("differences");
    json.array(report.plan.differences, [&](const std::string& text) { json.text(text); });
    if (!report.plan.unfinished.empty()) {
      json.key("not_decided");
      json.array(report.plan.unfinished, [&](const std::string& name) { json.text(name); });
    }
    if (!report.plan.answer.empty()) json.text("answer", report.plan.answer);
    json.key("recommendation");
    json.object([&] {
      if (report.plan.recommended) {
        json.text("option", options[*report.plan.recommended].spec->name);
      } else {
        json.none("option");
      }
      json.text("because", report.plan.because);
    });
    if (!terms.empty()) {
      json.key("explanations");
      json.array(terms, [&](const std::string& term) {
        json.object([&] {
          json.text("term", term);
          json.text("text", explain(report, term));
        });
      });
    }
  });
  out << json.result() << "\n";
}

}  // namespace shardfit::report
