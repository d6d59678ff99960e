#include "cli/replay_command.h"

#include <rapidjson/ostreamwrapper.h>
#include <rapidjson/prettywriter.h>

#include <algorithm>
#include <memory>
#include <ostream>

#include "base/diagnostic.h"
#include "base/format.h"
#include "run/trace.h"
#include "spec/reader.h"
#include "validate/replay_trace.h"

namespace shardfit::cli {
namespace {

using validate::TraceReplay;

/// A trace and its replays.
struct Replayed {
  std::string file;
  run::Trace trace;
  TraceReplay own;                   // under its own settings
  std::optional<TraceReplay> other;  // under those asked for
};

constexpr std::size_t width = 80;

std::string padded(const std::string& text, std::size_t to, bool right) {
  const std::string blanks(to > text.size() ? to - text.size() : 0, ' ');
  return right ? blanks + text : text + blanks;
}

/// Text in lines of at most 80 columns, each behind an indent; words longer than a line are cut.
void print_wrapped(const std::string& label, const std::string& text, std::ostream& out) {
  const std::string indent(label.size(), ' ');
  const std::size_t room = width - label.size();
  for (std::size_t at = 0; at < text.size() || at == 0;) {
    std::size_t stop = text.size();
    if (stop - at > room) {
      const std::size_t blank = text.rfind(' ', at + room);
      stop = blank != std::string::npos && blank > at ? blank : at + room;
    }
    out << (at == 0 ? label : indent) << text.substr(at, stop - at) << '\n';
    at = stop < text.size() && text[stop] == ' ' ? stop + 1 : stop;
    if (text.empty()) break;
  }
}

std::string bytes_text(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }

std::string counted(std::size_t n, const std::string& one, const std::string& many) {
  return format_count(static_cast<std::int64_t>(n)) + " " + (n == 1 ? one : many);
}

struct Row {
  const char* name;
  std::string own, other;
};

std::vector<Row> rows(const TraceReplay& own, const TraceReplay& other) {
  const run::AllocatorStats& a = own.stats;
  const run::AllocatorStats& b = other.stats;
  return {
      {"peak requested", bytes_text(a.peak.requested), bytes_text(b.peak.requested)},
      {"peak allocated", bytes_text(a.peak.allocated), bytes_text(b.peak.allocated)},
      {"peak reserved", bytes_text(a.peak.reserved), bytes_text(b.peak.reserved)},
      {"reserved at the end", bytes_text(a.current.reserved), bytes_text(b.current.reserved)},
      {"retries", format_count(a.retries), format_count(b.retries)},
      {"out of memory", format_count(a.ooms), format_count(b.ooms)},
      {"refused beforehand", format_count(a.rejections), format_count(b.rejections)},
      {"driver allocations", format_count(a.driver_allocations),
       format_count(b.driver_allocations)},
      {"driver frees", format_count(a.driver_frees), format_count(b.driver_frees)},
  };
}

void print_notes(const TraceReplay& replay, std::ostream& out) {
  if (!replay.failures.empty()) {
    print_wrapped("  first error: ", replay.failures.front().why.text(), out);
  }
  if (replay.succeeded_instead > 0) {
    print_wrapped("  note: ",
                  counted(replay.succeeded_instead, "request", "requests") +
                      " that failed when recorded succeeded and was freed at once: the program "
                      "did not go on with it",
                  out);
  }
  if (replay.settings_skipped > 0) {
    print_wrapped("  note: ",
                  counted(replay.settings_skipped, "change", "changes") +
                      " of settings inside the trace not followed",
                  out);
  }
  if (replay.stats.split_blocks_kept > 0) {
    print_wrapped("  note: ",
                  "PyTorch 2.13 would abort here: max_split_size_mb was lowered while blocks above "
                  "it were split",
                  out);
  }
}

void print_comparison(const Replayed& replayed, const std::string& settings, std::ostream& out) {
  const std::string recorded = replayed.trace.header.conf.value_or("default settings");
  out << replayed.file << ": " << counted(replayed.own.events, "event", "events") << '\n';
  print_wrapped("  recorded: ", recorded, out);
  print_wrapped("  replayed: ", settings.empty() ? "default settings" : settings, out);
  out << padded("", 22, false) << padded("recorded", 14, true) << padded("replayed", 14, true)
      << '\n';
  for (const Row& row : rows(replayed.own, *replayed.other)) {
    out << "  " << padded(row.name, 20, false) << padded(row.own, 14, true)
        << padded(row.other, 14, true) << '\n';
  }
  print_notes(*replayed.other, out);
}

void print_replay(const Replayed& replayed, std::ostream& out) {
  const TraceReplay& replay = replayed.own;
  const std::string events = counted(replay.events, "event", "events");
  out << replayed.file << '\n';
  if (replayed.trace.expectations.empty()) {
    out << "  " << events << ", no expectations to compare\n";
  } else if (replay.holds()) {
    out << "  " << events << ", all "
        << counted(replay.expectations, "expectation holds", "expectations hold") << '\n';
  } else {
    out << "  " << events << ", " << format_count(static_cast<std::int64_t>(replay.mismatched))
        << " of " << counted(replay.expectations, "expectation does", "expectations do")
        << " not hold\n";
  }
  const run::AllocatorStats& stats = replay.stats;
  out << "  peak allocated " << bytes_text(stats.peak.allocated) << ", reserved "
      << bytes_text(stats.peak.reserved) << "; retries " << format_count(stats.retries)
      << ", out of memory " << format_count(stats.ooms) << '\n';
  for (const validate::TraceMismatch& mismatch : replay.mismatches) {
    out << mismatch.where.text() << ": after '" << mismatch.event << "'\n";
    print_wrapped("  expected ", mismatch.expected, out);
    print_wrapped("  found    ", mismatch.found, out);
  }
  if (replay.mismatched > replay.mismatches.size()) {
    out << "  and " << replay.mismatched - replay.mismatches.size() << " more\n";
  }
  if (replayed.trace.expectations.empty()) print_notes(replay, out);
}

class JsonWriter {
 public:
  explicit JsonWriter(std::ostream& out) : stream_(out), writer_(stream_) {
    writer_.SetIndent(' ', 2);
  }

