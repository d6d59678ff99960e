#include "cli/batch_command.h"

#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <algorithm>
#include <limits>
#include <ostream>

#include "base/comma_list.h"
#include "base/format.h"
#include "cli/cli.h"
#include "cli/search_watch.h"
#include "report/report.h"
#include "search/batch.h"
#include "search/sharing.h"
#include "spec/data_directory.h"
#include "spec/reader.h"

namespace shardfit::cli {
namespace {

using report::right;
using search::BatchCell;
using search::BatchRow;
using search::BatchTable;
using search::Option;
using search::Verdict;

using Json = rapidjson::PrettyWriter<rapidjson::StringBuffer>;

constexpr std::int64_t most_sequence = 100'000'000;
constexpr std::size_t most_rows = 64;

/// "." where a smaller batch does not fit, so that this one was not run; "?" where the search was
/// stopped before it was.
const char* cell_word(const BatchRow& row, std::int64_t micro) {
  const BatchCell* cell = row.find(micro);
  if (!cell && !row.decided && micro > row.largest) {
    return row.next && micro > row.next->micro_batch ? "." : "?";
  }
  if (!cell) return micro <= row.largest ? "fits" : ".";
  constexpr const char* words[] = {"fits", "tight", "no"};
  return words[static_cast<int>(cell->verdict)];
}

void write_rows(const BatchTable& table, std::ostream& out) {
  const bool lengths = table.reads_sequence;
  out << "  " << right(lengths ? "sequence" : "", 9);
  for (const std::int64_t micro : table.micro_batches) out << right(format_count(micro), 7);
  out << right("largest", 9) << right("free", 11) << (lengths ? right("tokens", 11) : "") << "\n";
  for (const BatchRow& row : table.rows) {
    out << "  " << right(lengths ? format_count(row.sequence) : "", 9);
    for (const std::int64_t micro : table.micro_batches) out << right(cell_word(row, micro), 7);
    const std::string known = row.largest == 0 ? "" : format_count(row.largest);
    out << right(row.decided ? (known.empty() ? "none" : known) : known + "?", 9);
    const BatchCell* best = row.find(row.largest);
    if (best && best->headroom) {
      out << right(format_bytes(Bytes(*best->headroom)), 11);
      if (lengths) out << right(format_count(row.largest * row.sequence), 11);
    }
    out << "\n";
  }
}

void write_stop(const std::string& name, const BatchCell& cell, std::ostream& out) {
  const std::string why = cell.reason.substr(0, cell.reason.find(": CUDA out of memory"));
  out << "  " << report::wrapped(name + ": " + verdict_text(cell.verdict) + ", " + why, 4, 2);
}

void write_longest(const Option& option, const BatchTable& table, std::ostream& out) {
  const std::string at = format_count(option.job.batch.micro);
  if (table.longest_sequence == 0) {
    out << "\n  no sequence fits at micro-batch " << at << "\n";
  } else {
    out << "\n  longest sequence at micro-batch " << at << ": "
        << format_count(table.longest_sequence)
        << (table.longer ? " tokens (in steps of " + std::to_string(search::sequence_step) + ")"
                         : " tokens, all the model's positions")
        << "\n";
  }
  if (table.longer) {
    write_stop(at + " x " + format_count(table.longer->sequence), *table.longer, out);
  }
}

/// What the table does not show.
void notes(const Option& option, const BatchTable& table, std::ostream& out) {
  const bool capped = std::any_of(table.rows.begin(), table.rows.end(), [](const BatchRow& row) {
    return row.largest == search::most_samples && !row.next;
  });
  if (capped) {
    out << "\n  "
        << report::wrapped("micro-batches of more than " + format_count(search::most_samples) +
                               " samples are not tried: a larger one may fit",
                           4, 2);
  }
  std::vector<std::string> others;
  for (const search::Alternative& other : option.others) {
    const std::string& name = search::name_of(other.parallel);
    const bool known = std::find(others.begin(), others.end(), name) != others.end();
    if (other.applies && !known) others.push_back(name);
  }
  if (others.empty()) return;
  out << "\n  "
      << report::wrapped(
             "the table is of one way to share the job, the one that 'plan' takes at "
             "the job's own batch; --parallel gives that of another: " +
                 join(others),
             4, 2);
}

void write_table(const Option& option, const BatchTable& table, std::ostream& out) {
  const std::string parallel = search::name_of(option.parallel, option.split);
  out << option.spec->name << " (" << parallel << "): what fits of micro-batch"
      << (table.reads_sequence ? " by sequence" : "; this network reads no sequence") << "\n\n";
  write_rows(table, out);
  const auto named = [&](const BatchCell& cell) {
    return format_count(cell.micro_batch) +
           (table.reads_sequence ? " x " + format_count(cell.sequence) : "");
  };
  notes(option, table, out);
  const bool stopped = std::any_of(table.rows.begin(), table.rows.end(),
                                   [](const BatchRow& row) { return row.next.has_value(); });
  if (stopped) out << "\n  what stops the next one\n";
  for (const BatchRow& row : table.rows) {
    if (row.next) write_stop(named(*row.next), *row.next, out);
  }
  if (table.stopped != StopCheck::Why::no) {
    const bool budget = table.stopped == StopCheck::Why::budget;
    const bool any = std::any_of(table.rows.begin(), table.rows.end(),
                                 [](const BatchRow& row) { return row.largest > 0; });
    const std::string why = budget ? "the budget was used up: " : "interrupted: ";
    out << "\n  "
        << report::wrapped(why +
                               (any ? "" : "nothing that fits is known, nor that nothing does: ") +
                               "'?' is not decided, and what would follow is missing",
                           4, 2);
    return;
  }
  if (table.reads_sequence) write_longest(option, table, out);
  if (!table.edge) return;
  out << "\n  one step from the cliff, at " << named(*table.edge) << "\n";
  for (const search::CliffStep& step : table.cliff) write_stop(step.words, step.cell, out);
}

void write_cell(Json& json, const BatchCell& cell) {
  json.StartObject();
  json.Key("micro_batch");
  json.Int64(cell.micro_batch);
  json.Key("sequence");
  json.Int64(cell.sequence);
  json.Key("verdict");
  json.String(verdict_text(cell.verdict));
  json.Key("phase");
  json.String(cell.phase.c_str());
  json.Key("reason");
  json.String(cell.reason.c_str());
  json.Key("headroom_bytes");
  if (cell.headroom) {
    json.Int64(*cell.headroom);
  } else {
    json.Null();
  }
  json.EndObject();
}

void write_json(const Option& option, const BatchTable& table, Json& json) {
  json.StartObject();
  json.Key("name");
  json.String(option.spec->name.c_str());
  json.Key("parallel");
  json.String(search::name_of(option.parallel).c_str());
  json.Key("degrees");
  json.StartObject();
  for (const auto& [name, degree] : report::degrees_of(option.parallel, option.split)) {
    json.Key(name);
    json.Int64(degree);
  }
  json.EndObject();
  json.Key("rows");
  json.StartArray();
  for (const BatchRow& row : table.rows) {
    json.StartObject();
    json.Key("sequence");
    json.Int64(row.sequence);
    json.Key("largest_micro_batch");
    json.Int64(row.largest);
    json.Key("decided");
    json.Bool(row.decided);
    json.Key("tried");
    json.StartArray();
    for (const BatchCell& cell : row.tried) write_cell(json, cell);
    json.EndArray();
    json.Key("next");
    if (row.next) {
      write_cell(json, *row.next);
    } else {
      json.Null();
    }
    json.EndObject();
  }
  json.EndArray();
  json.Key("stopped");
  constexpr const char* stops[] = {"", "budget", "interrupt"};
  json.String(stops[static_cast<int>(table.stopped)]);
  json.Key("reads_sequence");
  json.Bool(table.reads_sequence);
  json.Key("longest_sequence");
  json.Int64(table.longest_sequence);
  json.Key("longer");
  if (table.longer) {
    write_cell(json, *table.longer);
  } else {
    json.Null();
  }
  json.Key("cliff");
  json.StartArray();
  for (const search::CliffStep& step : table.cliff) {
    json.StartObject();
    json.Key("change");
    json.String(step.words.c_str());
    json.Key("from_micro_batch");
    json.Int64(table.edge->micro_batch);
    json.Key("from_sequence");
    json.Int64(table.edge->sequence);
    json.Key("job");
    write_cell(json, step.cell);
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
}

/// A row that was asked for, and where.
struct Length {
  std::int64_t tokens = 0;
  Location where;
};

/// "512,2048" or several words, as numbers.
std::vector<Length> read_sequences(const std::vector<spec::Node>& words) {
  Diagnostics faults;
  std::vector<Length> sequences;
  for (const spec::Node& word : words) {
    for (const std::string_view piece : comma_list(word.text)) {
      Location where = word.where;
      where.offset += static_cast<std::size_t>(piece.data() - word.text.data());
      where.length = std::max<std::size_t>(1, piece.size());
      const spec::Node one = spec::word(std::string(piece), std::move(where));
      const auto length = spec::as_integer(one, "'--sequences'", {1, most_sequence}, faults);
      if (length) sequences.push_back({*length, one.where});
    }
  }
  if (sequences.size() > most_rows) {
    faults.error(words.front().where, "'--sequences': more than " + std::to_string(most_rows));
  }
  faults.throw_if_any();
  std::sort(sequences.begin(), sequences.end(),
            [](const Length& a, const Length& b) { return a.tokens < b.tokens; });
  const auto same = [](const Length& a, const Length& b) { return a.tokens == b.tokens; };
  sequences.erase(std::unique(sequences.begin(), sequences.end(), same), sequences.end());
  return sequences;
}

/// The rows of an option: those asked for, which its model must have positions for.
std::vector<std::int64_t> rows_of(const Option& option, const std::vector<Length>& given) {
  if (given.empty()) return search::usual_sequences(option.lowering->model());
  Diagnostics faults;
  std::vector<std::int64_t> rows;
  const auto longest = option.lowering->longest_sequence();
  for (const Length& length : given) {
    rows.push_back(length.tokens);
    if (!longest || length.tokens <= *longest) continue;
    faults.error(length.where,
                 "a sequence of " + format_count(length.tokens) +
                     " tokens does not run: the model has " + format_count(*longest) +
                     " learned positions",
                 {"give " + std::to_string(*longest) + " or less"});
  }
  faults.throw_if_any();
  return rows;
}

}  // namespace

namespace {

/// Words of a plan's file that a table of batches has no use for.
void refuse_words(const spec::PlanSpec& spec, Diagnostics& faults) {
  const char* note = "leave it out: the table shows the largest micro-batch of every sequence";
  if (spec.objective) faults.error(spec.objective->where, "'batch' takes no objective", {note});
  if (spec.hypothesis) faults.error(spec.hypothesis->where, "'batch' takes no hypothesis", {note});
  for (const spec::OptionSpec& option : spec.options) {
    const spec::JobSpec& job = option.job;
    if (job.any_micro_batch) {
      faults.error(*job.any_micro_batch, "'batch' looks for the micro-batch itself, found 'auto'",
                   {"leave it out"});
    }
    if (job.recompute.value.kind == spec::RecomputeKind::automatic) {
      faults.error(job.recompute.where, "the table of batches is of one recompute, found 'auto'",
                   {"give --recompute none, full or selective:POLICY; 'plan' searches"});
    }
    if (job.global_batch && job.accumulation) {
      faults.error(job.accumulation->where,
                   "global-batch and accumulation together leave one micro-batch, no table",
                   {"give one of the two: a global batch is kept by as many passes as it takes"});
    }
    if (!faults.empty()) return;  // all options mostly share their words
  }
}

}  // namespace

int batch_command(const PlanOptions& options, const std::vector<spec::Node>& sequences,
                  std::ostream& out, std::ostream& err) {
  const std::vector<Length> given = read_sequences(sequences);
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  const spec::PlanSpec spec = spec::read_plan(options.files, options.job, devices, faults);
  refuse_words(spec, faults);
  faults.throw_if_any();
  say_overrides(spec, err);
  search::PlanSettings settings;
  settings.effects = settings.changes = settings.equal_batches = false;
  const double begun = cpu_seconds();
  spec::PlanSpec jobs = spec;
  jobs.search_budget.reset();  // of the tables, too
  const SearchWatch watch(err);
  search::SearchControls controls = watch.controls();
  if (spec.search_budget) controls.budget_seconds = spec.search_budget->value;
  settings.search = &controls;
  const search::Plan plan = search::make_plan(jobs, settings);
  std::size_t left = plan.options.size();
  rapidjson::StringBuffer buffer;
  Json json(buffer);
  json.SetIndent(' ', 2);
  if (options.json) json.StartArray();
  bool none = false, open = !plan.unfinished.empty();  // on some option
  for (const Option& option : plan.options) {
    // What is left of the budget, in equal parts.
    const double now = cpu_seconds();
    double deadline = std::numeric_limits<double>::infinity();
    if (spec.search_budget) {
      const double rest = std::max(0.0, begun + spec.search_budget->value - now);
      deadline = now + rest / static_cast<double>(left--);
    }
    const StopCheck stop(deadline, watch.controls().stop);
    const BatchTable table = search::find_batches(option, rows_of(option, given), &stop);
    const bool some = std::any_of(table.rows.begin(), table.rows.end(),
                                  [](const BatchRow& row) { return row.largest > 0; });
    const bool decided = std::all_of(table.rows.begin(), table.rows.end(),
                                     [](const BatchRow& row) { return row.decided; });
    none = none || (!some && decided);
    open = open || (!some && !decided);
    if (options.json) {
      write_json(option, table, json);
    } else {
      if (&option != &plan.options.front()) out << "\n";
      write_table(option, table, out);
    }
  }
  if (options.json) {
    json.EndArray();
    out << buffer.GetString() << "\n";
  }
  if (!plan.unfinished.empty()) err << stopped_text(plan);
  return none ? does_not_fit : open ? not_decided : fits;
}

}  // namespace shardfit::cli
