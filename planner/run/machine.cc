#include "run/machine.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

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

/// Bytes a second and direction of sixteen lanes, where "PCIe N" names their generation: 15.75 GB/s
/// of the third, twice as much with each after it (PCI-SIG); 0 where it does not.
double host_rate(const std::string& host_link) {
  constexpr std::string_view name = "PCIe ";
  if (!host_link.starts_with(name) || host_link.size() == name.size()) return 0;
  const int generation = host_link[name.size()] - '0';
  return generation >= 3 && generation <= 6 ? 15.75e9 * (1 << (generation - 3)) : 0;
}

/// Where a product is smaller, its start weighs more than its rate.
constexpr std::int64_t least_of_rate = 512;

double peak_of(const DeviceRates& device, const std::string& rate) {
  if (rate == "bf16") return device.bf16;
  if (rate == "fp16") return device.fp16 > 0 ? device.fp16 : device.bf16;
  return rate == "fp32" ? device.fp32 : 0;
}

/// Measured over predicted times, the median of each rate.
std::map<std::string, double> product_scales(const Machine& machine,
                                             const spec::MeasuredSpec& measured) {
  const auto fitted = machine.speed.products.find("bf16");
  const spec::ProductSpeed speed =
      fitted != machine.speed.products.end() ? fitted->second : spec::ProductSpeed{};
  std::map<std::string, std::vector<double>> ratios;
  for (const spec::ProductSeen& seen : measured.times) {
    const double peak = peak_of(machine.device, seen.rate);
    if (peak <= 0 || machine.device.bandwidth <= 0 || seen.time.value() <= 0) continue;
    if (std::min({seen.m, seen.n, seen.k}) < least_of_rate) continue;
    const double bytes = seen.rate == "fp32" ? 4 : 2;
    const ProductShape shape{static_cast<double>(seen.m),
                             static_cast<double>(seen.n),
                             static_cast<double>(seen.k),
                             1,
                             bytes,
                             bytes};
    ratios[seen.rate].push_back(seen.time.value() /
                                product_seconds(speed, machine.device, peak, shape));
  }
  std::map<std::string, double> scales;
  for (auto& [rate, list] : ratios) {
    const auto middle = list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2);
    std::nth_element(list.begin(), middle, list.end());
    scales[rate] = *middle;
  }
  return scales;
}

/// The measured line of an exchange between all devices, null where there is none.
const spec::MeasuredLine* line_of(const spec::MeasuredSpec& measured, CollectiveKind kind,
                                  std::int64_t ranks) {
  const std::string name =
      std::string("collective, ") + collective_name(kind) + " all " + std::to_string(ranks);
  for (const spec::MeasuredLine& line : measured.lines) {
    if (line.name == name && line.bandwidth.value() > 0) return &line;
  }
  return nullptr;
}

constexpr CollectiveKind measured_kinds[] = {CollectiveKind::all_reduce, CollectiveKind::all_gather,
                                             CollectiveKind::reduce_scatter,
                                             CollectiveKind::all_to_all, CollectiveKind::send};

/// What was measured on the device in place of what was fitted or assumed.
void take_measured(Machine& machine, const spec::MeasuredSpec& measured, std::int64_t count) {
  if (measured.launch) machine.host.launch_seconds = measured.launch->value();
  machine.speed.product_scale = product_scales(machine, measured);
  if (machine.link.bytes_per_second <= 0) return;
  for (const CollectiveKind kind : measured_kinds) {
    const spec::MeasuredLine* line = line_of(measured, kind, count);
    if (!line) continue;
    spec::CollectiveSpeed& speed = machine.speed.collectives[collective_name(kind)];
    speed.few_ranks = speed.crowding = 0;
    // Bytes of the whole buffer went in so many seconds; on the link there are bytes_on_link().
    const double sent = bytes_on_link(kind, 1, static_cast<int>(count));
    speed.protocols.fill(
        {line->latency.value(), 0, sent * line->bandwidth.value() / machine.link.bytes_per_second});
  }
}

}  // namespace

std::string measured_words(const spec::ClusterSpec& cluster) {
  const auto& measured = cluster.device.measured;
  if (!measured) return "";
  std::string words;
  const auto add = [&](const std::string& part) { words += (words.empty() ? "" : ", ") + part; };
  if (measured->launch) add("launches of " + format_seconds(*measured->launch));
  for (const auto& [rate, scale] : machine_of(cluster).speed.product_scale) {
    add(rate + " products in " + format_percent(scale) + " of the time predicted");
  }
  for (const CollectiveKind kind : measured_kinds) {
    const spec::MeasuredLine* line = line_of(*measured, kind, cluster.count);
    if (line) add(std::string(collective_name(kind)) + " at " + format_rate(line->bandwidth));
  }
  return words;
}

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
    if (!device.link.peer_access) {
      double& rate = machine.link.bytes_per_second;
      if (const double host = host_rate(device.host_link); host > 0) rate = std::min(rate, host);
      rate *= through_host;
    }
  }
  // Without measured products: the share that a search for the best large one reached.
  if (machine.speed.products.empty() && device.achieved_matmul_share_bf16) {
    machine.speed.products["bf16"].peak_share = device.achieved_matmul_share_bf16->value;
    machine.speed.products["bf16"].sustained_share = 1;
  }
  if (device.measured) take_measured(machine, *device.measured, cluster.count);
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
