// Each operator of a smoke test on the device.
#include "calibrate/smoke.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "calibrate/gpu/blas.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/gpu/session.h"
#include "calibrate/gpu/small_kernels.h"

namespace shardfit::calibrate {

namespace {

using kernels::Element;

Element element_of(DType dtype) {
  if (dtype == DType::bf16) return Element::bf16;
  return dtype == DType::f16 ? Element::f16 : Element::f32;
}

/// Two bytes as the number they stand for.
double half_value(DType dtype, std::uint16_t bits) {
  if (dtype == DType::bf16) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = std::ldexp(exponent == 0 ? fraction : 1024 + fraction, std::max(exponent, 1) - 25);
  if (exponent == 31) value = fraction ? std::nan("") : HUGE_VAL;
  return bits >> 15 ? -value : value;
}

/// Element `i` of bytes from the device.
double number_at(const std::vector<char>& bytes, std::size_t i, DType dtype) {
  const auto as = [&](auto value) {
    std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::f64:
      return as(double{});
    case DType::f32:
      return static_cast<double>(as(float{}));
    case DType::bf16:
    case DType::f16:
      return half_value(dtype, as(std::uint16_t{}));
    case DType::i64:
      return static_cast<double>(as(std::int64_t{}));
    case DType::i32:
      return as(std::int32_t{});
    case DType::i16:
      return as(std::int16_t{});
    case DType::i8:
      return as(std::int8_t{});
    default:
      return as(std::uint8_t{});
  }
}

std::vector<double> numbers_of(const Buffer& buffer, std::int64_t count, DType dtype) {
  std::vector<char> bytes(static_cast<std::size_t>(count * element_size(dtype)));
  CUDA(cudaMemcpy(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDeviceToHost));
  std::vector<double> numbers;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    numbers.push_back(number_at(bytes, i, dtype));
  }
  return numbers;
}

/// Inputs with seeds 1, 2, ... as the references have them.
class Inputs {
 public:
  Inputs(DType dtype, cudaStream_t stream, std::int64_t reach = 1)
      : dtype_(dtype), stream_(stream), reach_(reach) {}
  void* next(std::int64_t count) {
    buffers_.emplace_back(count * element_size(dtype_));
    kernels::small_fill(buffers_.back().data(), count, dtype_,
                        static_cast<std::uint32_t>(buffers_.size()), reach_, stream_);
    return buffers_.back().data();
  }