  void write(const std::vector<std::unique_ptr<Replayed>>& traces, const ReplayOptions& options) {
    writer_.StartObject();
    if (options.settings) string("settings", *options.settings);
    writer_.Key("traces");
    writer_.StartArray();
    for (const auto& replayed : traces) trace(*replayed);
    writer_.EndArray();
    writer_.EndObject();
    stream_.Put('\n');
  }

 private:
  void string(const char* key, const std::string& text) {
    writer_.Key(key);
    writer_.String(text.c_str(), static_cast<rapidjson::SizeType>(text.size()));
  }
  void number(const char* key, std::int64_t n) {
    writer_.Key(key);
    writer_.Int64(n);
  }

  void trace(const Replayed& replayed) {
    writer_.StartObject();
    string("file", replayed.file);
    string("name", replayed.trace.header.name);
    string("recorded_settings", replayed.trace.header.conf.value_or(""));
    number("events", static_cast<std::int64_t>(replayed.own.events));
    number("expectations", static_cast<std::int64_t>(replayed.own.expectations));
    number("mismatched", static_cast<std::int64_t>(replayed.own.mismatched));
    writer_.Key("mismatches");
    writer_.StartArray();
    for (const validate::TraceMismatch& mismatch : replayed.own.mismatches) {
      writer_.StartObject();
      number("line", mismatch.where.line());
      string("event", mismatch.event);
      string("expected", mismatch.expected);
      string("found", mismatch.found);
      writer_.EndObject();
    }
    writer_.EndArray();
    result("recorded", replayed, replayed.own);
    if (replayed.other) result("replayed", replayed, *replayed.other);
    writer_.EndObject();
  }

