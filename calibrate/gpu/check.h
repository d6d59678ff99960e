#pragma once
// Every CUDA call goes through CUDA(...): a failure says which call, where, and CUDA's name for it.

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace shardfit::calibrate {

struct CudaError : std::runtime_error {
  CudaError(int error_code, const std::string& text) : std::runtime_error(text), code(error_code) {}
  bool out_of_memory() const { return code == cudaErrorMemoryAllocation; }
  int code;
};

inline void check_cuda(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  const std::string path = file;
  cudaGetLastError();  // an error that does not stick is not met again by the next call
  throw CudaError(error, path.substr(path.rfind('/') + 1) + ":" + std::to_string(line) + ": " +
                             std::string(call).substr(0, 80) + ": " + cudaGetErrorName(error) +
                             " (" + cudaGetErrorString(error) + ")");
}

}  // namespace shardfit::calibrate

#define CUDA(call) ::shardfit::calibrate::check_cuda((call), #call, __FILE__, __LINE__)
