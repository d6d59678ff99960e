#include "calibrate/gpu/segments.h"

#include <algorithm>
#include <stdexcept>

namespace shardfit::calibrate {

bool Segments::take(std::int64_t address, std::int64_t bytes, std::int64_t page) {
  if (memory_info().free - bytes < margin_) {
    ++refused_;
    return false;
  }
  try {
    if (page == 0) {
      segments_.emplace(address, Buffer(bytes));
    } else if (!map_pages(address, bytes, page)) {
      ++refused_;
      return false;
    }
  } catch (const CudaError& error) {
    if (!error.out_of_memory()) throw;
    ++refused_;
    return false;
  }
  const MemoryInfo now = memory_info();
  device_peak_ = std::max(device_peak_, now.total - now.free);
  return true;
}

/// All or none.
bool Segments::map_pages(std::int64_t address, std::int64_t bytes, std::int64_t page) {
  for (std::int64_t at = address; at < address + bytes; at += page) {
    try {
      const auto where = reinterpret_cast<std::int64_t>(real(at));
      pages_.emplace(at, memory_.map(where, page));
    } catch (const CudaError& error) {
      for (std::int64_t done = address; done < at; done += page) pages_.erase(done);
      if (!error.out_of_memory()) throw;
      return false;
    }
  }
  return true;
}

void Segments::give(std::int64_t address, std::int64_t bytes, std::int64_t page) {
  if (page == 0) {
    segments_.erase(address);
    return;
  }
  for (std::int64_t at = address; at < address + bytes; at += page) pages_.erase(at);
}

void Segments::reserve(std::int64_t address, std::int64_t bytes) {
  if (!memory_.there()) throw std::runtime_error(memory_.missing());
  ranges_.emplace(address, memory_.reserve(bytes));
}

void Segments::unreserve(std::int64_t address) { ranges_.erase(address); }

void* Segments::real(std::int64_t address) const {
  // Addresses are never used twice, so the nearest start below is the right one; a segment and a
  // range do not overlap.
  const auto segment = segments_.upper_bound(address);
  if (segment != segments_.begin()) {
    const auto& [start, buffer] = *std::prev(segment);
    if (address < start + buffer.bytes()) return buffer.as<char>() + (address - start);
  }
  const auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) throw std::logic_error("an address in no segment");
  const auto& [start, space] = *std::prev(range);
  return reinterpret_cast<void*>(space.address() + (address - start));
}

}  // namespace shardfit::calibrate
