// cuBLAS, cuBLASLt, NCCL, NVML and the driver's mapped memory, as far as this program calls them.
#include <cuda.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "calibrate/stand_in/state.h"

using namespace stand_in;

#define API extern "C" __attribute__((visibility("default")))
#define ENTER(call, detail)                                       \
  const std::lock_guard<std::recursive_mutex> held(state().lock); \
  if (const int injected = enter(call, static_cast<std::int64_t>(detail))) return injected;

namespace {

/// What a cuBLAS handle takes of the device: invented, no source says it.
constexpr std::int64_t handle_bytes = 8 << 20;
/// What a communicator takes when it is made: one channel's buffers to one peer in both directions,
/// 12 MiB (nccl src/transport/p2p.cc, src/init.cc computeBuffSizes). The rest of
/// Profile::communicator comes with the first collective, as NCCL makes its connections then.
constexpr std::int64_t first_channel = 12 << 20;

struct Handle {
  int device = 0;
  void* stream = nullptr;
  std::int64_t bytes = 0;
};
std::map<void*, Handle> handles;  // cuBLAS handles, NCCL communicators

int make_handle(void** out, std::int64_t bytes, int no_memory) {
  if (!take(current, bytes)) return no_memory;
  *out = new_handle();
  handles[*out] = {current, nullptr, bytes};
  return 0;
}
int drop_handle(void* handle) {
  const auto found = handles.find(handle);
  if (found == handles.end()) return 0;
  give(found->second.device, found->second.bytes);
  handles.erase(found);
  return 0;
}
/// The communicator's connections, made by its first collective; false where there is no room.
bool connect(void* communicator) {
  Handle& handle = handles[communicator];
  const std::int64_t missing = profile().communicator - handle.bytes;
  if (missing <= 0) return true;
  if (!take(handle.device, missing)) return false;
  handle.bytes += missing;
  return true;
}

double product_seconds(double m, double n, double k, double batch) {
  return 3e-6 + 2 * m * n * k * batch / profile().flops;
}

int exchange(const char* call, std::size_t bytes, void* communicator, void* stream) {
  ENTER(call, bytes);
  if (!connect(communicator)) return 1;  // ncclUnhandledCudaError
  queue(stream, 8e-6 + static_cast<double>(bytes) / profile().link);
  state().link_lost = state().link_lost || hangs(call);
  if (state().link_lost) state().streams[stream].hung = true;
  return 0;
}

std::size_t size_of(int nccl_type) {
  constexpr std::size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[nccl_type];
}

}  // namespace

// cuBLAS.
API int cublasCreate_v2(void** handle) {
  ENTER("cublasCreate", 0);
  return make_handle(handle, handle_bytes, 3);
}
API int cublasDestroy_v2(void* handle) {
  ENTER("cublasDestroy", 0);
  return drop_handle(handle);
}
API int cublasSetStream_v2(void* handle, void* stream) {
  ENTER("cublasSetStream", 0);
  handles[handle].stream = stream;
  return 0;
}
API int cublasSetWorkspace_v2(void*, void*, std::size_t bytes) {
  ENTER("cublasSetWorkspace", bytes);
  return 0;
}
API int cublasGemmStridedBatchedEx(void* handle, int, int, int m, int n, int k, const void*,
                                   const void*, int, int, long long, const void*, int, int,
                                   long long, const void*, void*, int, int, long long, int batch,
                                   int, int) {
  ENTER("cublasGemm", m);
  queue(handles[handle].stream, product_seconds(m, n, k, batch));
  return 0;
}
API int cublasGemmGroupedBatchedEx(void* handle, const int*, const int*, const int* m, const int* n,
                                   const int* k, const void*, const void* const*, int, const int*,
                                   const void* const*, int, const int*, const void*, void* const*,
                                   int, const int*, int groups, const int* sizes, int) {
  ENTER("cublasGemmGrouped", groups);
  for (int g = 0; g < groups; ++g) {
    queue(handles[handle].stream, product_seconds(m[g], n[g], k[g], sizes[g]));
  }
  return 0;
}

