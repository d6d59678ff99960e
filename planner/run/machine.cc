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

/// Half width of a step's time where nothing of the device's architecture was measured.
constexpr double unmeasured_interval = 0.5;

/// What a pair moves in both directions where peer access is off, over what it moves with it: A40
/// over PCIe 4, 19 to 21 of 40 to 50 GB/s (NVIDIA/nccl-tests#74, p2pBandwidthLatencyTest). A
/// GeForce pair: 21 to 30 GB/s in both directions (NVIDIA/nccl#814).
constexpr double through_host = 0.45;

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
  if (device.speed) {
    machine.speed = *device.speed;
    machine.interval = device.speed->interval;
  }
  if (device.link.per_pair) {
    machine.link.bytes_per_second = device.link.per_pair->value.value();
    if (!device.link.peer_access) machine.link.bytes_per_second *= through_host;
  }
  // Without measured products: the share that a search for the best large one reached.
  if (machine.speed.products.empty() && device.achieved_matmul_share_bf16) {
    machine.speed.products["bf16"].peak_share = device.achieved_matmul_share_bf16->value;
    machine.speed.products["bf16"].sustained_share = 1;
  }
  if (!device.speed) machine.interval = unmeasured_interval;
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
