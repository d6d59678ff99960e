#include "run/operator_time.h"

#include <algorithm>
#include <string_view>

namespace shardfit::run {
namespace {

bool one_of(std::string_view kind, std::initializer_list<std::string_view> kinds) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

bool is_attention(const Compute& c) {
  return one_of(c.kind, {"flash_attention", "efficient_attention", "cudnn_attention"});
}

/// The entry of that name, or the built-in values.
template <class T>
T entry(const std::map<std::string, T>& map, const std::string& name) {
  const auto found = map.find(name);
  return found != map.end() ? found->second : T{};
}

/// What PyTorch's own attention does where a device has no numbers for the kernel it takes:
/// FlashAttention-2 multiplies with the instructions of 8.0, which reach 35 % of the peak of an
/// H100 (Shah et al. 2024, "FlashAttention-3", section 1). That is so much for each of its 132
/// multiprocessors; on 10.0 nobody has published it, and the same is taken.
constexpr double old_instructions_rate = 0.35 * 989e12 / 132;
/// CUTLASS's kernel over FlashAttention-2 on 8.0 (Dao 2023, "FlashAttention-2", figure 4).
constexpr double efficient_over_flash = 0.55;

}  // namespace

OperatorTimes::OperatorTimes(const spec::SpeedSpec& speed, const DeviceRates& device,
                             int capability_major)
    : speed_(speed), device_(device), bf16_(entry(speed.products, "bf16")) {
  if (speed.attention.count("flash2") != 0) {
    flash_ = speed.attention.at("flash2");
  } else if (capability_major == 9 || capability_major == 10) {
    flash_.peak_share = old_instructions_rate * device.multiprocessors / device.bf16;
    flash_.exponentials = 1e14;  // inside that share
  }
  efficient_ = flash_;
  efficient_.peak_share *= efficient_over_flash;
}

double OperatorTimes::product(const Compute& c) const {
  ProductShape shape{static_cast<double>(c.m),
                     static_cast<double>(c.n),
                     static_cast<double>(c.k),
                     static_cast<double>(c.groups),
                     static_cast<double>(element_size(c.dtype)),
                     static_cast<double>(element_size(c.dtype))};
  double peak = device_.fp32;  // PyTorch leaves fp32 products in fp32 unless told otherwise
  if (c.dtype == DType::bf16) peak = device_.bf16;
  if (c.dtype == DType::f16) peak = device_.fp16 > 0 ? device_.fp16 : device_.bf16;
  if (peak <= 0) peak = device_.bf16 / 16;
  if (std::string_view(c.kind) == "grouped_mm" && c.groups > 1) {
    shape.m = std::max(1.0, shape.m / shape.groups);  // rows are dealt out over the groups
  }
  const char* rate = c.dtype == DType::bf16 ? "bf16" : c.dtype == DType::f16 ? "fp16" : "fp32";
  const auto scale = speed_.product_scale.find(rate);
  return (scale != speed_.product_scale.end() ? scale->second : 1) *
         product_seconds(bf16_, device_, peak, shape, true);
}

double OperatorTimes::attention(const Compute& c, bool flash) const {
  AttentionShape shape;
  shape.batch = static_cast<double>(c.groups);
  shape.queries = static_cast<double>(c.m);
  shape.keys = static_cast<double>(c.n);
  shape.width = static_cast<double>(c.k);
  // Two products forward, five backward, halved where causal: 4, 2, 10 or 5 flops a place. What a
  // recomputation runs is forward work inside the backward pass.
  const double each = c.flops / (shape.batch * shape.queries * shape.keys * shape.width);
  const bool backward = each > 4.5;
  shape.causal = each < (backward ? 7.5 : 3);
  const double forward = attention_seconds(flash ? flash_ : efficient_, device_, shape, true);
  return backward ? attention_backward_ratio * forward : forward;
}

double OperatorTimes::moved(const Compute& c) const {
  return static_cast<double>(std::max<std::int64_t>(1, c.groups)) * speed_.kernel_seconds +
         c.bytes / (device_.bandwidth * speed_.memory_share);
}

double OperatorTimes::seconds(const Compute& c) const {
  if (c.m > 0 && c.n > 0 && c.k > 0) {
    if (!is_attention(c)) return product(c);
    return attention(c, std::string_view(c.kind) != "efficient_attention");
  }
  return moved(c);
}

}  // namespace shardfit::run
