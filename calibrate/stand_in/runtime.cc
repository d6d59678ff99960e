// The CUDA runtime's entry points that this program calls.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "calibrate/stand_in/state.h"

using namespace stand_in;

#define API extern "C" __attribute__((visibility("default")))
/// Begins an entry point: counted, logged, refused where an error is injected.
#define ENTER(call, detail)                                                  \
  const std::lock_guard<std::recursive_mutex> held(state().lock);            \
  if (const int injected = enter(call, static_cast<std::int64_t>(detail))) { \
    return static_cast<cudaError_t>(leave(injected));                        \
  }

namespace {

cudaError_t fail(cudaError_t error) { return static_cast<cudaError_t>(leave(error)); }
std::uint64_t number(const void* p) { return reinterpret_cast<std::uint64_t>(p); }
bool on_device(const void* p) {
  return number(p) >= first_address &&
         number(p) < first_address + (std::uint64_t{64} << address_bits);
}

cudaError_t allocate(void** out, std::int64_t bytes, Pool* pool) {
  if (bytes == 0) {
    *out = nullptr;
    return cudaSuccess;
  }
  const int device = pool ? pool->device : current;
  if (pool) {
    // A pool grows by chunks and serves from what it has.
    constexpr std::int64_t chunk = 32 << 20;
    const std::int64_t rounded = (bytes + 511) / 512 * 512;
    const std::int64_t missing = pool->used + rounded - pool->reserved;
    const std::int64_t grown = missing > 0 ? (missing + chunk - 1) / chunk * chunk : 0;
    if (grown > 0 && !take(device, grown)) return fail(cudaErrorMemoryAllocation);
    pool->reserved += grown;
    pool->used += rounded;
    pool->most_used = std::max(pool->most_used, pool->used);
    pool->most_reserved = std::max(pool->most_reserved, pool->reserved);
  } else if (!take(device, bytes)) {
    return fail(cudaErrorMemoryAllocation);
  }
  const std::uint64_t address = new_address(device, bytes);
  state().blocks[address] = {bytes, device, pool};
  *out = reinterpret_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t release(void* p) {
  if (!p) return cudaSuccess;
  const auto found = state().blocks.find(number(p));
  if (found == state().blocks.end()) return fail(cudaErrorInvalidValue);
  const Block block = found->second;
  if (block.pool) {
    block.pool->used -= (block.bytes + 511) / 512 * 512;
  } else {
    give(block.device, block.bytes);
  }
  state().blocks.erase(found);
  return cudaSuccess;
}

/// With a release threshold of 0 a synchronisation gives back what a pool does not use.
void trim_pools(bool asked = false) {
  for (Pool& pool : state().pools) {
    if (pool.keeps && !asked) continue;
    constexpr std::int64_t chunk = 32 << 20;
    const std::int64_t needed = (pool.used + chunk - 1) / chunk * chunk;
    if (pool.reserved <= needed) continue;
    give(pool.device, pool.reserved - needed);
    pool.reserved = needed;
  }
}

void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream, double rate) {
  if (!on_device(to)) {
    if (on_device(from)) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
  queue(stream, 3e-6 + static_cast<double>(bytes) / rate);
}

double rate_of(cudaMemcpyKind kind) {
  return kind == cudaMemcpyDeviceToDevice ? profile().bandwidth / 2 : profile().host_link;
}

bool device_hung() {
  for (const auto& [handle, stream] : state().streams) {
    if (stream.hung && stream.device == current) return true;
  }
  return false;
}

/// What a real synchronisation would do with work that never ends; others may abort it meanwhile.
/// The lock is held once, by the entry point.
template <class Hung>
void wait_while(Hung hung) {
  while (hung()) {
    state().lock.unlock();
    usleep(1000);
    state().lock.lock();
  }
}

}  // namespace

/// Its presence says that nothing here is a measurement.
API int shardfit_stand_in() { return 1; }
/// Libraries that are to be missing: titles between commas.
API bool shardfit_stand_in_lacks(const char* title) {
  const char* without = std::getenv("SHARDFIT_STAND_IN_WITHOUT");
  const std::string list = "," + std::string(without ? without : "") + ",";
  return list.find("," + std::string(title) + ",") != std::string::npos;
}

// Devices.
API cudaError_t cudaGetDeviceCount(int* count) {
  ENTER("cudaGetDeviceCount", 0);
  *count = profile().count;
  return profile().count ? cudaSuccess : fail(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= profile().count) return fail(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  ENTER("cudaGetDeviceProperties", 0);
  *p = cudaDeviceProp{};
  std::snprintf(p->name, sizeof p->name, "%s", profile().name.c_str());
  p->totalGlobalMem = static_cast<std::size_t>(profile().usable);
  p->major = profile().major;
  p->minor = profile().minor;
  p->multiProcessorCount = profile().multiprocessors;
  p->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int a, int b) {
  ENTER("cudaDeviceCanAccessPeer", b);
  *can = profile().peer && a != b;
  return cudaSuccess;
}
API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  ENTER("cudaDeviceEnablePeerAccess", peer);
  return profile().peer ? cudaSuccess : fail(cudaErrorPeerAccessUnsupported);
}
API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  ENTER("cudaDeviceDisablePeerAccess", peer);
  return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize() {
  ENTER("cudaDeviceSynchronize", 0);
  wait_while(device_hung);
  trim_pools();
  return cudaSuccess;
}
API const char* cudaGetErrorName(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchOutOfResources:
      return "cudaErrorLaunchOutOfResources";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    default:
      return "cudaError of the stand-in";
  }
}
API const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(error);
}
API cudaError_t cudaGetLastError() {
  const int error = state().lost ? state().lost : last_error;
  last_error = 0;
  return static_cast<cudaError_t>(error);
}

