// The plan as a table for people.

#include <algorithm>
#include <cmath>
#include <ostream>

#include "base/format.h"
#include "report/report.h"
#include "search/batch.h"
#include "search/joint.h"
#include "search/sharing.h"

namespace shardfit::report {
namespace {

using search::Gpu;
using search::Option;
using search::Verdict;

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }

/// The end of a path that is too long for its column.
std::string shortened(const std::string& text, std::size_t columns) {
  return text.size() <= columns ? text : ".." + text.substr(text.size() - columns + 2);
}

class TableWriter {
 public:
  TableWriter(const Report& report, const TableStyle& style, std::ostream& out)
      : report_(report), style_(style), out_(out) {}

  void write() {
    const search::Plan& plan = report_.plan;
    const bool several = plan.options.size() > 1;
    const std::size_t chosen = plan.recommended.value_or(0);
    head();
    if (!plan.answer.empty()) out_ << "\n" << wrapped(plan.answer, 2);
    const bool open = !plan.unfinished.empty();
    if (several || open) recommendation();
    if (several || plan.options.front().rent) write_comparison(report_, out_);
    for (std::size_t i = 0; i < plan.options.size(); ++i) {
      out_ << "\n";
      verdict(plan.options[i]);
      if (!style_.brief && i == chosen) details(plan.options[i]);
    }
    if (!style_.brief) assumptions(plan.options.front());
    if (!several && !open && !plan.recommended) recommendation();
  }

 private:
  void recommendation() {
    const auto chosen = report_.plan.recommended;
    const std::string name =
        chosen ? report_.plan.options[*chosen].spec->name + ": " : std::string();
    out_ << "\n" << wrapped("recommended: " + name + report_.plan.because, 2);
  }

  /// The models, and the words of the job that all options share; then those that differ.
  void head() {
    const std::vector<Option>& options = report_.plan.options;
    std::vector<std::string> models;
    for (const Option& option : options) {
      const std::string line = option.spec->job.model.value + ": " +
                               format_count(option.parameters) + " parameters" + trainable(option);
      if (std::find(models.begin(), models.end(), line) != models.end()) continue;
      models.push_back(line);
      out_ << wrapped(line, 2);
    }
    std::string job, differ;
    for (const JobWord& word : job_words(options.front())) {
      if (word.key == "model" || word.key == "framework_version") continue;
      if (word.key == "sequence" && !search::reads_sequence(options.front())) continue;
      const bool batch =
          word.key == "micro_batch" || word.key == "accumulation" || word.key == "global_batch";
      if (batch && options.size() > 1) continue;  // the comparison has them
      const search::RankJob& first = options.front().job;
      if (word.key == "global_batch" && first.batch.global == first.batch.micro) continue;
      const std::vector<std::string> values = values_of(word.key);
      std::string& line = values.size() > 1 ? differ : job;
      if (!line.empty()) line += ", ";
      std::string key = word.key;
      std::replace(key.begin(), key.end(), '_', '-');
      const bool plain = word.key == "task" || word.key == "framework" || word.key == "precision" ||
                         word.key == "optimizer";
      line += plain && values.size() == 1 ? word.value : key + " " + join(values, " / ");
    }
    out_ << wrapped(job, 2);
    if (!differ.empty()) out_ << wrapped("options differ in: " + differ, 2);
  }

  /// What the options have for a key of the job, each value once.
  std::vector<std::string> values_of(const std::string& key) const {
    std::vector<std::string> values;
    for (const Option& option : report_.plan.options) {
      std::string value = "none";
      for (const JobWord& word : job_words(option)) {
        if (word.key == key) value = word.value;
      }
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    }
    return values;
  }

  static std::string trainable(const Option& option) {
    const Program& program = option.program();
    if (program.parameters_trainable == program.parameters_total) return "";
    return ", " + format_count(program.parameters_trainable) + " of them trained";
  }

