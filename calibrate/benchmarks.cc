#include "calibrate/benchmarks.h"

#include <array>
#include <cstdlib>

#ifdef SHARDFIT_CUDA
#include "calibrate/benchmarks/rows.h"
#define RUN(function) function
#else
#define RUN(function) nullptr
#endif

namespace shardfit::calibrate {
namespace {

constexpr std::int64_t MiB = 1 << 20;

const std::array<Benchmark, 20> table{{
    {"context", "memory", "total, free and context bytes", 1, "", 0.2, 0, no_cases,
     RUN(run_context)},
    {"modules", "memory", "bytes that loaded kernels take", 1, "", 1, 0, no_cases,
     RUN(run_modules)},
    {"blas-handle", "memory", "bytes of a cuBLAS handle and of its first product", 1, "cuBLAS", 3,
     48 * MiB, no_cases, RUN(run_blas_handle)},
    {"streams-events", "memory", "bytes and time of a stream and of an event", 1, "", 0.2, 0,
     no_cases, RUN(run_streams_events)},
    {"granularity", "memory", "what cudaMalloc takes for small and odd sizes", 1, "", 1, 256 * MiB,
     no_cases, RUN(run_granularity)},
    {"largest", "memory", "the largest single allocation", 1, "", 4, all_free, no_cases,
     RUN(run_largest)},
    {"pool", "memory", "what the stream-ordered pool keeps and gives back", 1, "", 0.5, 64 * MiB,
     no_cases, RUN(run_pool)},
    {"virtual-memory", "memory", "granularity of mapped memory, time of a map", 1, "", 0.5,
     320 * MiB, no_cases, RUN(run_virtual_memory)},
    {"communicator", "memory", "bytes of an NCCL communicator and of first collectives", 1, "NCCL",
     10, 32 * MiB, no_cases, RUN(run_communicator)},
    {"launch", "speed", "latency of a launch, time of a kernel in a graph", 1, "", 0.5, 0,
     launch_cases, RUN(run_launch)},
    {"device-copy", "speed", "copy, read and write inside the device", 1, "", 1, 0,
     device_copy_cases, RUN(run_device_copy)},
    {"host-copy", "speed", "to and from the host, pinned and pageable", 1, "", 2, 0,
     host_copy_cases, RUN(run_host_copy)},
    {"peer-copy", "speed", "every pair and direction, peer access on and off", 2, "", 2, 0,
     peer_copy_cases, RUN(run_peer_copy)},
    {"gemm", "speed", "products by shape class: fp32, tf32, bf16, fp16", 1, "cuBLAS", 3, 0,
     gemm_cases, RUN(run_gemm)},
    {"gemm-fp8", "speed", "matrix products in fp8 (compute capability 8.9 on)", 1, "cuBLASLt", 2, 0,
     gemm_fp8_cases, RUN(run_gemm_fp8)},
    {"gemm-batched", "speed", "batched and grouped matrix products", 1, "cuBLAS", 1, 0,
     gemm_batched_cases, RUN(run_gemm_batched)},
    {"gemm-plan", "speed", "the matrix products of --plan", 1, "cuBLAS", 2, 0, gemm_plan_cases,
     RUN(run_gemm_plan)},
    {"attention", "speed", "fused attention: a plain kernel, a lower bound", 1, "", 0.5, 0,
     attention_cases, RUN(run_attention)},
    {"memory-bound", "speed", "softmax, norm, cross-entropy, optimizer", 1, "", 1, 0,
     memory_bound_cases, RUN(run_memory_bound)},
    {"collective", "speed", "NCCL collectives, every pair and all", 2, "NCCL", 4, 0,
     collective_cases, RUN(run_collective)},
}};

}  // namespace

std::span<const Benchmark> benchmarks() { return table; }

const Benchmark* find_benchmark(const std::string& name) {
  for (const Benchmark& row : table) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::string waived_because(const Benchmark& row, const DeviceFacts& facts, int devices,
                           const Machine& machine, const RunOptions& options) {
  if (devices < row.least_devices) {
    return "needs " + std::to_string(row.least_devices) + " devices, " +
           (devices == 0 ? "none is" : std::to_string(devices) + (devices == 1 ? " is" : " are")) +
           " there";
  }
  const auto missing = machine.missing.find(row.library);
  if (missing != machine.missing.end()) return missing->second;
  const std::string name = row.name;
  if (name == "gemm-fp8" && std::atof(facts.compute_capability.c_str()) < 8.9) {
    return "compute capability " + facts.compute_capability + " has no fp8";
  }
  if (name == "gemm-plan" && options.products.empty()) {
    return "no --plan was given, or it has no matrix products";
  }
  return "";
}

StoppingLimits limits_of_case(const RunOptions& options) {
  StoppingLimits limits;
  limits.least = options.quick ? 5 : 10;
  limits.seconds = options.quick ? 0.05 : 0.5;
  return limits;
}

}  // namespace shardfit::calibrate
