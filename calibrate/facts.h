#pragma once
// What is known of the devices of this machine. No CUDA types: everything here works without a card
// and without a CUDA compiler.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace shardfit::calibrate {

/// One device, as the runtime describes it, or as a device file does for a dry run.
struct DeviceFacts {
  int index = 0;
  std::string name;                // "NVIDIA H200"
  std::string compute_capability;  // "9.0"
  std::int64_t usable_bytes = 0;   // total as the runtime reports it
  std::int64_t free_bytes = 0;     // when the program started
  std::int64_t l2_bytes = 0;       // 0: unknown
  int multiprocessors = 0;
  std::int64_t used_before = -1;  // by NVML, before this process made a context; -1: not known
  std::int64_t used_after = -1;   // and after
};

/// The devices and the software around them.
struct Machine {
  std::vector<DeviceFacts> devices;
  std::string driver;       // "580.95.05"; "" where NVML is not there
  std::string driver_cuda;  // newest CUDA the driver supports, "13.0"
  std::string runtime;      // "13.0"
  std::string clocks;       // "SM 1980 MHz, memory 3201 MHz at most"; "" where NVML is not there
  bool stand_in = false;    // no card: nothing measured here is a measurement
  std::string waived;       // why there is no device; "" where there is one
  std::map<std::string, std::string> missing;  // "NCCL": why that library cannot be used
};

/// Looks for devices; never throws. Where there is none, `waived` says why.
Machine find_machine();

/// "CUDA 13.0, driver 580.95.05", as far as known.
std::string software_words(const Machine& machine);

}  // namespace shardfit::calibrate