  void verdict(const Option& option) {
    const Gpu& gpu = option.worst_gpu();
    const spec::ClusterSpec& cluster = option.spec->cluster;
    std::string line = option.spec->name + ": " + painted(option) + " on " +
                       (cluster.count > 1 ? std::to_string(cluster.count) + " x " : "") +
                       cluster.device.gpu;
    if (option.undecided()) {
      out_ << wrapped(line + ": " + option.reason, 2);
      shares(option);
      changes(option);
      warnings(option);
      return;
    }
    line += ": needs " + size(gpu.judgement.needed) + " of " + size(gpu.judgement.budget) +
            " each, " +
            (gpu.judgement.headroom() < 0 ? size(-gpu.judgement.headroom()) + " short"
                                          : size(gpu.judgement.headroom()) + " free");
    if (cluster.count == 1) line.replace(line.find(" each,"), 6, ",");
    out_ << wrapped(line, 2);
    if (option.verdict != Verdict::fits) out_ << "  " << wrapped(option.reason, 2, 2);
    if (option.timing) out_ << "  " << wrapped(step_words(option), 4, 2);
    const search::Phase& worst = gpu.phases[gpu.worst];
    if (style_.brief) {
      out_ << "  " << wrapped("peak in " + worst.name + why(worst), 4, 2);
    }
    shares(option);
    changes(option);
    warnings(option);
  }

  void warnings(const Option& option) {
    for (const std::string& warning : option.warnings) {
      out_ << "  " << wrapped("warning: " + warning, 4, 2);
    }
  }

  static std::string step_words(const Option& option) {
    const search::Timing& timing = *option.timing;
    const auto seconds = [](double value) { return format_seconds(Seconds{value}); };
    std::string text = "a step takes " + seconds(timing.step_seconds) + " (" +
                       seconds(timing.low_seconds) + " to " + seconds(timing.high_seconds) + "), " +
                       format_number(option.samples_per_second()) + " samples a second";
    if (timing.exchange_bytes > 0) {
      text += "; its exchange of " + size(timing.exchange_bytes) + " takes " +
              seconds(timing.exchange_seconds) + ", " + seconds(timing.exposed_seconds) +
              " of that not hidden";
    }
    return text;
  }

  /// What the cards share, and the other ways to share with why not.
  void shares(const Option& option) {
    if (!option.shares.empty()) {
      out_ << "  "
           << wrapped(search::name_of(option.parallel, option.split) + ": " + option.shares, 4, 2);
    }
    if (option.search) {
      for (const std::string& line : search_lines(*option.search)) {
        out_ << "  " << wrapped(line, 4, 2);
      }
    }
    if (style_.brief) return;
    for (std::size_t i = 0; i < option.others.size(); ++i) {
      const search::Alternative& other = option.others[i];
      std::string line = "not " + search::name_of(other.parallel, other.split);
      const auto same = [&](const search::Alternative& next) {
        return !next.applies && !other.applies && next.because == other.because;
      };
      while (i + 1 < option.others.size() && same(option.others[i + 1])) {
        ++i;
        line += ", " + search::name_of(option.others[i].parallel, option.others[i].split);
      }
      line += ": ";
      if (other.applies) line += std::string(verdict_text(other.verdict)) + ", ";
      out_ << "  " << wrapped(line + other.because, 4, 2);
    }
  }

  static std::string why(const search::Phase& phase) {
    if (phase.instruction < 0) return "";
    std::string text = ", at " + phase.cause.kind;
    if (!phase.cause.layer.empty()) text += " in " + phase.cause.layer;
    return text + " (" + category_name(phase.cause.category) + ")";
  }

  std::string painted(const Option& option) const {
    std::string text = verdict_text(option);
    if (option.undecided()) text += std::string(" ") + option.search->stop_words();
    if (!style_.colour) return text;
    constexpr const char* colours[] = {"\033[32m", "\033[33m", "\033[31m"};
    const int colour = option.undecided() ? 1 : static_cast<int>(option.verdict);
    return colours[colour] + text + "\033[0m";
  }

  void changes(const Option& option) {
    if (option.changes.empty()) return;
    out_ << "  changes, cheapest first, each simulated anew:\n";
    for (const search::Change& change : option.changes) {
      const std::string room =
          (change.headroom < 0 ? size(-change.headroom) + " short"
                               : size(change.headroom) + " free") +
          (change.step_seconds ? ", a step takes " + format_seconds(Seconds{*change.step_seconds})
                               : std::string());
      out_ << "    "
           << wrapped(change.words + ": " + verdict_text(change.verdict) + ", needs " +
                          size(change.needed) + ", " + room,
                      6, 4);
    }
    if (!option.job.job.lora) out_ << "    task lora: another job, to be planned on its own\n";
  }

  void details(const Option& option) {
    const Gpu& gpu = option.worst_gpu();
    levels(option, gpu);
    categories(option, gpu);
    phases(gpu);
    const std::size_t columns = page_width - 14;
    out_ << "\n  allocated bytes over the steady step\n"
         << memory_picture(option, style_, 6, static_cast<int>(columns));
    if (option.timing && option.gpus.size() > 1) out_ << timeline_picture(option, style_, 58);
  }

