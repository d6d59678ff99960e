#include <fstream>
#include <ostream>

#include "base/diagnostic.h"
#include "base/format.h"
#include "calibrate/cli.h"
#include "calibrate/commands.h"
#include "calibrate/plan_file.h"
#include "calibrate/report.h"
#include "spec/cluster_spec.h"
#include "spec/data_directory.h"
#include "spec/reader.h"

namespace shardfit::calibrate {
namespace {

[[noreturn]] void refuse(const std::string& message, std::vector<std::string> notes = {}) {
  throw InputError(whole_file("command line"), message, std::move(notes));
}

std::int64_t bytes_of(const std::string& option, const std::string& text) {
  const auto parsed = parse_bytes(text);
  if (!parsed.value) refuse(option + ": " + quoted(text) + " " + parsed.problem);
  if (*parsed.value < Bytes(0)) refuse(option + ": " + quoted(text) + " is negative");
  return parsed.value->count();
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

}  // namespace

int list_command(const CommandOptions& options, std::ostream& out) {
  out << list_text(find_machine(), options.run, options.json);
  return done;
}

int run_command(CommandOptions options, std::ostream& out, std::ostream& err) {
  check_names(options.run);
  options.run.margin = bytes_of("--margin", options.margin);
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
    err << "waived: " << machine.waived << "\n";
    return waived;
  }
  const Findings findings = run_benchmarks(machine, options.run, err);
  out << (options.json ? findings_json(findings) : findings_text(findings));
  return findings.failed.empty() ? done : off;
}

}  // namespace shardfit::calibrate
