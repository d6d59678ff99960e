#include "run/machine.h"

#include <algorithm>

#include "base/format.h"

namespace shardfit::run {
namespace {

double rate_of(const spec::DeviceSpec& device, const char* dtype) {
  const auto found = device.peak_rates.find(dtype);
  return found == device.peak_rates.end() ? 0 : found->second.value.value();
}

/// Where a file gives no number of multiprocessors, that of a device of today's size: it only
/// rounds products to whole waves.
constexpr double usual_multiprocessors = 132;

}  // namespace

Machine machine_of(const spec::ClusterSpec& cluster) {
  const spec::DeviceSpec& device = cluster.device;
  Machine machine;
  machine.name = device.name;
  if (device.bandwidth) machine.device.bandwidth = device.bandwidth->value.value();
  machine.device.multiprocessors = device.multiprocessors
                                       ? static_cast<double>(device.multiprocessors->value)
                                       : usual_multiprocessors;
  machine.device.bf16 = rate_of(device, "bf16");
  machine.device.fp16 = rate_of(device, "fp16");
  machine.device.tf32 = rate_of(device, "tf32");
  machine.device.fp32 = rate_of(device, "fp32");
  machine.device.fp8 = rate_of(device, "fp8");
  machine.device.fp4 = rate_of(device, "fp4");
  machine.capability_major = static_cast<int>(parse_real(device.compute_capability).value_or(0));
  if (device.link.per_pair) {
    machine.link.bytes_per_second = device.link.per_pair->value.value();
  }
  if (machine.device.bandwidth <= 0) machine.missing = "memory bandwidth";
  if (machine.device.bf16 <= 0) machine.missing = "peak rate in bf16";
  if (cluster.count > 1 && machine.link.bytes_per_second <= 0) {
    machine.missing = "link between its devices";
  }
  if (!machine.missing.empty()) {
    machine.missing = "no sourced number for the " + machine.missing + " of " + device.name;
  }
  return machine;
}

}  // namespace shardfit::run
