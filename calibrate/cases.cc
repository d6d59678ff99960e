// What each benchmark times: one list for the dry run and for the run.
#include <algorithm>

#include "base/format.h"
#include "calibrate/benchmarks.h"

namespace shardfit::calibrate {
namespace {

constexpr std::int64_t KiB = 1024;
constexpr std::int64_t MiB = 1024 * KiB;
constexpr std::int64_t GiB = 1024 * MiB;

std::string size_words(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }

/// Powers of `factor` times `from`, up to `to`.
std::vector<std::int64_t> sizes(std::int64_t from, std::int64_t to, std::int64_t factor) {
  std::vector<std::int64_t> list;
  for (std::int64_t bytes = from; bytes <= to; bytes *= factor) list.push_back(bytes);
  return list;
}

Case sized(const std::string& kind, std::int64_t bytes, double work, std::int64_t footprint) {
  Case c;
  c.kind = kind;
  c.name = kind + " " + size_words(bytes);
  c.bytes = bytes;
  c.work = work;
  c.footprint = footprint;
  return c;
}

std::int64_t element_bytes(const std::string& rate) {
  if (rate == "fp8") return 1;
  return rate == "fp32" || rate == "tf32" ? 4 : 2;
}

Case product_case(const ProductShape& p, const std::string& kind = "product") {
  Case c;
  c.kind = kind;
  c.product = p;
  c.name =
      p.rate + " " + std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k);
  if (p.groups > 1) c.name += " x" + std::to_string(p.groups) + " " + kind;
  c.work = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
           static_cast<double>(p.groups);
  const std::int64_t in = element_bytes(p.rate);
  const std::int64_t out = p.rate == "fp8" ? 2 : in;
  c.footprint = p.groups * ((p.m * p.k + p.k * p.n) * in + p.m * p.n * out) + 32 * MiB;
  return c;
}

/// Both directions of every pair; with `only`, of the pairs it is one of.
void add_pairs(std::vector<Case>& list, int devices, int only,
               const std::vector<std::int64_t>& steps) {
  for (int from = 0; from < devices; ++from) {
    for (int to = 0; to < devices; ++to) {
      if (from == to || (from != only && to != only && only >= 0)) continue;
      for (const bool access : {true, false}) {
        for (const std::int64_t bytes : steps) {
          Case c = sized("peer", bytes, static_cast<double>(bytes), bytes);
          c.from = from;
          c.to = to;
          c.peer_access = access;
          c.name = std::to_string(from) + " to " + std::to_string(to) +
                   (access ? ", peer access, " : ", through the host, ") + size_words(bytes);
          list.push_back(c);
        }
      }
    }
  }
}

}  // namespace

std::vector<Case> no_cases(const DeviceFacts&, int, const RunOptions&) { return {}; }

std::vector<Case> device_copy_cases(const DeviceFacts&, int, const RunOptions& options) {
  std::vector<Case> list;
  for (const char* kind : {"copy", "read", "write"}) {
    const bool copy = std::string(kind) == "copy";
    for (const std::int64_t bytes :
         options.quick ? sizes(64 * KiB, GiB, 16) : sizes(64 * KiB, 4 * GiB, 4)) {
      list.push_back(
          sized(kind, bytes, static_cast<double>(bytes) * (copy ? 2 : 1), bytes * (copy ? 2 : 1)));
    }
  }
  return list;
}

std::vector<Case> host_copy_cases(const DeviceFacts&, int, const RunOptions& options) {
  std::vector<Case> list;
  for (const char* kind :
       {"pinned to device", "pinned to host", "pageable to device", "pageable to host"}) {
    for (const std::int64_t bytes :
         options.quick ? sizes(64 * KiB, 64 * MiB, 32) : sizes(64 * KiB, 256 * MiB, 4)) {
      list.push_back(sized(kind, bytes, static_cast<double>(bytes), bytes));
    }
  }
  return list;
}

std::vector<Case> peer_copy_cases(const DeviceFacts&, int devices, const RunOptions& options) {
  std::vector<Case> list;
  add_pairs(list, devices, options.quick ? options.device : -1,
            options.quick ? sizes(64 * KiB, 256 * MiB, 64) : sizes(16 * KiB, GiB, 16));
  return list;
}

std::vector<Case> gemm_cases(const DeviceFacts&, int, const RunOptions& options) {
  // One dimension small at a time, as a decoder's products are; then square up to what no cache
  // holds.
  std::vector<ProductShape> shapes{{"", 16, 4096, 4096, 1},
                                   {"", 256, 4096, 4096, 1},
                                   {"", 1024, 1024, 1024, 1},
                                   {"", 4096, 4096, 4096, 1},
                                   {"", 8192, 8192, 8192, 1}};
  if (!options.quick) {
    const std::vector<ProductShape> more{
        {"", 1, 4096, 4096, 1},     {"", 64, 14336, 4096, 1},   {"", 4096, 4096, 32, 1},
        {"", 4096, 64, 4096, 1},    {"", 512, 512, 512, 1},     {"", 2048, 2048, 2048, 1},
        {"", 4096, 14336, 4096, 1}, {"", 4096, 4096, 14336, 1}, {"", 4096, 128256, 4096, 1},
        {"", 16384, 4096, 4096, 1}, {"", 4100, 4100, 4100, 1}};
    shapes.insert(shapes.end(), more.begin(), more.end());
  }
  std::vector<Case> list;
  for (const char* rate : {"fp32", "tf32", "bf16", "fp16"}) {
    for (ProductShape shape : shapes) {
      shape.rate = rate;
      list.push_back(product_case(shape));
    }
  }
  return list;
}

