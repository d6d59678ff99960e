#include "cli/partition_output.h"

#include <rapidjson/ostreamwrapper.h>
#include <rapidjson/prettywriter.h>

#include <cmath>
#include <cstdio>
#include <ostream>

#include "base/format.h"
#include "report/report.h"

namespace shardfit::cli {
namespace {

using report::left;
using report::right;

/// Nine significant digits, as the published tables print.
std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string small_percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g %%", 100 * share);
  return text;
}

std::string with_unit(double value, const std::string& unit) {
  if (unit == "bytes") return format_bytes_exact(Bytes(static_cast<std::int64_t>(value)));
  return digits(value) + (unit.empty() ? "" : " " + unit);
}

/// Lines of at most 80 columns behind an indent of two.
void paragraph(const std::string& text, std::ostream& out) {
  constexpr std::size_t room = 78;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t stop = text.size();
    if (stop - at > room) {
      const std::size_t blank = text.rfind(' ', at + room);
      stop = blank != std::string::npos && blank > at ? blank : at + room;
    }
    out << "  " << text.substr(at, stop - at) << '\n';
    at = stop < text.size() && text[stop] == ' ' ? stop + 1 : stop;
  }
}

std::string bytes_text(double bytes) {
  return std::abs(bytes) < 9e18 ? format_bytes(Bytes(static_cast<std::int64_t>(bytes))) : "";
}

std::string verdict(const PartitionAnswer& a) {
  if (!a.feasible) return (a.proven ? "does not fit: " : "no answer: ") + a.reason;
  std::string text = a.objective_name + " " + with_unit(a.objective, a.unit);
  if (a.proven) return text + ", proven: nothing is better";
  // A gap that a percentage does not show is shown as it is.
  const std::string gap = a.gap < 5e-4 ? small_percent(a.gap) : format_percent(a.gap);
  return text + ", at most " + gap + " above the best (lower bound " +
         with_unit(a.lower_bound, a.unit) + ")";
}

std::string effort(const PartitionAnswer& a) {
  const partition::Certificate& c = a.certificate;
  std::string text = "bound: " + c.bound;
  if (c.ideals > 0) text += ", " + format_count(c.ideals) + (c.ideals == 1 ? " ideal" : " ideals");
  if (c.pairs > 0) text += ", " + format_count(c.pairs) + " pairs";
  if (c.steps > 0) text += ", " + format_count(c.steps) + " steps";
  return text + "; " + format_seconds(Seconds(a.cpu_seconds)) + " of CPU time after reading";
}

class JsonWriter {
 public:
  explicit JsonWriter(std::ostream& out) : stream_(out), writer_(stream_) {
    writer_.SetIndent(' ', 2);
    writer_.SetFormatOptions(rapidjson::kFormatSingleLineArray);
  }
  void begin() { writer_.StartObject(); }
  void end() { writer_.EndObject(); }
  void begin(const char* key) {
    writer_.Key(key);
    writer_.StartObject();
  }
  void begin_list(const char* key) {
    writer_.Key(key);
    writer_.StartArray();
  }
  void end_list() { writer_.EndArray(); }
  void text(const char* key, const std::string& value) {
    writer_.Key(key);
    writer_.String(value.c_str(), static_cast<rapidjson::SizeType>(value.size()));
  }
  void flag(const char* key, bool value) {
    writer_.Key(key);
    writer_.Bool(value);
  }
  void count(const char* key, std::int64_t value) {
    writer_.Key(key);
    writer_.Int64(value);
  }
  /// null where there is no finite value.
  void number(const char* key, double value) {
    writer_.Key(key);
    if (!std::isfinite(value))
      writer_.Null();
    else
      raw(format_exact(value));
  }
  void raw(const std::string& value) {
    writer_.RawValue(value.data(), value.size(), rapidjson::kNumberType);
  }
  void word(const std::string& value) {
    writer_.String(value.c_str(), static_cast<rapidjson::SizeType>(value.size()));
  }

 private:
  rapidjson::OStreamWrapper stream_;
  rapidjson::PrettyWriter<rapidjson::OStreamWrapper> writer_;
};

}  // namespace

void print_answer(const PartitionAnswer& a, std::ostream& out) {
  out << a.file << '\n';
  paragraph(a.task + " (" + a.format + ")", out);
  paragraph(verdict(a), out);
  for (const std::string& note : a.notes) paragraph("note: " + note, out);
  if (!a.parts.empty()) {
    const std::string unit = a.unit.empty() ? "" : " " + a.unit;
    out << "  " << left("", 8) << right("nodes", 7) << right("load" + unit, 15)
        << right("compute", 16) << right("transfers", 16) << right("memory", 12) << '\n';
    for (const PartRow& p : a.parts) {
      out << "  " << left(p.device, 8) << right(std::to_string(p.ids.size()), 7)
          << right(digits(p.load), 15) << " " << right(digits(p.latency), 15) << " "
          << right(digits(p.communication), 15) << right(bytes_text(p.bytes), 12) << '\n';
      std::string details;
      for (const PartDetail& d : p.details)
        details += (details.empty() ? "" : ", ") + std::string(d.key) + " " + d.text;
      if (!details.empty()) paragraph("  " + details, out);
    }
  }
  paragraph(effort(a), out);
}

void write_answer_json(const PartitionAnswer& a, std::ostream& out) {
  JsonWriter json(out);
  json.begin();
  json.text("file", a.file);
  json.text("format", a.format);
  json.text("unit", a.unit);
  json.flag("feasible", a.feasible);
  json.number("objective", a.objective);
  json.number("lower_bound", a.lower_bound);
  json.number("gap", a.gap);
  json.flag("proven", a.proven);
  json.number("cpu_seconds", a.cpu_seconds);
  if (!a.reason.empty()) json.text("reason", a.reason);
  json.begin_list("notes");
  for (const std::string& note : a.notes) json.word(note);
  json.end_list();
  json.begin_list("parts");
  for (const PartRow& p : a.parts) {
    json.begin();
    json.text("device", p.device);
    json.number("load", p.load);
    json.number("latency", p.latency);
    json.number("communication", p.communication);
    json.number("bytes", p.bytes);
    for (const PartDetail& d : p.details) {
      if (!d.number) {
        json.text(d.key, d.text);
        continue;
      }
      json.number(d.key, parse_real(d.text).value_or(std::nan("")));
    }
    json.begin_list("nodes");
    for (const std::string& id : p.ids) {
      if (p.numeric_ids)
        json.raw(id);
      else
        json.word(id);
    }
    json.end_list();
    if (!a.offsets.empty()) {
      json.begin_list("offsets");
      for (std::int64_t offset : a.offsets) json.raw(std::to_string(offset));
      json.end_list();
    }
    json.end();
  }
  json.end_list();
  const partition::Certificate& c = a.certificate;
  json.begin("certificate");
  json.text("bound", c.bound);
  json.number("threshold", c.threshold_ms);
  json.count("units", c.units);
  json.count("nets", c.nets);
  json.count("ideals", c.ideals);
  json.count("pairs", c.pairs);
  json.count("steps", c.steps);
  json.end();
  json.end();
  out << '\n';
}

}  // namespace shardfit::cli
