// Which devices are there, and the run over the table.
#include <dlfcn.h>

#include <algorithm>
#include <optional>
#include <ostream>

#include "calibrate/commands.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {
namespace {

std::string version_words(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

DeviceFacts facts_of(int device, const Nvml& nvml) {
  void* const known = nvml.device(bus_id(device));  // needs no context yet
  const auto before = nvml.used_bytes(known);
  cudaDeviceProp properties{};
  CUDA(cudaGetDeviceProperties(&properties, device));
  const OnDevice on(device);
  const MemoryInfo memory = memory_info();
  DeviceFacts facts;
  facts.index = device;
  facts.name = properties.name;
  facts.compute_capability =
      std::to_string(properties.major) + "." + std::to_string(properties.minor);
  facts.usable_bytes = memory.total;
  facts.free_bytes = memory.free;
  facts.l2_bytes = properties.l2CacheSize;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.used_before = before.value_or(-1);
  facts.used_after = nvml.used_bytes(known).value_or(-1);
  return facts;
}

void look(Machine& machine) {
  int driver = 0, runtime = 0, count = 0;
  CUDA(cudaRuntimeGetVersion(&runtime));
  machine.runtime = version_words(runtime);
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess || count == 0) {
    machine.waived =
        std::string("no CUDA device") +
        (counted == cudaSuccess ? "" : std::string(": ") + cudaGetErrorString(counted));
    return;
  }
  CUDA(cudaDriverGetVersion(&driver));
  machine.driver_cuda = version_words(driver);
  const Nvml nvml;
  for (int device = 0; device < count; ++device) machine.devices.push_back(facts_of(device, nvml));
  machine.driver = nvml.driver();
  machine.clocks = nvml.clocks(nvml.device(bus_id(0)));
  for (const auto& [title, library] :
       {std::pair{"cuBLAS", cublas()}, {"cuBLASLt", cublas_lt()}, {"NCCL", nccl()}}) {
    if (!library.there()) machine.missing[title] = library.missing();
  }
  machine.stand_in = dlsym(RTLD_DEFAULT, "shardfit_stand_in") != nullptr || !kernels_run();
}

}  // namespace

Machine find_machine() {
  Machine machine;
  try {
    look(machine);
  } catch (const std::exception& error) {
    machine.devices.clear();
    machine.waived = std::string("no usable CUDA device: ") + error.what();
  }
  return machine;
}

Findings run_benchmarks(const Machine& machine, const RunOptions& options, std::ostream& progress) {
  Findings findings;
  findings.machine = machine;
  findings.device = options.device;
  std::optional<Session> begun;
  try {
    begun.emplace(machine, options, findings);
  } catch (const std::exception& error) {
    findings.failed.push_back({"the start", error.what()});
    return findings;
  }
  Session& session = *begun;
  for (const Benchmark& row : benchmarks()) {
    const std::string name = row.name;
    if (!options.only.empty() &&
        std::find(options.only.begin(), options.only.end(), name) == options.only.end()) {
      continue;
    }
    std::string reason = waived_because(row, session.facts(),
                                        static_cast<int>(machine.devices.size()), machine, options);
    if (session.late()) reason = "the time of --quick is used up";
    if (!reason.empty()) {
      findings.waived.push_back({name, reason});
      continue;
    }
    progress << name << "\n";
    try {
      session.begin(row);
      row.run(session);
      CUDA(cudaDeviceSynchronize());
    } catch (const std::exception& error) {
      findings.failed.push_back({name, error.what()});
      // A lost device stays lost: what follows would fail with the same words.
      if (cudaDeviceSynchronize() != cudaSuccess) {
        findings.failed.push_back({"the rest", "the device does not answer any more"});
        break;
      }
    }
  }
  return findings;
}

}  // namespace shardfit::calibrate
