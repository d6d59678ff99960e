#include "run/out_of_memory.h"

#include <cstdio>

namespace shardfit::run {

std::string size_text(std::int64_t bytes) {
  if (bytes <= 1024) return std::to_string(bytes) + " bytes";
  const bool kib = bytes <= 1 << 20;
  const bool mib = bytes <= 1 << 30;
  const double unit = kib ? 1 << 10 : mib ? 1 << 20 : 1 << 30;
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.2f %s", static_cast<double>(bytes) / unit,
                kib   ? "KiB"
                : mib ? "MiB"
                      : "GiB");
  return buffer;
}

std::string OutOfMemory::text() const {
  if (kind == Kind::none) return "";
  if (kind == Kind::rejected) {
    return "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
           "per_process_memory_fraction limit. Requested size: " +
           size_text(requested);
  }
  std::string text = "CUDA out of memory. Tried to allocate " + size_text(tried) +
                     ". GPU 0 has a total capacity of " + size_text(total) + " of which " +
                     size_text(free) + " is free. Including non-PyTorch memory, this process has " +
                     size_text(in_use) + " memory in use. ";
  if (allowed) text += size_text(*allowed) + " allowed; ";
  text += "Of the allocated memory " + size_text(allocated) + " is allocated by PyTorch, ";
  if (private_pools > 0) {
    text +=
        "with " + size_text(private_pools) + " allocated in private pools (e.g., CUDA Graphs), ";
  }
  return text + "and " + size_text(unallocated) + " is reserved by PyTorch but unallocated.";
}

}  // namespace shardfit::run
