#include "calibrate/gpu/work.h"

#include <algorithm>
#include <cmath>

#include "calibrate/gpu/kernels.h"

namespace shardfit::calibrate {

void LiveStorages::add(std::uint32_t storage, std::int64_t bytes, void* address) {
  if (storage >= addresses_.size()) addresses_.resize(storage + 1);
  addresses_[storage] = address;
  by_size_.emplace(bytes, storage);
}

void LiveStorages::remove(std::uint32_t storage, std::int64_t bytes) {
  by_size_.erase({bytes, storage});
}

LiveStorages::Place LiveStorages::of(std::size_t rank) const {
  if (by_size_.empty()) return {};
  auto at = by_size_.rbegin();
  if (rank > 0 && by_size_.size() > 1) ++at;
  return {addresses_[at->second], at->first};
}

void Operators::set_workspace(void* address, std::int64_t bytes) {
  workspace_ = address;
  workspace_bytes_ = address ? bytes : 0;
  stream_set_ = false;  // the workspace is set with the stream, which resets it
}

void Operators::launch(const Compute& c, const LiveStorages& live, cudaStream_t stream) {
  const Work work = work_of(c);
  if (work == Work::memory) {
    ++counts_->others;
    const LiveStorages::Place place = live.largest();
    const auto bytes = static_cast<std::int64_t>(std::min(c.bytes, 1e15));
    return kernels::touch(place.address, place.bytes, bytes, stream);
  }
  ProductShape shape{rate_of(c.dtype), c.m, c.n, c.k, std::max<std::int64_t>(1, c.groups)};
  std::int64_t times = 1;
  if (work == Work::attention) {
    ++counts_->attentions;
    // Scores times values, as often as gives the operator's flops; one matrix of scores serves all
    // heads.
    std::swap(shape.n, shape.k);
    const double flops = 2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) *
                         static_cast<double>(c.k) * static_cast<double>(shape.groups);
    times = std::max<std::int64_t>(1, std::llround(c.flops / flops));
  } else {
    ++counts_->products;
  }
  product(shape, times, c, live, stream);
}

void Operators::product(const ProductShape& s, std::int64_t times, const Compute& c,
                        const LiveStorages& live, cudaStream_t stream) {
  if (!stream_set_ || stream != stream_) {
    blas_.set_stream(stream);
    if (workspace_) blas_.set_workspace(workspace_, workspace_bytes_);
    stream_ = stream;
    stream_set_ = true;
  }
  const std::int64_t size = s.rate == "fp32" ? 4 : 2;
  const LiveStorages::Place in = live.largest(), second = live.second();
  const std::int64_t operand = std::max(s.m * s.k, s.k * s.n) * size, result = s.m * s.n * size;
  const LiveStorages::Place to = result <= second.bytes ? second : in;
  if (std::max(operand, result) > to.bytes && std::max(operand, result) > in.bytes) {
    ++counts_->without_room;
    return kernels::touch(in.address, in.bytes, static_cast<std::int64_t>(std::min(c.bytes, 1e15)),
                          stream);
  }
  // Results lie one behind the other as far as there is room; then the next call begins anew.
  const std::int64_t room = std::max<std::int64_t>(1, to.bytes / result);
  for (std::int64_t i = 0; i < times; ++i) {
    for (std::int64_t done = 0; done < s.groups; done += room) {
      ProductShape part = s;
      part.groups = std::min(room, s.groups - done);
      blas_.product(part, in.address, in.address, to.address, operand * part.groups > in.bytes);
    }
  }
}

}  // namespace shardfit::calibrate
