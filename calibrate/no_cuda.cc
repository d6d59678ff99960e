// In place of gpu/ and benchmarks/ where the program is built without a CUDA compiler.
#include "calibrate/commands.h"
#include "calibrate/confirm.h"
#include "calibrate/smoke.h"

namespace shardfit::calibrate {

Machine find_machine() {
  Machine machine;
  machine.waived = std::string("this program has no CUDA part: ") + SHARDFIT_NO_CUDA_BECAUSE;
  return machine;
}

Findings run_benchmarks(const Machine& machine, const RunOptions&, std::ostream&) {
  Findings findings;
  findings.machine = machine;
  return findings;
}

// Nobody asks these without a device.
Confirmation run_confirm(const Machine&, const PlannedOption&, const ConfirmOptions&) { return {}; }
SmokeReport run_smoke(const Machine&, const PlannedOption&) { return {}; }

}  // namespace shardfit::calibrate
