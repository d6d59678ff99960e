// Bytes of an NCCL communicator and of its first collectives.
#include <algorithm>
#include <numeric>

#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/communicators.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_communicator(Session& session) {
  const Nccl nccl;
  if (!nccl.there()) return session.waive(nccl.missing());
  std::vector<int> devices(static_cast<std::size_t>(session.devices()));
  std::iota(devices.begin(), devices.end(), 0);
  // The device under test last, so that its free bytes are read where it is current.
  const auto free_bytes = [&] {
    const OnDevice on(session.options().device);
    return memory_info().free;
  };
  const std::int64_t before = free_bytes();
  const Communicators group(nccl, devices);
  std::int64_t last = free_bytes();
  const std::string of = " of " + std::to_string(devices.size()) + " ranks";
  session.add_once("communicator" + of, Unit::bytes, static_cast<double>(before - last),
                   "free bytes before less after ncclCommInitAll");
  constexpr std::int64_t bytes = 16 << 20;
  const GroupBuffers buffers(devices, bytes);
  last = free_bytes();
  for (const CollectiveKind kind :
       {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
        CollectiveKind::all_to_all, CollectiveKind::send}) {
    group.run(kind, bytes, buffers);
    group.wait();
    const std::int64_t free = free_bytes();
    session.add_once(std::string("first ") + collective_name(kind), Unit::bytes,
                     static_cast<double>(last - free), "free bytes before less after, 16 MiB");
    last = free;
  }
}

}  // namespace shardfit::calibrate