// cuBLASLt: a descriptor is a handle, a layout its rows and columns.
namespace {
std::map<void*, std::pair<double, double>> layouts;
}
API int cublasLtCreate(void** handle) {
  ENTER("cublasLtCreate", 0);
  return make_handle(handle, 0, 3);
}
API int cublasLtDestroy(void* handle) { return drop_handle(handle); }
API int cublasLtMatmulDescCreate(void** desc, int, int) {
  *desc = new_handle();
  return 0;
}
API int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) { return 0; }
API int cublasLtMatmulDescDestroy(void*) { return 0; }
API int cublasLtMatrixLayoutCreate(void** layout, int, std::uint64_t rows, std::uint64_t columns,
                                   std::int64_t) {
  *layout = new_handle();
  layouts[*layout] = {static_cast<double>(rows), static_cast<double>(columns)};
  return 0;
}
API int cublasLtMatrixLayoutDestroy(void* layout) {
  layouts.erase(layout);
  return 0;
}
API int cublasLtMatmul(void*, void*, const void*, const void*, void* a, const void*, void*,
                       const void*, const void*, void*, void*, void* d, const void*, void*,
                       std::size_t, void* stream) {
  ENTER("cublasLtMatmul", 0);
  queue(stream, product_seconds(layouts[d].first, layouts[d].second, layouts[a].first, 1) / 2);
  return 0;
}

// NCCL.
struct NcclId {
  char internal[128];
};
API int ncclGetUniqueId(NcclId* id) {
  ENTER("ncclGetUniqueId", 0);
  std::memset(id, 7, sizeof *id);
  return 0;
}
API int ncclCommInitRank(void** communicator, int ranks, NcclId, int) {
  for (;;) {  // a rank that never comes
    {
      ENTER("ncclCommInitRank", ranks);
      if (!hangs("ncclCommInitRank")) break;
    }
    pause();
  }
  ENTER("ncclCommInitRank joined", ranks);
  return make_handle(communicator, std::min(first_channel, profile().communicator), 1);
}
API int ncclCommInitAll(void** communicators, int count, const int* devices) {
  ENTER("ncclCommInitAll", count);
  const int before = current;
  int result = 0;
  for (int i = 0; i < count && result == 0; ++i) {
    current = devices[i];
    result = make_handle(&communicators[i], std::min(first_channel, profile().communicator), 1);
  }
  current = before;
  return result;
}
API int ncclCommDestroy(void* communicator) {
  ENTER("ncclCommDestroy", 0);
  return drop_handle(communicator);
}
API int ncclCommAbort(void* communicator) {
  const std::lock_guard<std::recursive_mutex> held(state().lock);
  enter("ncclCommAbort");
  // What waited for the lost link ends.
  for (auto& [handle, stream] : state().streams) stream.hung = false;
  for (auto& [handle, hung] : state().event_hung) hung = false;
  return drop_handle(communicator);
}
API int ncclCommGetAsyncError(void*, int* error) {
  const std::lock_guard<std::recursive_mutex> held(state().lock);
  *error = enter("ncclCommGetAsyncError");
  return 0;
}
API const char* ncclGetErrorString(int error) {
  return error == 6 ? "remote process exited or there was a network error" : "NCCL error";
}
API int ncclGroupStart() { return 0; }
API int ncclGroupEnd() {
  ENTER("ncclGroupEnd", 0);
  return 0;
}
API int ncclAllReduce(const void*, void*, std::size_t count, int type, int, void* communicator,
                      void* stream) {
  return exchange("ncclAllReduce", count * size_of(type), communicator, stream);
}
API int ncclAllGather(const void*, void*, std::size_t count, int type, void* communicator,
                      void* stream) {
  return exchange("ncclAllGather", count * size_of(type), communicator, stream);
}
API int ncclReduceScatter(const void*, void*, std::size_t count, int type, int, void* communicator,
                          void* stream) {
  return exchange("ncclReduceScatter", count * size_of(type), communicator, stream);
}
API int ncclBroadcast(const void*, void*, std::size_t count, int type, int, void* communicator,
                      void* stream) {
  return exchange("ncclBroadcast", count * size_of(type), communicator, stream);
}
API int ncclReduce(const void*, void*, std::size_t count, int type, int, int, void* communicator,
                   void* stream) {
  return exchange("ncclReduce", count * size_of(type), communicator, stream);
}
API int ncclSend(const void*, std::size_t count, int type, int, void* communicator, void* stream) {
  return exchange("ncclSend", count * size_of(type), communicator, stream);
}
API int ncclRecv(void*, std::size_t count, int type, int, void* communicator, void* stream) {
  return exchange("ncclRecv", count * size_of(type), communicator, stream);
}

