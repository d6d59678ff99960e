#include <array>
#include <ctime>
#include <fstream>
#include <optional>
#include <ostream>

#include "base/diagnostic.h"
#include "base/format.h"
#include "calibrate/cli.h"
#include "calibrate/commands.h"
#include "calibrate/plan_file.h"
#include "calibrate/profile.h"
#include "calibrate/report.h"
#include "spec/cluster_spec.h"
#include "spec/data_directory.h"
#include "spec/reader.h"

namespace shardfit::calibrate {
namespace {

[[noreturn]] void refuse(const std::string& message, std::vector<std::string> notes = {}) {
  throw InputError(whole_file("command line"), message, std::move(notes));
}

void check_names(const RunOptions& options) {
  std::vector<std::string> known;
  for (const Benchmark& row : benchmarks()) known.push_back(row.name);
  for (const std::string& name : options.only) {
    if (!find_benchmark(name)) {
      refuse("--only: unknown benchmark " + quoted(name), suggest(name, known));
    }
  }
}

/// "2xh200" as facts, from its device file.
std::pair<DeviceFacts, int> facts_of(const std::string& on) {
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  const auto cluster = spec::read_on(spec::word(on, whole_file("--on")), devices, faults);
  faults.throw_if_any();
  DeviceFacts facts;
  facts.name = cluster->device.gpu;
  facts.compute_capability = cluster->device.compute_capability;
  if (cluster->device.usable) facts.usable_bytes = cluster->device.usable->value.count();
  if (cluster->device.multiprocessors) {
    facts.multiprocessors = static_cast<int>(cluster->device.multiprocessors->value);
  }
  return {facts, static_cast<int>(cluster->count)};
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", std::gmtime(&now));
  return text.data();
}

/// The profile of what was measured, over the device's own file where the catalogue has one.
void write_profile(const Findings& findings, const CommandOptions& options, std::ostream& err) {
  if (findings.machine.stand_in) {
    err << "note: " << options.profile << " is not written: nothing was measured on a stand-in\n";
    return;
  }
  const DeviceFacts& facts = findings.machine.devices[static_cast<std::size_t>(findings.device)];
  const std::string path = catalogue_file(facts);
  Diagnostics faults;
  std::optional<spec::Node> base;
  if (!path.empty()) base = spec::read_file(path, faults);
  faults.throw_if_any();
  std::string name = options.name;
  if (name.empty() && base) name = base->child("name")->text;
  std::ofstream out(options.profile, std::ios::binary);
  out << yaml_text(device_profile(findings, base ? &*base : nullptr, name, today()));
  out.flush();
  if (!out) throw InputError(whole_file(options.profile), "the file cannot be written");
  err << "wrote " << options.profile << ": shardfit plan --device-profile " << options.profile
      << "\n";
}

}  // namespace

std::int64_t margin_of(const CommandOptions& options) {
  constexpr Bytes most{std::int64_t{1} << 50};
  const auto parsed = parse_bytes(options.margin);
  const std::string words = "--margin: " + quoted(options.margin) + " ";
  if (!parsed.value) refuse(words + parsed.problem, {"such as 512MiB"});
  if (*parsed.value < Bytes(0)) refuse(words + "is negative");
  if (*parsed.value > most) refuse(words + "is more than any device has");
  return parsed.value->count();
}

int list_command(const CommandOptions& options, std::ostream& out) {
  out << list_text(find_machine(), options.run, options.json);
  return done;
}

int run_command(CommandOptions options, std::ostream& out, std::ostream& err) {
  check_names(options.run);
  options.run.margin = margin_of(options);
  if (!options.plan.empty()) {
    options.run.products =
        products_of(read_planned(options.plan, options.option, options.programs));
  }
  const Machine machine = find_machine();
  const auto count = static_cast<int>(machine.devices.size());
  if (count > 0 && options.run.device >= count) {
    refuse("--device " + std::to_string(options.run.device) + ": the last device is " +
           std::to_string(count - 1));
  }
  if (options.dry_run) {
    if (count == 0) {
      const auto [facts, devices] = facts_of(options.on);
      out << dry_run_text(facts, devices, machine, options.run, options.json);
    } else {
      out << dry_run_text(machine.devices[static_cast<std::size_t>(options.run.device)], count,
                          machine, options.run, options.json);
    }
    return done;
  }
  if (count == 0) {
    say_waived(machine.waived, options.json, out, err);
    return waived;
  }
  if (!options.profile.empty()) {
    check_profile(options.profile, options.name, machine, options.run.device);
  }
  const Findings findings = run_benchmarks(machine, options.run, err);
  out << (options.json ? findings_json(findings) : findings_text(findings));
  if (!options.profile.empty()) write_profile(findings, options, err);
  return findings.failed.empty() ? done : off;
}

}  // namespace shardfit::calibrate
