#pragma once
// The table of benchmarks. Adding one: a file in benchmarks/, its cases here, a row in
// benchmarks.cc.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "calibrate/facts.h"
#include "calibrate/stopping_rule.h"

namespace shardfit::calibrate {

class Session;

/// A matrix product of a plan: `groups` products of m x k by k x n.
struct ProductShape {
  std::string rate;  // "fp32", "tf32", "bf16", "fp16", "fp8": as device files name peak rates
  std::int64_t m = 0, n = 0, k = 0, groups = 1;
  auto operator<=>(const ProductShape&) const = default;
};

struct RunOptions {
  bool quick = false;
  int device = 0;
  std::vector<std::string> only;       // rows of the table; empty: all
  std::vector<ProductShape> products;  // of a plan
  std::int64_t margin = 0;             // bytes of the device that are never taken
};

/// One timed series of a benchmark.
struct Case {
  std::string name;            // "read 1.00 GiB"
  std::string kind;            // "read"; what the benchmark calls its variants
  std::int64_t bytes = 0;      // of one buffer, or of the message
  std::int64_t footprint = 0;  // bytes the case takes of the device
  double work = 0;             // bytes moved or flops done in one sample
  ProductShape product;        // of matrix products
  int from = -1, to = -1;      // devices
  bool peer_access = false;
};

/// Of Benchmark::takes.
inline constexpr std::int64_t all_free = -1;

struct Benchmark {
  const char* name;
  const char* group;  // "memory" or "speed"
  const char* summary;
  int least_devices;    // fewer: waived
  const char* library;  // which must be there; "" where none
  double setup;         // seconds beside its series, at most: libraries, handles, buffers. A guess
                        // until a card has been measured
  std::int64_t takes;   // bytes of the device beside its series; all_free: all beside the margin
  /// What it will time on a machine of `devices` such devices; empty where it times nothing.
  std::vector<Case> (*cases)(const DeviceFacts& facts, int devices, const RunOptions& options);
  /// Null in a build without a CUDA compiler.
  void (*run)(Session& session);
};

std::span<const Benchmark> benchmarks();
const Benchmark* find_benchmark(const std::string& name);

/// Why a row cannot run on such a machine, "" where it can.
std::string waived_because(const Benchmark& row, const DeviceFacts& facts, int devices,
                           const Machine& machine, const RunOptions& options);

/// Time and samples spent on one case.
StoppingLimits limits_of_case(const RunOptions& options);

// Cases of the rows.
std::vector<Case> no_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> device_copy_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> host_copy_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> peer_copy_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> gemm_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> gemm_fp8_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> gemm_batched_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> gemm_plan_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> attention_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> memory_bound_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> launch_cases(const DeviceFacts&, int, const RunOptions&);
std::vector<Case> collective_cases(const DeviceFacts&, int, const RunOptions&);

}  // namespace shardfit::calibrate