// Memory.
API cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  ENTER("cudaMalloc", bytes);
  return allocate(out, static_cast<std::int64_t>(bytes), nullptr);
}
API cudaError_t cudaFree(void* p) {
  ENTER("cudaFree", number(p));
  return release(p);
}
API cudaError_t cudaMallocAsync(void** out, std::size_t bytes, cudaStream_t) {
  ENTER("cudaMallocAsync", bytes);
  return allocate(out, static_cast<std::int64_t>(bytes),
                  &state().pools[static_cast<std::size_t>(current)]);
}
API cudaError_t cudaMallocFromPoolAsync(void** out, std::size_t bytes, cudaMemPool_t pool,
                                        cudaStream_t) {
  ENTER("cudaMallocFromPoolAsync", bytes);
  return allocate(out, static_cast<std::int64_t>(bytes), reinterpret_cast<Pool*>(pool));
}
API cudaError_t cudaFreeAsync(void* p, cudaStream_t) {
  ENTER("cudaFreeAsync", number(p));
  return release(p);
}
API cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  ENTER("cudaMemGetInfo", 0);
  state().devices[static_cast<std::size_t>(current)].context = true;
  *free = static_cast<std::size_t>(free_bytes(current));
  *total = static_cast<std::size_t>(profile().usable);
  return cudaSuccess;
}
API cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  ENTER("cudaHostAlloc", bytes);
  *out = std::calloc(1, bytes);
  return *out ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
API cudaError_t cudaFreeHost(void* p) {
  std::free(p);
  return cudaSuccess;
}
API cudaError_t cudaMemset(void*, int, std::size_t bytes) {
  ENTER("cudaMemset", bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void*, int, std::size_t bytes, cudaStream_t stream) {
  ENTER("cudaMemsetAsync", bytes);
  queue(stream, 3e-6 + static_cast<double>(bytes) / profile().bandwidth);
  return cudaSuccess;
}
API cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  ENTER("cudaMemcpy", bytes);
  copy(to, from, bytes, nullptr, rate_of(kind));
  return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                cudaStream_t stream) {
  ENTER("cudaMemcpyAsync", bytes);
  copy(to, from, bytes, stream, rate_of(kind));
  return cudaSuccess;
}
API cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, std::size_t bytes,
                                    cudaStream_t stream) {
  ENTER("cudaMemcpyPeerAsync", bytes);
  queue(stream, 5e-6 + static_cast<double>(bytes) / profile().link);
  return cudaSuccess;
}

