#pragma once
// What calibrate measured on one machine, beside the numbers that predictions use directly: a
// device file holds it under 'measured'.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostic.h"
#include "base/units.h"
#include "spec/node.h"

namespace shardfit::spec {

/// A quantity by its name, with how often and how evenly it was seen.
struct MeasuredLine {
  std::string name;  // "pinned to device", "all_reduce all 2"
  Seconds latency;
  BytesPerSecond bandwidth;
  double residual = 0;  // root mean square of the fit, relative
  std::int64_t points = 0;
};

/// Matrix products of one dtype and shape class.
struct MeasuredProducts {
  std::string rate;                     // "bf16"
  std::string shape;                    // "tiny", "narrow", "medium", "large"
  double share = 0, low = 0, high = 0;  // of the device's peak rate
  std::int64_t shapes = 0;
};

/// Attention by a kernel of calibrate's own: a lower bound of what a library reaches.
struct AttentionSeen {
  std::string name;  // what, and that it is a lower bound
  Seconds time;
  std::string method;
};

/// One matrix product, (m, k) x (k, n), once and with caches cold.
struct ProductSeen {
  std::string rate;
  std::int64_t m = 0, n = 0, k = 0;
  Seconds time;
};

/// Bytes a card gives to NCCL outside the allocator, with a communicator of so many ranks.
struct MeasuredExchange {
  std::int64_t ranks = 0;
  Bytes communicator;  // when it is made
  Bytes rings;         // more, with the first all-reduce, all-gather and reduce-scatter
  Bytes pairs;         // and more, with the first all-to-all and send
};

struct MeasuredSpec {
  std::string source;                // program, driver, date
  std::optional<Bytes> context;      // of a process that has loaded next to nothing
  std::optional<Bytes> blas_handle;  // of cuBLAS, its workspace and kernels not counted
  std::optional<Seconds> launch;     // a kernel in a row of launches
  std::vector<MeasuredExchange> exchange;
  std::vector<MeasuredLine> lines;
  std::vector<MeasuredProducts> products;
  std::vector<ProductSeen> times;
  std::vector<AttentionSeen> attention;
};

MeasuredSpec read_measured(const Node& node, Diagnostics& faults);

}  // namespace shardfit::spec
