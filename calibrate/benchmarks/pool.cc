// What the stream-ordered pool keeps and gives back.
#include <cuda_runtime_api.h>

#include <vector>

#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

std::int64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  std::uint64_t value = 0;
  CUDA(cudaMemPoolGetAttribute(pool, which, &value));
  return static_cast<std::int64_t>(value);
}

/// Destroys the pool whatever happens.
struct Pool {
  explicit Pool(int device) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    CUDA(cudaMemPoolCreate(&pool, &properties));
  }
  ~Pool() { cudaMemPoolDestroy(pool); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  cudaMemPool_t pool = nullptr;
};

}  // namespace

void run_pool(Session& session) {
  const Pool pool(session.options().device);
  const cudaStream_t stream = session.stream();
  const std::int64_t before = memory_info().free;
  const auto bytes = [](std::int64_t count) { return static_cast<double>(count); };
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) {
    void* block = nullptr;
    CUDA(cudaMallocFromPoolAsync(&block, (1 << 20) + 1, pool.pool, stream));
    blocks.push_back(block);
  }
  CUDA(cudaStreamSynchronize(stream));
  session.add_once("used for 16 of 1 MiB and 1 B", Unit::bytes,
                   bytes(attribute(pool.pool, cudaMemPoolAttrUsedMemCurrent)),
                   "cudaMemPoolAttrUsedMemCurrent");
  session.add_once("reserved for them", Unit::bytes,
                   bytes(attribute(pool.pool, cudaMemPoolAttrReservedMemCurrent)),
                   "cudaMemPoolAttrReservedMemCurrent");
  session.add_once("taken from the device", Unit::bytes, bytes(before - memory_info().free),
                   "free bytes before less after");
  for (void* block : blocks) CUDA(cudaFreeAsync(block, stream));
  CUDA(cudaStreamSynchronize(stream));
  session.add_once("kept after a synchronisation", Unit::bytes,
                   bytes(attribute(pool.pool, cudaMemPoolAttrReservedMemCurrent)),
                   "with the default release threshold of 0");
}

}  // namespace shardfit::calibrate
