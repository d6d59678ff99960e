#pragma once
// NVML, where it is there: driver version, clocks, throttling, bytes of this process. Its header is
// not needed; the numbers are those of NVIDIA's NVML reference (nvml.h).

#include <cstdint>
#include <optional>
#include <string>

#include "calibrate/gpu/library.h"

namespace shardfit::calibrate {

class Nvml {
 public:
  Nvml();
  bool there() const { return ready_; }
  const std::string& missing() const { return missing_; }

  std::string driver() const;
  /// Of the device with this PCI bus id ("0000:01:00.0"); null where NVML does not know it.
  void* device(const std::string& bus_id) const;
  /// "SM 1980 MHz, memory 3201 MHz at most".
  std::string clocks(void* device) const;
  /// Whether heat or a power brake holds the clocks down now; a power cap is normal work and does
  /// not count.
  bool throttled(void* device) const;
  /// What is in use on the device, by whomever; nothing where NVML is not there.
  std::optional<std::int64_t> used_bytes(void* device) const;
  /// What this process uses of the device; nothing where the driver does not say (containers).
  std::optional<std::int64_t> process_bytes(void* device) const;

 private:
  Library library_;
  bool ready_ = false;
  std::string missing_;
};

}  // namespace shardfit::calibrate
