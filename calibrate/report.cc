#include "calibrate/report.h"

#include <algorithm>
#include <ostream>
#include <set>

#include "base/format.h"
#include "calibrate/json.h"
#include "calibrate/profile.h"
#include "report/report.h"

namespace shardfit::calibrate {
namespace {

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

/// Where there is nobody to ask, a capability that has everything.
DeviceFacts first_device(const Machine& machine) {
  if (!machine.devices.empty()) return machine.devices.front();
  DeviceFacts facts;
  facts.compute_capability = "9.0";
  return facts;
}

std::string device_words(const DeviceFacts& d) {
  return d.name + ", compute capability " + d.compute_capability + ", " +
         format_bytes(Bytes(d.usable_bytes)) + " usable";
}

bool chosen(const Benchmark& row, const RunOptions& options) {
  return options.only.empty() ||
         std::find(options.only.begin(), options.only.end(), row.name) != options.only.end();
}

struct Forecast {
  std::size_t cases = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// Cases that do not fit beside the margin are left out, here as in the run.
Forecast forecast(const Benchmark& row, const DeviceFacts& facts, int devices,
                  const RunOptions& options) {
  Forecast f;
  f.bytes = row.takes != all_free ? row.takes
                                  : std::max<std::int64_t>(0, facts.usable_bytes - options.margin);
  std::set<std::pair<int, int>> groups;  // each has a communicator of its own
  for (const Case& c : row.cases(facts, devices, options)) {
    if (facts.usable_bytes > 0 && c.footprint + options.margin > facts.usable_bytes) continue;
    ++f.cases;
    f.bytes = std::max(f.bytes, c.footprint);
    // The series, and three calls and their buffers before it.
    f.seconds += 1.2 * limits_of_case(options).seconds;
    if (std::string(row.library) == "NCCL") groups.emplace(c.from, c.to);
  }
  f.seconds += row.setup * static_cast<double>(std::max<std::size_t>(1, groups.size()));
  return f;
}

void write_machine(Json& json, const Machine& machine) {
  json.boolean("stand_in", machine.stand_in);
  json.text("driver", machine.driver);
  json.text("runtime", machine.runtime);
  json.text("clocks", machine.clocks);
  json.text("waived", machine.waived);
  json.array("devices", machine.devices, [&](const DeviceFacts& d) {
    json.object([&] {
      json.number("index", d.index);
      json.text("name", d.name);
      json.text("compute_capability", d.compute_capability);
      json.number("multiprocessors", d.multiprocessors);
      json.number("usable_bytes", d.usable_bytes);
      json.number("free_bytes", d.free_bytes);
      json.number("l2_bytes", d.l2_bytes);
      json.text("catalogue", catalogue_name(d));
    });
  });
}

}  // namespace

const char* const stand_in_words =
    "ON A STAND-IN RUNTIME WITHOUT A CARD: no number here is a measurement";

std::string list_text(const Machine& machine, const RunOptions& options, bool json) {
  const DeviceFacts facts = first_device(machine);
  const int devices = static_cast<int>(machine.devices.size());
  const auto reason = [&](const Benchmark& row) {
    return devices == 0 ? machine.waived : waived_because(row, facts, devices, machine, options);
  };
  if (json) {
    Json out;
    out.object([&] {
      out.object("machine", [&] { write_machine(out, machine); });
      out.array("benchmarks", benchmarks(), [&](const Benchmark& row) {
        out.object([&] {
          out.text("name", row.name);
          out.text("group", row.group);
          out.text("summary", row.summary);
          out.number("least_devices", row.least_devices);
          out.text("library", row.library);
          out.text("waived", reason(row));
        });
      });
    });
    return out.result();
  }
  std::string text;
  if (machine.stand_in) text += std::string(stand_in_words) + "\n";
  const char* group = "";
  for (const Benchmark& row : benchmarks()) {
    if (row.group != std::string(group)) {
      text += std::string(text.empty() ? "" : "\n") + row.group + "\n";
      group = row.group;
    }
    text += "  " + padded(row.name, 16) + row.summary;
    if (*row.library) text += std::string(" (") + row.library + ")";
    text += "\n";
    if (devices > 0 && !reason(row).empty()) {
      text += std::string(18, ' ') + "waived: " + reason(row) + "\n";
    }
  }
  text += "\n";
  if (devices == 0) text += report::wrapped("all waived here: " + machine.waived, 2);
  for (const DeviceFacts& d : machine.devices) {
    text += "device " + std::to_string(d.index) + ": " + device_words(d) + "\n";
  }
  return text;
}

std::string dry_run_text(const DeviceFacts& facts, int devices, const Machine& machine,
                         const RunOptions& options, bool json) {
  Json out;
  std::string text;
  double seconds = 0;
  const std::string on = std::to_string(devices) + " x " + device_words(facts);
  if (!machine.waived.empty()) text += report::wrapped("waived here: " + machine.waived, 2);
  text += "would run on " + on + ":\n";
  text += "  " + padded("benchmark", 16) + "series  bytes      at most\n";
  const auto rows = [&](auto each) {
    for (const Benchmark& row : benchmarks()) {
      if (!chosen(row, options)) continue;
      const std::string reason = waived_because(row, facts, devices, machine, options);
      const Forecast f = reason.empty() ? forecast(row, facts, devices, options) : Forecast{};
      each(row, reason, f);
    }
  };
  rows([&](const Benchmark& row, const std::string& reason, const Forecast& f) {
    seconds += f.seconds;
    text += "  " + padded(row.name, 16);
    if (!reason.empty()) {
      text += "waived: " + reason + "\n";
      return;
    }
    text += padded(std::to_string(f.cases), 8) +
            padded(f.bytes > 0 ? format_bytes(Bytes(f.bytes)) : "-", 11) +
            format_seconds(Seconds(f.seconds)) + "\n";
  });
  text += "  in all at most " + format_seconds(Seconds(seconds)) +
          ", of it a guess what libraries and buffers take to be\n    made; the last " +
          format_bytes(Bytes(options.margin)) + " of a device are never taken\n";
  if (!json) return text;
  out.object([&] {
    out.boolean("dry_run", true);
    out.text("waived", machine.waived);
    out.text("device", facts.name);
    out.number("devices", devices);
    out.number("margin_bytes", options.margin);
    out.real("seconds", seconds);
    out.array("benchmarks", benchmarks(), [&](const Benchmark& row) {
      if (!chosen(row, options)) return;
      const std::string reason = waived_because(row, facts, devices, machine, options);
      const Forecast f = reason.empty() ? forecast(row, facts, devices, options) : Forecast{};
      out.object([&] {
        out.text("name", row.name);
        out.text("waived", reason);
        out.number("series", static_cast<std::int64_t>(f.cases));
        out.number("bytes", f.bytes);
        out.real("seconds", f.seconds);
      });
    });
  });
  return out.result();
}

std::string findings_text(const Findings& findings) {
  std::string text;
  const Machine& machine = findings.machine;
  if (machine.stand_in) text += std::string(stand_in_words) + "\n";
  text += device_words(machine.devices[static_cast<std::size_t>(findings.device)]);
  const std::string software = software_words(machine);
  if (!software.empty()) text += "; " + software;
  text += "\n";
  if (!machine.clocks.empty()) text += machine.clocks + "\n";
  std::string benchmark;
  for (const Reading& r : findings.readings) {
    if (r.benchmark != benchmark) text += "\n" + r.benchmark + "\n";
    benchmark = r.benchmark;
    text += "  " + padded(r.name, 44) + " " + padded(value_words(r.unit, r.value.median), 12);
    if (r.value.samples > 1) {
      text += " +-" + format_percent(r.value.spread) + " of " + std::to_string(r.value.samples);
    }
    if (r.value.dropped > 0) text += ", " + std::to_string(r.value.dropped) + " throttled";
    if (r.value.stopped == "time" || r.value.stopped == "most") text += ", not steady";
    text += "\n";
  }
  if (!findings.waived.empty()) text += "\n";
  for (const Waived& w : findings.waived) {
    text += "waived " + w.benchmark + ": " + w.reason + "\n";
  }
  for (const Failed& f : findings.failed) text += "FAILED " + f.benchmark + ": " + f.error + "\n";
  return text;
}

std::string findings_json(const Findings& findings) {
  Json json;
  json.object([&] {
    json.text("version", "1");
    json.boolean("stand_in", findings.machine.stand_in);
    json.object("machine", [&] { write_machine(json, findings.machine); });
    json.number("device", findings.device);
    json.array("readings", findings.readings, [&](const Reading& r) {
      json.object([&] {
        json.text("benchmark", r.benchmark);
        json.text("name", r.name);
        json.real(unit_name(r.unit), r.value.median);
        json.real("spread", r.value.spread);
        json.number("samples", r.value.samples);
        json.number("dropped", r.value.dropped);
        json.text("stopped", r.value.stopped);
        json.text("method", r.method);
      });
    });
    json.array("waived", findings.waived, [&](const Waived& w) {
      json.object([&] {
        json.text("benchmark", w.benchmark);
        json.text("reason", w.reason);
      });
    });
    json.array("failed", findings.failed, [&](const Failed& f) {
      json.object([&] {
        json.text("benchmark", f.benchmark);
        json.text("error", f.error);
      });
    });
  });
  return json.result();
}

void say_waived(const std::string& why, bool json, std::ostream& out, std::ostream& err) {
  err << "waived: " << why << "\n";
  if (!json) return;
  Json waived;
  waived.object([&] { waived.text("waived", why); });
  out << waived.result();
}

}  // namespace shardfit::calibrate
