#pragma once
// PyTorch's out-of-memory error: its numbers and its text.

#include <cstdint>
#include <optional>
#include <string>

namespace shardfit::run {

/// Why an allocation failed; all sizes in bytes. `none` before the first failure.
struct OutOfMemory {
  enum class Kind {
    none,
    out_of_memory,  // the last resort failed
    rejected,       // throw_on_cudamalloc_oom refused before asking the driver
  };
  Kind kind = Kind::none;
  std::int64_t requested = 0;                    // by the program
  std::int64_t tried = 0;                        // segment asked of the driver
  std::int64_t total = 0, free = 0, in_use = 0;  // of the device
  std::optional<std::int64_t> allowed;           // by the memory fraction
  std::int64_t allocated = 0;                    // handed out, and free bytes inside private pools
  std::int64_t private_pools = 0;                // those free bytes
  std::int64_t unallocated = 0;  // reserved, neither handed out nor in private pools

  /// The whole error up to its advice ("If reserved but unallocated memory is large ...").
  std::string text() const;
};

/// A size as the error prints it: "512 bytes", "2.00 MiB", "1024.00 MiB", "1.50 GiB".
std::string size_text(std::int64_t bytes);

}  // namespace shardfit::run