// NVML.
API int nvmlInit_v2() {
  ENTER("nvmlInit", 0);
  return 0;
}
API int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::snprintf(text, length, "stand-in");
  return 0;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  unsigned index = 0;
  std::sscanf(bus, "0000:%x", &index);
  *device = reinterpret_cast<void*>(static_cast<std::uint64_t>(index));  // from 1
  return 0;
}
API int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* clock) {
  *clock = 1000;
  return 0;
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  const std::lock_guard<std::recursive_mutex> held(state().lock);
  *reasons = static_cast<unsigned long long>(enter("nvmlThrottleReasons"));
  return 0;
}
API int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  const std::lock_guard<std::recursive_mutex> held(state().lock);
  const auto index = static_cast<int>(reinterpret_cast<std::uint64_t>(device)) - 1;
  const bool context = state().devices[static_cast<std::size_t>(index)].context;
  const std::int64_t free = free_bytes(index) + (context ? 0 : profile().context);
  total_free_used[0] = static_cast<unsigned long long>(profile().usable);
  total_free_used[1] = static_cast<unsigned long long>(free);
  total_free_used[2] = static_cast<unsigned long long>(profile().usable - free);
  return 0;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, void* list) {
  ENTER("nvmlProcesses", 0);
  struct Info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
  } info{static_cast<unsigned>(getpid()), 0, 0, 0};
  const auto index = static_cast<int>(reinterpret_cast<std::uint64_t>(device)) - 1;
  info.used = static_cast<unsigned long long>(profile().usable - free_bytes(index));
  if (*count < 1) return 7;
  std::memcpy(list, &info, sizeof info);
  *count = 1;
  return 0;
}

// Mapped memory of the driver.
#undef ENTER
#define ENTER(call, detail)                                                  \
  const std::lock_guard<std::recursive_mutex> held(state().lock);            \
  if (const int injected = enter(call, static_cast<std::int64_t>(detail))) { \
    return static_cast<CUresult>(injected);                                  \
  }
namespace {
std::map<std::uint64_t, std::pair<int, std::int64_t>> mapped;  // device and bytes by handle
}
API CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                           CUmemAllocationGranularity_flags) {
  *bytes = page;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr,
                                 unsigned long long) {
  ENTER("cuMemAddressReserve", bytes);
  *address = new_address(current, static_cast<std::int64_t>(bytes));
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr, std::size_t bytes) {
  ENTER("cuMemAddressFree", bytes);
  return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                         const CUmemAllocationProp* properties, unsigned long long) {
  ENTER("cuMemCreate", bytes);
  const int device = properties->location.id;
  if (!take(device, static_cast<std::int64_t>(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<std::uint64_t>(new_handle());
  mapped[*handle] = {device, static_cast<std::int64_t>(bytes)};
  return CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  ENTER("cuMemRelease", 0);
  const auto found = mapped.find(handle);
  if (found == mapped.end()) return CUDA_ERROR_INVALID_VALUE;
  give(found->second.first, found->second.second);
  mapped.erase(found);
  return CUDA_SUCCESS;
}
API CUresult cuMemMap(CUdeviceptr, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle,
                      unsigned long long) {
  ENTER("cuMemMap", bytes);
  return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr, std::size_t bytes) {
  ENTER("cuMemUnmap", bytes);
  return CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t) {
  ENTER("cuMemSetAccess", 0);
  return CUDA_SUCCESS;
}
