#pragma once
// What is taken of a device and given back when it goes out of scope, also after an error.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "calibrate/gpu/check.h"

namespace shardfit::calibrate {

/// Device memory of cudaMalloc.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t bytes) : bytes_(bytes) {
    CUDA(cudaMalloc(&data_, static_cast<std::size_t>(bytes)));
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() {
    if (data_) cudaFree(data_);
  }
  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

class Stream {
 public:
  Stream() { CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream() {
    if (stream_) cudaStreamDestroy(stream_);
  }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(bool timed = true) {
    CUDA(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Makes a device current for the length of a scope.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    CUDA(cudaGetDevice(&before_));
    CUDA(cudaSetDevice(device));
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

/// Free and total bytes of the current device.
struct MemoryInfo {
  std::int64_t free = 0, total = 0;
};
inline MemoryInfo memory_info() {
  std::size_t free = 0, total = 0;
  CUDA(cudaMemGetInfo(&free, &total));
  return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

}  // namespace shardfit::calibrate