std::vector<Case> gemm_fp8_cases(const DeviceFacts&, int, const RunOptions& options) {
  std::vector<Case> list;
  for (const std::int64_t n : {1024, 4096, 8192}) list.push_back(product_case({"fp8", n, n, n, 1}));
  if (!options.quick) list.push_back(product_case({"fp8", 4096, 14336, 4096, 1}));
  return list;
}

std::vector<Case> gemm_batched_cases(const DeviceFacts&, int, const RunOptions& options) {
  std::vector<Case> list;
  for (const char* kind : {"batched", "grouped"}) {
    list.push_back(product_case({"bf16", 1024, 1024, 128, 64}, kind));
    list.push_back(product_case({"bf16", 512, 2048, 2048, 8}, kind));
    if (!options.quick) list.push_back(product_case({"bf16", 2048, 128, 2048, 64}, kind));
  }
  return list;
}

std::vector<Case> gemm_plan_cases(const DeviceFacts&, int, const RunOptions& options) {
  std::vector<Case> list;
  for (const ProductShape& p : options.products) {
    list.push_back(product_case(p, p.groups > 1 ? "batched" : "product"));
  }
  return list;
}

std::vector<Case> attention_cases(const DeviceFacts&, int, const RunOptions& options) {
  std::vector<Case> list;
  for (const std::int64_t tokens : options.quick ? std::vector<std::int64_t>{1024}
                                                 : std::vector<std::int64_t>{512, 2048, 4096}) {
    constexpr std::int64_t heads = 32, width = 128;
    Case c;
    c.kind = "causal";
    c.name = "lower bound, 1 x " + std::to_string(tokens) + " causal, 32 heads of 128, bf16";
    c.product = {"bf16", tokens, tokens, width, heads};
    c.bytes = tokens * heads * width * 2;
    c.footprint = 4 * c.bytes;
    // Two products of tokens x tokens x width a head, half of them behind the diagonal.
    c.work = 2.0 * static_cast<double>(tokens * tokens * width * heads);
    list.push_back(c);
  }
  return list;
}

std::vector<Case> memory_bound_cases(const DeviceFacts&, int, const RunOptions& options) {
  const std::int64_t rows = options.quick ? 4096 : 16384;
  std::vector<Case> list;
  const auto add = [&](const char* kind, std::int64_t row_length, double moved_of_row,
                       std::int64_t footprint_of_row) {
    Case c = sized(kind, rows * row_length, static_cast<double>(rows) * moved_of_row,
                   rows * footprint_of_row);
    c.product = {"fp32", rows, row_length, 1, 1};
    c.name = std::string(kind) + " " + std::to_string(rows) + "x" + std::to_string(row_length);
    list.push_back(c);
  };
  add("softmax", 4096, 4096 * 8.0, std::int64_t{4096} * 8);           // fp32 in, out
  add("rms-norm", 4096, 4096 * 8.0, std::int64_t{4096} * 8);          // fp32 in, out
  add("cross-entropy", 32768, 32768 * 4.0, std::int64_t{32768} * 4);  // fp32 logits, read once
  // fp32 parameter, gradient and two moments: four read, three written.
  add("adamw", 4096, 4096 * 28.0, std::int64_t{4096} * 16);
  return list;
}

std::vector<Case> launch_cases(const DeviceFacts&, int, const RunOptions&) {
  std::vector<Case> list;
  for (const char* kind : {"launch to end", "launches in a row", "kernel in a graph"}) {
    Case c;
    c.kind = c.name = kind;
    list.push_back(c);
  }
  return list;
}

std::vector<Case> collective_cases(const DeviceFacts&, int devices, const RunOptions& options) {
  std::vector<Case> list;
  const auto steps = options.quick ? sizes(KiB, GiB, 1024) : sizes(KiB, GiB, 4);
  std::vector<std::pair<int, int>> groups{{-1, -1}};  // all
  for (int a = 0; devices > 2 && a < devices; ++a) {
    for (int b = a + 1; b < devices; ++b) {
      if (!options.quick || a == options.device || b == options.device) groups.emplace_back(a, b);
    }
  }
  for (const auto& [a, b] : groups) {
    const std::string who =
        a < 0 ? "all " + std::to_string(devices) : std::to_string(a) + " and " + std::to_string(b);
    for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}) {
      for (const std::int64_t bytes : steps) {
        Case c = sized(kind, bytes, static_cast<double>(bytes), 2 * bytes);
        c.from = a;
        c.to = b;
        c.name = std::string(kind) + " " + who + ", " + size_words(bytes);
        list.push_back(c);
      }
    }
  }
  return list;
}

}  // namespace shardfit::calibrate