// Pools.
API cudaError_t cudaMemPoolCreate(cudaMemPool_t* out, const cudaMemPoolProps* properties) {
  ENTER("cudaMemPoolCreate", 0);
  state().pools.push_back({});
  state().pools.back().device = properties->location.id;
  *out = reinterpret_cast<cudaMemPool_t>(&state().pools.back());
  return cudaSuccess;
}
API cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  ENTER("cudaMemPoolDestroy", 0);
  auto* p = reinterpret_cast<Pool*>(pool);
  give(p->device, p->reserved);
  p->reserved = p->used = 0;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int device) {
  ENTER("cudaDeviceGetDefaultMemPool", device);
  *out = reinterpret_cast<cudaMemPool_t>(&state().pools[static_cast<std::size_t>(device)]);
  return cudaSuccess;
}
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  ENTER("cudaMemPoolSetAttribute", 0);
  auto* p = reinterpret_cast<Pool*>(pool);
  if (which == cudaMemPoolAttrReleaseThreshold) p->keeps = *static_cast<std::uint64_t*>(value) > 0;
  if (which == cudaMemPoolAttrUsedMemHigh) p->most_used = p->used;
  if (which == cudaMemPoolAttrReservedMemHigh) p->most_reserved = p->reserved;
  return cudaSuccess;
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  ENTER("cudaMemPoolGetAttribute", 0);
  const auto* p = reinterpret_cast<const Pool*>(pool);
  std::int64_t bytes = 0;
  if (which == cudaMemPoolAttrUsedMemCurrent) bytes = p->used;
  if (which == cudaMemPoolAttrUsedMemHigh) bytes = p->most_used;
  if (which == cudaMemPoolAttrReservedMemCurrent) bytes = p->reserved;
  if (which == cudaMemPoolAttrReservedMemHigh) bytes = p->most_reserved;
  *static_cast<std::uint64_t*>(value) = static_cast<std::uint64_t>(bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  ENTER("cudaMemPoolTrimTo", 0);
  trim_pools(true);
  return cudaSuccess;
}

// Streams and events.
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  ENTER("cudaStreamCreate", 0);
  void* handle = new_handle();
  state().streams[handle] = {};
  state().streams[handle].device = current;
  *out = static_cast<cudaStream_t>(handle);
  return cudaSuccess;
}
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER("cudaStreamDestroy", 0);
  state().streams.erase(stream);
  return cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER("cudaStreamSynchronize", 0);
  wait_while([&] { return state().streams[stream].hung; });
  trim_pools();
  return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ENTER("cudaStreamQuery", 0);
  return state().streams[stream].hung ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER("cudaStreamWaitEvent", 0);
  Stream& s = state().streams[stream];
  s.time = std::max(s.time, state().events[event]);
  s.hung = s.hung || state().event_hung[event];
  return cudaSuccess;
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  ENTER("cudaEventCreate", 0);
  void* handle = new_handle();
  state().events[handle] = 0;
  *out = static_cast<cudaEvent_t>(handle);
  return cudaSuccess;
}
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER("cudaEventDestroy", 0);
  state().events.erase(event);
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER("cudaEventRecord", 0);
  state().events[event] = state().streams[stream].time;
  state().event_hung[event] = state().streams[stream].hung;
  return cudaSuccess;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER("cudaEventSynchronize", 0);
  wait_while([&] { return state().event_hung[event]; });
  return cudaSuccess;
}
API cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER("cudaEventQuery", 0);
  return state().event_hung[event] ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  ENTER("cudaEventElapsedTime", 0);
  *milliseconds = static_cast<float>((state().events[to] - state().events[from]) * 1e3);
  return cudaSuccess;
}

// Kernels: accepted, and given a time that depends on nothing.
namespace {
struct Call {
  dim3 grid, block;
  std::size_t shared = 0;
  void* stream = nullptr;
};
thread_local Call call;
constexpr double kernel_seconds = 4e-6;

cudaError_t launch(void* stream) {
  ENTER("cudaLaunchKernel", 0);
  queue(stream, kernel_seconds);
  return cudaSuccess;
}
}  // namespace

API void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                                void*, int*) {}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, void* stream) {
  call = {grid, block, shared, stream};
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared,
                                           void* stream) {
  *grid = call.grid;
  *block = call.block;
  *shared = call.shared;
  *static_cast<void**>(stream) = call.stream;
  return cudaSuccess;
}
API cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}
API cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t,
                                 cudaStream_t stream) {
  return launch(stream);
}
API cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, std::size_t, cudaStream_t stream) {
  return launch(stream);
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  ENTER("cudaFuncGetAttributes", 0);
  *attributes = cudaFuncAttributes{};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

// Graphs: a number of kernels.
API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  ENTER("cudaStreamBeginCapture", 0);
  state().streams[stream].captured = 0;
  return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  ENTER("cudaStreamEndCapture", 0);
  void* handle = new_handle();
  state().graphs[handle] = state().streams[stream].captured;
  state().streams[stream].captured = -1;
  *graph = static_cast<cudaGraph_t>(handle);
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                     unsigned long long) {
  ENTER("cudaGraphInstantiate", 0);
  void* handle = new_handle();
  state().graphs[handle] = state().graphs[graph];
  *executable = static_cast<cudaGraphExec_t>(handle);
  return cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  ENTER("cudaGraphLaunch", 0);
  queue(stream, kernel_seconds / 2 * state().graphs[executable]);
  return cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  state().graphs.erase(executable);
  return cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  state().graphs.erase(graph);
  return cudaSuccess;
}
