#pragma once
// Seconds of one operator on one device: products by tiles and waves, attention by products,
// softmax and bytes, everything else by the bytes it moves. What the constants are and how far they
// are off is docs/time.md.

#include <cstdint>
#include <string>
#include <vector>

#include "spec/cluster_spec.h"
#include "spec/speed_spec.h"
#include "tensor/program.h"

namespace shardfit::run {

/// What a device offers, in plain numbers.
struct DeviceRates {
  double bandwidth = 0;  // bytes a second of device memory
  double multiprocessors = 0;
  double bf16 = 0, fp16 = 0, tf32 = 0, fp32 = 0, fp8 = 0,
         fp4 = 0;  // flops a second, dense; 0: unknown
};

/// One matrix product, or `groups` of them of the same shape: (m, k) x (k, n).
struct ProductShape {
  double m = 1, n = 1, k = 1;
  double groups = 1;
  double element_bytes = 2;  // of the operands
  double output_bytes = 2;   // an element of the result
};

/// Seconds of a product where the dtype's peak is `peak` flops a second. `sustained`: the device
/// has been at work long enough to be at its power limit, as in a training step.
double product_seconds(const spec::ProductSpeed& speed, const DeviceRates& device, double peak,
                       const ProductShape& shape, bool sustained = false);

/// Forward attention: `batch` x `heads` heads of `width`, `kv_heads` of keys and values.
struct AttentionShape {
  double batch = 1, heads = 1, kv_heads = 1;
  double queries = 1, keys = 1;
  double width = 128;
  bool causal = true;
  bool paged = false;  // keys and values lie in a serving engine's pages
};
double attention_seconds(const spec::AttentionSpeed& speed, const DeviceRates& device,
                         const AttentionShape& shape, bool sustained = false);

/// Two times that partly overlap: their maximum where `power` is large, their sum where it is 1.
double mean_of_powers(double a, double b, double power);

/// Backward attention over forward: 2.5 times the flops (five products for two: Dao et al. 2022,
/// algorithm 4) at 60 to 75 % of the forward's rate (shared measurements of published kernels).
inline constexpr double attention_backward_ratio = 2.5 / 0.675;

/// Times of operators on one device.
class OperatorTimes {
 public:
  OperatorTimes(const spec::SpeedSpec& speed, const DeviceRates& device, int capability_major);
  /// Seconds of `compute` on the device, without the host's time to launch it.
  double seconds(const Compute& compute) const;

 private:
  double product(const Compute& compute) const;
  double attention(const Compute& compute, bool flash) const;
  double moved(const Compute& compute) const;

  spec::SpeedSpec speed_;
  DeviceRates device_;
  spec::ProductSpeed bf16_;
  spec::AttentionSpeed flash_;
  spec::AttentionSpeed efficient_;
};

}  // namespace shardfit::run
