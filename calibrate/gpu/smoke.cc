// Each operator of a smoke test on the device.
#include "calibrate/smoke.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "calibrate/gpu/blas.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/gpu/session.h"

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

std::vector<double> numbers_of(const Buffer& buffer, std::int64_t count, DType dtype) {
  const bool half = is_half(dtype);
  std::vector<char> bytes(static_cast<std::size_t>(count * (half ? 2 : 4)));
  CUDA(cudaMemcpy(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDeviceToHost));
  std::vector<double> numbers(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (half) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      numbers[i] = half_value(dtype, bits);
    } else {
      float value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      numbers[i] = value;
    }
  }
  return numbers;
}

/// Inputs of `count` elements, made with seeds 1, 2, ... as the references have them.
class Inputs {
 public:
  Inputs(std::int64_t count, Element element, cudaStream_t stream)
      : count_(count), element_(element), stream_(stream) {}
  void* next(std::int64_t count = 0) {
    if (count == 0) count = count_;
    buffers_.emplace_back(count * kernels::element_bytes(element_));
    kernels::fill(buffers_.back().data(), count, element_,
                  static_cast<std::uint32_t>(buffers_.size()), stream_);
    return buffers_.back().data();
  }

 private:
  std::int64_t count_;
  Element element_;
  cudaStream_t stream_;
  std::vector<Buffer> buffers_;
};

Buffer indices(std::int64_t rows, std::int64_t factor, std::int64_t modulus) {
  std::vector<std::int64_t> index;
  for (std::int64_t r = 0; r < rows; ++r) index.push_back(factor * r % modulus);
  Buffer buffer(rows * 8);
  CUDA(cudaMemcpy(buffer.data(), index.data(), index.size() * 8, cudaMemcpyHostToDevice));
  return buffer;
}

/// The product through cuBLAS, everything else by our own kernels.
std::vector<double> got(const SmokeCase& c, Blas& blas, cudaStream_t stream) {
  const ProductShape& s = c.shape;
  const Element element = element_of(c.dtype);
  const bool products = c.test == SmokeTest::product, attends = c.test == SmokeTest::attention;
  std::int64_t count = s.m * s.n;
  if (products) count *= s.groups;
  if (attends) count = s.groups * s.m * s.k;
  const bool rows = c.test == SmokeTest::row_sum || c.test == SmokeTest::cross_entropy;
  const bool adamw = c.test == SmokeTest::adamw;
  const Buffer out(std::max<std::int64_t>(16, (rows ? s.m : count) * 4));
  Inputs inputs(count, adamw ? Element::f32 : element, stream);
  if (products) {
    void* a = inputs.next(s.groups * s.m * s.k);
    void* b = inputs.next(s.groups * s.k * s.n);
    blas.set_stream(stream);
    blas.product(s, a, b, out.data());
  } else if (attends) {
    void *q = inputs.next(), *k = inputs.next(), *v = inputs.next();
    kernels::attention(q, k, v, out.data(), s.groups, s.m, s.k, true, element, stream);
  } else if (c.test == SmokeTest::softmax) {
    kernels::softmax(inputs.next(), out.data(), s.m, s.n, element, stream);
  } else if (c.test == SmokeTest::rms_norm || c.test == SmokeTest::layer_norm) {
    kernels::norm(inputs.next(), out.data(), s.m, s.n, c.test == SmokeTest::layer_norm, element,
                  stream);
  } else if (c.test == SmokeTest::row_sum) {
    kernels::row_sum(inputs.next(), out.as<float>(), s.m, s.n, element, stream);
  } else if (c.test == SmokeTest::cross_entropy) {
    const Buffer labels = indices(s.m, 1, s.n);
    kernels::cross_entropy(inputs.next(), labels.as<std::int64_t>(), out.as<float>(), s.m, s.n,
                           element, stream);
    CUDA(cudaStreamSynchronize(stream));
  } else if (c.test == SmokeTest::gather) {
    const Buffer index = indices(s.m, 7, s.m);
    kernels::gather(inputs.next(), index.as<std::int64_t>(), out.data(), s.m, s.n, element, stream);
    CUDA(cudaStreamSynchronize(stream));
  } else if (adamw) {
    void *p = inputs.next(), *g = inputs.next(), *m = inputs.next();
    const Buffer square(count * 4);
    CUDA(cudaMemset(square.data(), 0, static_cast<std::size_t>(square.bytes())));
    CUDA(cudaDeviceSynchronize());
    kernels::adamw(static_cast<float*>(p), static_cast<const float*>(g), static_cast<float*>(m),
                   square.as<float>(), count, {}, stream);
    CUDA(cudaMemcpyAsync(out.data(), p, static_cast<std::size_t>(count * 4),
                         cudaMemcpyDeviceToDevice, stream));
    CUDA(cudaStreamSynchronize(stream));
  } else {
    void *a = inputs.next(), *b = inputs.next();
    kernels::elementwise(c.op, a, b, out.data(), count, element, stream);
  }
  CUDA(cudaStreamSynchronize(stream));
  return numbers_of(out, rows ? s.m : count, rows || adamw ? DType::f32 : c.dtype);
}

}  // namespace

SmokeReport run_smoke(const Machine& machine, const PlannedOption& option) {
  SmokeReport report;
  report.machine = machine;
  report.option = option.name;
  CUDA(cudaSetDevice(0));
  const Stream stream;
  Blas blas;
  for (const SmokeCase& c : smoke_cases(option)) {
    SmokeResult result;
    result.c = c;
    result.compared = !machine.stand_in;
    if (c.test != SmokeTest::none) {
      try {
        const std::vector<double> numbers = got(c, blas, stream);
        if (result.compared) result.worst = worst_error(reference_of(c), numbers);
      } catch (const std::exception& error) {
        result.failure = error.what();
      }
    }
    report.results.push_back(std::move(result));
  }
  return report;
}

}  // namespace shardfit::calibrate
