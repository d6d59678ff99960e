#include "calibrate/gpu/nvml.h"

#include <unistd.h>

#include <array>
#include <vector>

namespace shardfit::calibrate {
namespace {

constexpr int success = 0;
constexpr int clock_sm = 1, clock_memory = 2;
/// nvmlClocksEventReason: hardware slowdown, software thermal, hardware thermal, power brake.
constexpr unsigned long long slowed = 0x8 | 0x20 | 0x40 | 0x80;

/// nvmlProcessInfo_t of nvmlDeviceGetComputeRunningProcesses_v3.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned long long not_available = ~0ULL;

}  // namespace

Nvml::Nvml()
    : library_("NVML", "nvmlInit_v2", {"libnvidia-ml.so.1"}), missing_(library_.missing()) {
  if (!library_.there()) return;
  int (*init)() = nullptr;
  library_.get_optional(init, "nvmlInit_v2");
  const int error = init ? init() : -1;
  ready_ = error == success;
  if (!ready_) missing_ = "NVML does not start (error " + std::to_string(error) + ")";
}

std::string Nvml::driver() const {
  if (!ready_) return "";
  int (*version)(char*, unsigned) = nullptr;
  library_.get_optional(version, "nvmlSystemGetDriverVersion");
  std::array<char, 96> text{};
  if (!version || version(text.data(), text.size()) != success) return "";
  return text.data();
}

void* Nvml::device(const std::string& bus_id) const {
  if (!ready_) return nullptr;
  int (*find)(const char*, void**) = nullptr;
  library_.get_optional(find, "nvmlDeviceGetHandleByPciBusId_v2");
  void* device = nullptr;
  if (!find || find(bus_id.c_str(), &device) != success) return nullptr;
  return device;
}

std::string Nvml::clocks(void* device) const {
  int (*most)(void*, int, unsigned*) = nullptr;
  if (device) library_.get_optional(most, "nvmlDeviceGetMaxClockInfo");
  unsigned sm = 0, memory = 0;
  if (!most || most(device, clock_sm, &sm) != success ||
      most(device, clock_memory, &memory) != success) {
    return "";
  }
  return "SM " + std::to_string(sm) + " MHz, memory " + std::to_string(memory) + " MHz at most";
}

bool Nvml::throttled(void* device) const {
  int (*reasons)(void*, unsigned long long*) = nullptr;
  if (device) library_.get_optional(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
  unsigned long long mask = 0;
  return reasons && reasons(device, &mask) == success && (mask & slowed) != 0;
}

std::optional<std::int64_t> Nvml::used_bytes(void* device) const {
  struct Memory {  // nvmlMemory_t
    unsigned long long total, free, used;
  } memory{};
  int (*read)(void*, Memory*) = nullptr;
  if (device) library_.get_optional(read, "nvmlDeviceGetMemoryInfo");
  if (!read || read(device, &memory) != success) return {};
  return static_cast<std::int64_t>(memory.used);
}

std::optional<std::int64_t> Nvml::process_bytes(void* device) const {
  int (*list)(void*, unsigned*, ProcessInfo*) = nullptr;
  if (device) library_.get_optional(list, "nvmlDeviceGetComputeRunningProcesses_v3");
  if (!list) return {};
  std::vector<ProcessInfo> processes(256);
  auto count = static_cast<unsigned>(processes.size());
  if (list(device, &count, processes.data()) != success) return {};
  for (unsigned i = 0; i < count; ++i) {
    if (processes[i].pid != static_cast<unsigned>(getpid())) continue;
    if (processes[i].used == not_available) return {};
    return static_cast<std::int64_t>(processes[i].used);
  }
  return {};
}

}  // namespace shardfit::calibrate
