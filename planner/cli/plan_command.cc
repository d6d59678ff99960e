#include "cli/plan_command.h"

#include <ostream>

#include "base/format.h"
#include "cli/cli.h"
#include "spec/cluster_spec.h"
#include "spec/data_directory.h"
#include "spec/job_spec.h"

namespace shardfit::cli {
namespace {

/// "note: --sequence 8192 wins over 4096 at plan.yaml:3:13".
void say_overrides(const spec::PlanSpec& plan, std::ostream& err) {
  for (const spec::Override& override : plan.overrides) {
    const bool line = override.winner_where.file() == "command line";
    err << "note: " << (line ? "--" : "") << override.key << " " << override.winner << " wins over "
        << override.loser << " at " << override.loser_where.text() << "\n";
  }
}

}  // namespace

int plan_command(const PlanOptions& options, std::ostream& out, std::ostream& err) {
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  const spec::PlanSpec plan = spec::read_plan(options.files, options.job, devices, faults);
  faults.throw_if_any();
  say_overrides(plan, err);
  for (const spec::OptionSpec& option : plan.options) {
    const auto& usable = option.cluster.device.usable;
    out << option.name << ": " << option.cluster.count << " x " << option.cluster.device.gpu << ", "
        << (usable ? format_bytes(usable->value) + " usable each" : "usable bytes unknown") << "\n";
    for (const spec::Assumption& assumption : option.job.assumptions) {
      out << "  assumed " << assumption.key << " " << assumption.value << ": " << assumption.because
          << "\n";
    }
  }
  err << "shardfit: the job reads well; this build does not predict yet\n";
  return our_bug;
}

}  // namespace shardfit::cli