 private:
  DType dtype_;
  cudaStream_t stream_;
  std::int64_t reach_;
  std::vector<Buffer> buffers_;
};

std::vector<double> product(const SmokeCase& c, Blas& blas, cudaStream_t stream) {
  const ProductShape& s = c.shape;
  Inputs inputs(c.dtype, stream);
  const std::int64_t count = s.groups * s.m * s.n;
  const Buffer out(count * 4);
  void* a = inputs.next(s.groups * s.m * s.k);
  void* b = inputs.next(s.groups * s.k * s.n);
  blas.set_stream(stream);
  blas.product(s, a, b, out.data());
  CUDA(cudaStreamSynchronize(stream));
  return numbers_of(out, count, c.dtype);
}

std::vector<double> attention(const SmokeCase& c, cudaStream_t stream) {
  const ProductShape& s = c.shape;
  Inputs inputs(c.dtype, stream);
  const std::int64_t count = s.groups * s.m * s.k;
  const Buffer out(count * element_size(c.dtype));
  void *q = inputs.next(count), *k = inputs.next(count), *v = inputs.next(count);
  kernels::attention(q, k, v, out.data(), s.groups, s.m, s.k, true, element_of(c.dtype), stream);
  CUDA(cudaStreamSynchronize(stream));
  return numbers_of(out, count, c.dtype);
}

std::vector<double> adamw(const SmokeCase& c, cudaStream_t stream) {
  Inputs inputs(DType::f32, stream);
  const std::int64_t count = c.small.rows * c.small.columns;
  void *p = inputs.next(count), *g = inputs.next(count), *m = inputs.next(count);
  const Buffer square(count * 4), out(count * 4);
  const auto bytes = static_cast<std::size_t>(count * 4);
  CUDA(cudaMemsetAsync(square.data(), 0, bytes, stream));
  kernels::adamw(static_cast<float*>(p), static_cast<const float*>(g), static_cast<float*>(m),
                 square.as<float>(), count, {}, stream);
  CUDA(cudaMemcpyAsync(out.data(), p, bytes, cudaMemcpyDeviceToDevice, stream));
  CUDA(cudaStreamSynchronize(stream));
  return numbers_of(out, count, DType::f32);
}

/// By the kernels that `run` times.
std::vector<double> rows(const SmokeCase& c, cudaStream_t stream) {
  const std::int64_t m = c.small.rows, n = c.small.columns;
  const Element element = element_of(c.dtype);
  Inputs inputs(c.dtype, stream);
  const void* in = inputs.next(m * n);
  const Buffer out(m * n * 4);
  if (c.small.what == Small::sum) {
    kernels::row_sum(in, out.as<float>(), m, n, element, stream);
    CUDA(cudaStreamSynchronize(stream));
    return numbers_of(out, m, DType::f32);
  }
  std::vector<std::int64_t> places;
  for (std::int64_t r = 0; r < m; ++r) places.push_back(embedded(r, m));
  const Buffer index(m * 8);
  CUDA(cudaMemcpy(index.data(), places.data(), places.size() * 8, cudaMemcpyHostToDevice));
  if (c.small.what == Small::softmax) {
    kernels::softmax(in, out.data(), m, n, element, stream);
  } else if (c.small.what == Small::embedding) {
    kernels::gather(in, index.as<std::int64_t>(), out.data(), m, n, element, stream);
  } else {
    kernels::norm(in, out.data(), m, n, c.small.what == Small::layer_norm, element, stream);
  }
  CUDA(cudaStreamSynchronize(stream));
  return numbers_of(out, m * n, c.dtype);
}

std::vector<double> small(const SmokeCase& c, cudaStream_t stream) {
  const SmallShape& s = c.small;
  const DType result = small_result(s.what, c.dtype);
  Inputs inputs(c.dtype, stream, small_reach(c));
  const void* in[4] = {};
  for (int i = 0; i < 4; ++i) in[i] = inputs.next(s.rows * input_a_row(s, i));
  const std::int64_t count = s.rows * result_a_row(s);
  const Buffer out(count * element_size(result));
  kernels::small(s, in, c.dtype, out.data(), result, stream);
  CUDA(cudaStreamSynchronize(stream));
  return numbers_of(out, count, result);
}

std::vector<double> got(const SmokeCase& c, Blas& blas, cudaStream_t stream) {
  switch (c.test) {
    case SmokeTest::product:
      return product(c, blas, stream);
    case SmokeTest::attention:
      return attention(c, stream);
    case SmokeTest::adamw:
      return adamw(c, stream);
    case SmokeTest::rows:
      return rows(c, stream);
    default:
      return small(c, stream);
  }
}

/// How far a result is from right, over what is allowed.
double error_of(const SmokeCase& c, const std::vector<double>& numbers) {
  const bool random = c.small.what == Small::dropout && !c.small.backward;
  if (c.test == SmokeTest::small && random) return dropout_error(c, numbers);
  return worst_error(reference_of(c), numbers);
}

}  // namespace

SmokeReport run_smoke(const Machine& machine, const PlannedOption& option) {
  SmokeReport report;
  report.machine = machine;
  report.option = option.name;
  std::optional<Stream> stream;
  std::optional<Blas> blas;
  try {
    CUDA(cudaSetDevice(0));
    stream.emplace();
    blas.emplace();
  } catch (const std::exception& error) {
    report.failure = error.what();
    return report;
  }
  for (const SmokeCase& c : smoke_cases(option)) {
    SmokeResult result;
    result.c = c;
    result.compared = !machine.stand_in;
    if (c.test != SmokeTest::none) {
      try {
        const std::vector<double> numbers = got(c, *blas, *stream);
        if (result.compared) result.worst = error_of(c, numbers);
      } catch (const std::exception& error) {
        result.failure = error.what();
      }
    }
    report.results.push_back(std::move(result));
  }
  return report;
}

}  // namespace shardfit::calibrate