  void result(const char* key, const Replayed& replayed, const TraceReplay& replay) {
    const run::AllocatorStats& stats = replay.stats;
    writer_.Key(key);
    writer_.StartObject();
    levels("peak", stats.peak);
    levels("end", stats.current);
    number("retries", stats.retries);
    number("out_of_memory", stats.ooms);
    number("rejections", stats.rejections);
    number("driver_allocations", stats.driver_allocations);
    number("driver_frees", stats.driver_frees);
    number("succeeded_instead", static_cast<std::int64_t>(replay.succeeded_instead));
    number("settings_skipped", static_cast<std::int64_t>(replay.settings_skipped));
    number("split_blocks_kept", stats.split_blocks_kept);
    writer_.Key("errors");
    writer_.StartArray();
    for (const validate::TraceFailure& failure : replay.failures) {
      writer_.StartObject();
      string("event", run::event_text(replayed.trace, failure.event));
      number("requested_bytes", failure.why.requested);
      number("tried_bytes", failure.why.tried);
      string("text", failure.why.text());
      writer_.EndObject();
    }
    writer_.EndArray();
    writer_.EndObject();
  }

  void levels(const char* key, const run::AllocatorLevels& levels) {
    writer_.Key(key);
    writer_.StartObject();
    number("requested_bytes", levels.requested);
    number("allocated_bytes", levels.allocated);
    number("active_bytes", levels.active);
    number("reserved_bytes", levels.reserved);
    number("inactive_split_bytes", levels.inactive_split);
    number("segments", levels.segments);
    writer_.EndObject();
  }

  rapidjson::OStreamWrapper stream_;
  rapidjson::PrettyWriter<rapidjson::OStreamWrapper> writer_;
};

std::unique_ptr<Replayed> replay_file(const std::string& file,
                                      const std::optional<run::AllocatorSettings>& settings) {
  auto replayed = std::make_unique<Replayed>();
  replayed->file = file;
  Diagnostics faults;
  replayed->trace = run::read_trace(spec::read_source(file, run::largest_trace), faults);
  faults.throw_if_any();
  try {
    replayed->own = validate::replay_trace(replayed->trace);
    if (settings) replayed->other = validate::replay_trace(replayed->trace, *settings);
  } catch (const OverflowError&) {
    throw InputError(whole_file(file), "takes more address space from the driver than 2^63 bytes");
  }
  return replayed;
}

}  // namespace

int replay_command(const std::vector<std::string>& files, const ReplayOptions& options,
                   std::ostream& out, std::ostream& err) {
  std::optional<run::AllocatorSettings> settings;
  if (options.settings) {
    try {
      settings = run::parse_allocator_settings(*options.settings);
    } catch (const run::SettingsError& error) {
      Diagnostic fault;
      fault.where.source = std::make_shared<const Source>(Source{"--settings", *options.settings});
      fault.where.offset = error.position;
      fault.message = "found " + error.found + ", expected " + error.expected;
      err << render(fault);
      return 2;
    }
  }
  int code = 0;
  Diagnostics faults;
  std::vector<std::unique_ptr<Replayed>> traces;
  for (const std::string& file : files) {
    try {
      traces.push_back(replay_file(file, settings));
    } catch (const InputError& error) {
      code = 2;
      if (options.json) {
        for (const Diagnostic& d : error.diagnostics()) faults.error(d.where, d.message, d.notes);
      } else {
        err << error.what();
      }
      continue;
    }
    Replayed& replayed = *traces.back();
    if (!settings && !replayed.own.holds() && code == 0) code = 1;
    if (options.json) continue;
    settings ? print_comparison(replayed, *options.settings, out) : print_replay(replayed, out);
    traces.pop_back();
  }
  if (options.json && traces.empty()) faults.throw_if_any();
  if (!options.json) return code;
  if (!faults.empty()) err << InputError(faults.found()).what();
  JsonWriter(out).write(traces, options);
  return code;
}

}  // namespace shardfit::cli
