#pragma once
// The caching allocator's calls of the driver, done on a real device.

#include <map>
#include <vector>

#include "calibrate/gpu/objects.h"
#include "calibrate/gpu/virtual_memory.h"
#include "run/allocator.h"

namespace shardfit::calibrate {

/// Everything taken is given back at the end, whatever happened. The device must be current in
/// every call.
class Segments : public run::DriverCalls {
 public:
  Segments(int device, std::int64_t margin) : memory_(device), margin_(margin) {}

  /// Refuses where the device says out of memory, and where less than the margin would stay free.
  bool take(std::int64_t address, std::int64_t bytes, std::int64_t page) override;
  void give(std::int64_t address, std::int64_t bytes, std::int64_t page) override;
  void reserve(std::int64_t address, std::int64_t bytes) override;
  void unreserve(std::int64_t address) override;

  /// Where an address of the allocator lies on the device.
  void* real(std::int64_t address) const;
  /// Most bytes in use on the device when something was taken.
  std::int64_t device_peak() const { return device_peak_; }
  void reset_peak() { device_peak_ = 0; }
  /// Requests that the device refused although the allocator counted on them.
  std::int64_t refused() const { return refused_; }

 private:
  bool map_pages(std::int64_t address, std::int64_t bytes, std::int64_t page);

  VirtualMemory memory_;
  std::int64_t margin_;
  std::map<std::int64_t, Buffer> segments_;              // by the allocator's address
  std::map<std::int64_t, VirtualMemory::Range> ranges_;  // before the pages in them
  std::map<std::int64_t, VirtualMemory::Page> pages_;
  std::int64_t device_peak_ = 0, refused_ = 0;
};

}  // namespace shardfit::calibrate