  void levels(const Option& option, const Gpu& gpu) {
    const search::Judgement& judged = gpu.judgement;
    const auto row = [&](const char* name, std::int64_t bytes, const std::string& says) {
      out_ << "  " << left(name, 11) << right(size(bytes), 11) << "   " << says << "\n";
    };
    out_ << "\n";
    row("allocated", gpu.peak.allocated,
        "handed out at the peak; " + size(judged.low) + " to " + size(judged.high));
    row("reserved", judged.unlimited.reserved_peak,
        "taken by the allocator where nothing limits it");
    row("device", gpu.device_bytes(), "with all outside the allocator, as in nvidia-smi");
    row("needed", judged.needed, "the least the allocator must be able to reserve");
    row("usable", gpu.card.usable,
        std::string("what the runtime reports as total (") +
            (option.spec->cluster.device.confidence == spec::Confidence::measured ? "measured"
                                                                                  : "assumed") +
            ")");
    row("context", gpu.card.context.bytes(),
        "outside the allocator; " + size(gpu.card.context.low) + " to " +
            size(gpu.card.context.high));
    const search::Context& exchange = gpu.card.exchange;
    const bool exchanges = exchange.high > 0;
    if (exchanges) {
      row("exchange", exchange.bytes(),
          "NCCL, outside too; " + size(exchange.low) + " to " + size(exchange.high));
    }
    const search::Context& stray = gpu.card.stray;
    if (stray.high > 0) {
      row("stray", stray.bytes(),
          "contexts of other processes; " + size(stray.low) + " to " + size(stray.high));
    }
    row("headroom", judged.headroom(),
        std::string("usable - context - ") + (exchanges ? "exchange - " : "") +
            (stray.high > 0 ? "stray - " : "") + "needed");
  }

  void categories(const Option&, const Gpu& gpu) {
    const search::Phase& worst = gpu.phases[gpu.worst];
    out_ << "\n  " << wrapped("at the peak, in " + worst.name + why(worst), 4, 2);
    for (int c = 0; c < category_count; ++c) {
      const std::int64_t bytes = gpu.peak.allocated_by[static_cast<std::size_t>(c)];
      if (bytes == 0) continue;
      const double share = static_cast<double>(bytes) / static_cast<double>(gpu.peak.allocated);
      const auto bar = static_cast<std::size_t>(std::lround(share * 32));
      std::string fill;
      for (std::size_t i = 0; i < bar; ++i) fill += style_.unicode ? "\u2588" : "#";
      out_ << "    " << left(category_name(static_cast<Category>(c)), 17) << right(size(bytes), 10)
           << right(format_percent(share), 9) << (fill.empty() ? "" : "  ") << fill << "\n";
    }
  }

  void phases(const Gpu& gpu) {
    out_ << "\n  " << left("phase", 25) << right("allocated", 10) << right("reserved", 11)
         << "   highest at\n";
    for (const search::Phase& phase : gpu.phases) {
      // The second step differs from later ones only in what the allocator has cached by then.
      if (phase.name.starts_with("second_step.") && &phase != &gpu.phases[gpu.worst]) continue;
      std::string line = "  " + left(phase.name, 25) + right(size(phase.allocated), 10) +
                         right(size(phase.reserved), 11);
      if (phase.instruction >= 0) {
        std::string at = phase.cause.kind;
        if (!phase.cause.layer.empty()) at += " " + phase.cause.layer;
        line += "   " + shortened(at, page_width - 51);
      }
      out_ << line << "\n";
    }
  }

  void assumptions(const Option& option) {
    out_ << "\nassumed (in brackets: what other choices would do to the peak)\n";
    for (const search::AssumptionEffect& effect : option.assumptions) {
      std::string line = effect.assumption.key + " " + effect.assumption.value;
      if (effect.low != 0 || effect.high != 0) {
        line += " [" + signed_size(effect.low) + " to " + signed_size(effect.high) + "]";
      }
      out_ << "  " << wrapped(line + ": " + effect.assumption.because, 4, 2);
    }
  }

  static std::string signed_size(std::int64_t bytes) {
    return (bytes > 0 ? "+" : "") + (bytes == 0 ? std::string("0") : size(bytes));
  }

  const Report& report_;
  const TableStyle& style_;
  std::ostream& out_;
};

}  // namespace

void write_table(const Report& report, const TableStyle& style, std::ostream& out) {
  TableWriter(report, style, out).write();
}

}  // namespace shardfit::report
