#pragma once
// Mapped device memory (cuMemCreate, cuMemMap) through the driver's library, as expandable segments
// use it.

#include <cuda.h>

#include <cstdint>
#include <string>
#include <utility>

#include "calibrate/gpu/library.h"

namespace shardfit::calibrate {

/// Of one device. The object must outlive its ranges and pages.
class VirtualMemory {
 public:
  explicit VirtualMemory(int device);
  bool there() const { return library_.there(); }
  const std::string& missing() const { return library_.missing(); }
  std::int64_t granularity(bool recommended) const;

  /// Address space, given back at the end; its pages must be gone by then.
  class Range {
   public:
    Range(const VirtualMemory& of, std::int64_t bytes);
    Range(Range&& o) noexcept
        : of_(o.of_), address_(std::exchange(o.address_, 0)), bytes_(o.bytes_) {}
    Range& operator=(Range&&) = delete;
    ~Range();
    std::int64_t address() const { return static_cast<std::int64_t>(address_); }

   private:
    const VirtualMemory* of_;
    CUdeviceptr address_ = 0;
    std::size_t bytes_;
  };
  /// Memory mapped at an address, readable and writable by the device.
  class Page {
   public:
    Page(const VirtualMemory& of, std::int64_t address, std::int64_t bytes);
    Page(Page&& o) noexcept
        : of_(o.of_),
          address_(o.address_),
          bytes_(o.bytes_),
          handle_(std::exchange(o.handle_, 0)),
          mapped_(std::exchange(o.mapped_, false)) {}
    Page& operator=(Page&&) = delete;
    ~Page();

   private:
    void release();
    const VirtualMemory* of_;
    CUdeviceptr address_;
    std::size_t bytes_;
    CUmemGenericAllocationHandle handle_ = 0;
    bool mapped_ = false;
  };

  Range reserve(std::int64_t bytes) const { return {*this, bytes}; }
  Page map(std::int64_t address, std::int64_t bytes) const { return {*this, address, bytes}; }

 private:
  CUmemAllocationProp properties() const;

  Library library_;
  int device_;
  decltype(&cuMemGetAllocationGranularity) granularity_ = nullptr;
  decltype(&cuMemAddressReserve) reserve_ = nullptr;
  decltype(&cuMemAddressFree) free_ = nullptr;
  decltype(&cuMemCreate) create_ = nullptr;
  decltype(&cuMemRelease) release_ = nullptr;
  decltype(&cuMemMap) map_ = nullptr;
  decltype(&cuMemUnmap) unmap_ = nullptr;
  decltype(&cuMemSetAccess) access_ = nullptr;
};

}  // namespace shardfit::calibrate
