#include "calibrate/gpu/nccl.h"

#include <stdexcept>

namespace shardfit::calibrate {
namespace {

constexpr int sum = 0;
constexpr int in_progress = 7;

/// By value, as ncclCommInitRank takes it.
struct IdBytes {
  char internal[128];
};

int nccl_type(DType dtype) {
  switch (dtype) {
    case DType::i8:
      return 0;
    case DType::u8:
    case DType::boolean:
      return 1;
    case DType::i32:
      return 2;
    case DType::i64:
      return 4;
    case DType::f16:
      return 6;
    case DType::f64:
      return 8;
    case DType::bf16:
      return 9;
    case DType::i16:  // NCCL has no 16-bit integers; the bytes travel the same
      return 6;
    default:
      return 7;
  }
}

}  // namespace

Nccl::Nccl() : library_(calibrate::nccl()) {}

template <class... Arguments>
void Nccl::call(const char* name, Arguments... arguments) const {
  int (*function)(Arguments...) = nullptr;
  library_.get(function, name);
  const int result = function(arguments...);
  if (result == 0 || result == in_progress) return;
  const char* (*words)(int) = nullptr;
  library_.get_optional(words, "ncclGetErrorString");
  throw NcclError(std::string(name) + ": " +
                  (words ? words(result) : "NCCL error " + std::to_string(result)));
}

Nccl::UniqueId Nccl::unique_id() const {
  UniqueId id{};
  call<void*>("ncclGetUniqueId", id.data());
  return id;
}

std::vector<void*> Nccl::all(const std::vector<int>& devices) const {
  std::vector<void*> communicators(devices.size());
  call<void**, int, const int*>("ncclCommInitAll", communicators.data(),
                                static_cast<int>(devices.size()), devices.data());
  return communicators;
}

void* Nccl::join(int ranks, const UniqueId& id, int rank) const {
  IdBytes bytes{};
  std::copy(id.begin(), id.end(), bytes.internal);
  void* communicator = nullptr;
  call<void**, int, IdBytes, int>("ncclCommInitRank", &communicator, ranks, bytes, rank);
  return communicator;
}

void Nccl::destroy(void* communicator) const { call<void*>("ncclCommDestroy", communicator); }
void Nccl::abort(void* communicator) const { call<void*>("ncclCommAbort", communicator); }

void Nccl::check_async(void* communicator) const {
  int error = 0;
  call<void*, int*>("ncclCommGetAsyncError", communicator, &error);
  if (error == 0 || error == in_progress) return;
  const char* (*words)(int) = nullptr;
  library_.get_optional(words, "ncclGetErrorString");
  throw NcclError(std::string("NCCL lost the exchange: ") +
                  (words ? words(error) : std::to_string(error)));
}

void Nccl::group_start() const { call("ncclGroupStart"); }
void Nccl::group_end() const { call("ncclGroupEnd"); }

void Nccl::queue(CollectiveKind kind, DType dtype, std::int64_t bytes, int rank, int ranks,
                 int peer, const void* from, void* to, void* communicator,
                 cudaStream_t stream) const {
  const int type = nccl_type(dtype);
  const auto count = static_cast<std::size_t>(bytes / element_size(dtype));
  const std::size_t part = count / static_cast<std::size_t>(ranks);
  const auto piece = static_cast<std::size_t>(element_size(dtype)) * part;
  using In = const void*;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return call<In, void*, std::size_t, int, int, void*, cudaStream_t>(
          "ncclAllReduce", from, to, count, type, sum, communicator, stream);
    case CollectiveKind::all_gather:
      return call<In, void*, std::size_t, int, void*, cudaStream_t>("ncclAllGather", from, to, part,
                                                                    type, communicator, stream);
    case CollectiveKind::reduce_scatter:
      return call<In, void*, std::size_t, int, int, void*, cudaStream_t>(
          "ncclReduceScatter", from, to, part, type, sum, communicator, stream);
    case CollectiveKind::broadcast:
      return call<In, void*, std::size_t, int, int, void*, cudaStream_t>(
          "ncclBroadcast", from, to, count, type, 0, communicator, stream);
    case CollectiveKind::reduce:
      return call<In, void*, std::size_t, int, int, int, void*, cudaStream_t>(
          "ncclReduce", from, to, count, type, sum, 0, communicator, stream);
    case CollectiveKind::send:
      return call<In, std::size_t, int, int, void*, cudaStream_t>("ncclSend", from, count, type,
                                                                  peer, communicator, stream);
    case CollectiveKind::receive:
      return call<void*, std::size_t, int, int, void*, cudaStream_t>("ncclRecv", to, count, type,
                                                                     peer, communicator, stream);
    case CollectiveKind::all_to_all:
      break;
  }
  group_start();
  for (int other = 0; other < ranks; ++other) {
    if (other == rank) continue;
    const std::size_t at = piece * static_cast<std::size_t>(other);
    call<In, std::size_t, int, int, void*, cudaStream_t>(
        "ncclSend", static_cast<const char*>(from) + at, part, type, other, communicator, stream);
    call<void*, std::size_t, int, int, void*, cudaStream_t>(
        "ncclRecv", static_cast<char*>(to) + at, part, type, other, communicator, stream);
  }
  group_end();
}

}  // namespace shardfit::calibrate
