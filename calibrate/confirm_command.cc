// confirm and smoke: reading the plan, refusing what cannot run, printing what came of it.
#include <algorithm>
#include <ostream>

#include "base/format.h"
#include "calibrate/cli.h"
#include "calibrate/commands.h"
#include "calibrate/confirm.h"
#include "calibrate/json.h"
#include "calibrate/report.h"
#include "calibrate/smoke.h"
#include "report/report.h"

namespace shardfit::calibrate {
namespace {

struct Counts {
  std::int64_t storages = 0, products = 0, attentions = 0, others = 0, collectives = 0;
};

Counts counts_of(const Program& program) {
  Counts counts;
  for (const Instruction& i : program.instructions) {
    counts.storages += i.action == Action::allocate;
    counts.collectives += i.action == Action::collective;
    if (i.action != Action::compute) continue;
    const Work work = work_of(program.computes[i.id]);
    ++(work == Work::product     ? counts.products
       : work == Work::attention ? counts.attentions
                                 : counts.others);
  }
  return counts;
}

std::string dry_text(const PlannedOption& option, const Machine& machine,
                     const ConfirmOptions& options) {
  std::string text;
  if (!machine.waived.empty()) text += report::wrapped("waived here: " + machine.waived, 2);
  text += "would replay option " + option.name + ", twice: through the caching allocator and\n  " +
          "stream-ordered\n";
  for (const PlannedGpu& gpu : option.gpus) {
    const Program& program = gpu.program.program;
    const Counts counts = counts_of(program);
    text += "  rank " + std::to_string(gpu.rank) + " on device " + std::to_string(gpu.index) +
            ": " + std::to_string(steps_of(program)) + " steps, the first one to warm up; " +
            format_count(counts.storages) + " storages,\n    " + format_count(counts.products) +
            " products, " + format_count(counts.attentions) + " attentions, " +
            format_count(counts.others) + " other operators, " + format_count(counts.collectives) +
            " collectives;\n    device bytes up to " + format_bytes(Bytes(gpu.device)) + "\n";
  }
  const PlannedGpu& first = option.gpus.front();
  const std::string larger = too_large(option, first.usable, first.context + options.margin);
  if (!larger.empty()) text += "would be refused: " + larger + "\n";
  text += "  at most " + format_seconds(Seconds(options.budget_seconds)) + "; the last " +
          format_bytes(Bytes(options.margin)) + " of a device are never taken\n";
  return text;
}

/// The same for programs.
std::string dry_json(const PlannedOption& option, const Machine& machine,
                     const ConfirmOptions& options) {
  const PlannedGpu& first = option.gpus.front();
  Json out;
  out.object([&] {
    out.boolean("dry_run", true);
    out.text("waived", machine.waived);
    out.text("option", option.name);
    out.text("refused", too_large(option, first.usable, first.context + options.margin));
    out.real("budget_seconds", options.budget_seconds);
    out.number("margin_bytes", options.margin);
    out.array("gpus", option.gpus, [&](const PlannedGpu& gpu) {
      const Counts counts = counts_of(gpu.program.program);
      out.object([&] {
        out.number("rank", gpu.rank);
        out.number("device", gpu.index);
        out.number("steps", steps_of(gpu.program.program));
        out.number("storages", counts.storages);
        out.number("products", counts.products);
        out.number("attentions", counts.attentions);
        out.number("other_operators", counts.others);
        out.number("collectives", counts.collectives);
        out.number("device_bytes", gpu.device);
      });
    });
  });
  return out.result();
}

ConfirmOptions confirm_options(const CommandOptions& options) {
  const auto refuse = [](const std::string& message, std::vector<std::string> notes) {
    throw InputError(whole_file("command line"), message, std::move(notes));
  };
  ConfirmOptions confirm;
  confirm.margin = margin_of(options);
  const auto budget = parse_seconds(options.budget);
  if (!budget.value) {
    refuse("--gpu-budget: " + quoted(options.budget) + " " + budget.problem, {"such as 60s"});
  }
  if (budget.value->value() <= 0) {
    refuse("--gpu-budget: " + quoted(options.budget) + " is no time above 0", {"such as 60s"});
  }
  confirm.budget_seconds = budget.value->value();
  return confirm;
}

/// Why this machine cannot take the plan; "" where it can.
std::string missing_devices(const PlannedOption& option, const Machine& machine) {
  if (machine.devices.empty()) return machine.waived;
  std::size_t needed = 0;
  for (const PlannedGpu& gpu : option.gpus) {
    needed = std::max(needed, static_cast<std::size_t>(gpu.index) + 1);
  }
  if (needed > machine.devices.size()) {
    return "the option needs " + std::to_string(needed) + " devices, " +
           std::to_string(machine.devices.size()) + (machine.devices.size() == 1 ? " is" : " are") +
           " here";
  }
  for (const char* library : {"cuBLAS", "NCCL"}) {
    if (library == std::string("NCCL") && option.gpus.size() < 2) continue;
    const auto missing = machine.missing.find(library);
    if (missing != machine.missing.end()) return missing->second;
  }
  return "";
}

}  // namespace

int confirm_command(const CommandOptions& options, std::ostream& out, std::ostream& err) {
  const ConfirmOptions how = confirm_options(options);
  const PlannedOption option = read_planned(options.plan, options.option, options.programs);
  const Machine machine = find_machine();
  if (options.dry_run) {
    out << (options.json ? dry_json(option, machine, how) : dry_text(option, machine, how));
    return done;
  }
  const std::string missing = missing_devices(option, machine);
  if (!missing.empty()) {
    say_waived(missing, options.json, out, err);
    return waived;
  }
  // The smallest of the devices, with what is in use on it already.
  std::int64_t usable = machine.devices.front().usable_bytes, taken = 0;
  for (const PlannedGpu& gpu : option.gpus) {
    const DeviceFacts& facts = machine.devices[static_cast<std::size_t>(gpu.index)];
    usable = std::min(usable, facts.usable_bytes);
    taken = std::max(taken, facts.usable_bytes - facts.free_bytes);
  }
  const std::string larger = too_large(option, usable, taken + how.margin);
  if (!larger.empty()) {
    if (options.json) {
      Json refused;
      refused.object([&] {
        refused.text("version", "1");
        refused.boolean("stand_in", machine.stand_in);
        refused.text("option", option.name);
        refused.boolean("confirmed", false);
        refused.text("refused", larger);
        refused.number("margin_bytes", how.margin);
      });
      out << refused.result();
      return off;
    }
    if (machine.stand_in) out << stand_in_words << "\n";
    out << "larger than the card, with a margin of " << format_bytes(Bytes(how.margin))
        << "; nothing was allocated\n  " << larger << "\n";
    return off;
  }
  const Confirmation confirmation = run_confirm(machine, option, how);
  out << (options.json ? confirmation_json(confirmation) : confirmation_text(confirmation));
  return judge(confirmation).confirmed ? done : off;
}

namespace {

/// The most that one operator takes of the device, beside libraries.
std::int64_t smoke_bytes(const std::vector<SmokeCase>& cases) {
  std::int64_t most = 0;
  for (const SmokeCase& c : cases) most = std::max(most, smoke_bytes(c));
  return most;
}

std::string dry_smoke_text(const PlannedOption& option, const Machine& machine) {
  const std::vector<SmokeCase> cases = smoke_cases(option);
  std::string text;
  if (!machine.waived.empty()) text += report::wrapped("waived here: " + machine.waived, 2);
  text += "would run once, against a reference in double precision on the host:\n";
  for (const SmokeCase& c : cases) {
    text += "  " + std::string(c.kind) + " " + dtype_name(c.dtype) +
            (c.backward ? " backward: " : ": ");
    text +=
        c.test == SmokeTest::none ? "not tested: " + c.why : test_name(c) + ", by " + tested_by(c);
    text += "\n";
  }
  text += report::wrapped(
      "  " + std::to_string(cases.size()) + " operators, at most " +
          format_bytes(Bytes(smoke_bytes(cases))) +
          " of the device beside cuBLAS, some seconds: the references take the host "
          "longer",
      4);
  return text;
}

std::string dry_smoke_json(const PlannedOption& option, const Machine& machine) {
  const std::vector<SmokeCase> cases = smoke_cases(option);
  Json out;
  out.object([&] {
    out.boolean("dry_run", true);
    out.text("waived", machine.waived);
    out.number("device_bytes", smoke_bytes(cases));
    out.array("operators", cases, [&](const SmokeCase& c) {
      out.object([&] {
        out.text("kind", c.kind);
        out.text("dtype", dtype_name(c.dtype));
        out.boolean("backward", c.backward);
        out.text("test", test_name(c));
        out.text("by", tested_by(c));
        out.text("not_tested", c.why);
      });
    });
  });
  return out.result();
}

}  // namespace

int smoke_command(const CommandOptions& options, std::ostream& out, std::ostream& err) {
  const PlannedOption option = read_planned(options.plan, options.option, options.programs);
  const Machine machine = find_machine();
  if (options.dry_run) {
    out << (options.json ? dry_smoke_json(option, machine) : dry_smoke_text(option, machine));
    return done;
  }
  if (machine.devices.empty() || machine.missing.count("cuBLAS")) {
    say_waived(machine.devices.empty() ? machine.waived : machine.missing.at("cuBLAS"),
               options.json, out, err);
    return waived;
  }
  const SmokeReport report = run_smoke(machine, option);
  out << (options.json ? smoke_json(report) : smoke_text(report));
  return report.right() ? done : off;
}

}  // namespace shardfit::calibrate
