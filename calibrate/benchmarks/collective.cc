// NCCL collectives, every pair and all, one process.
#include <algorithm>
#include <numeric>

#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/communicators.h"
#include "calibrate/gpu/series.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

CollectiveKind kind_of(const std::string& name) {
  for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather,
                                    CollectiveKind::reduce_scatter, CollectiveKind::all_to_all}) {
    if (name == collective_name(kind)) return kind;
  }
  return CollectiveKind::send;
}

}  // namespace

void run_collective(Session& session) {
  const Nccl nccl;
  if (!nccl.there()) return session.waive(nccl.missing());
  Series series(session);
  std::vector<Case> cases = session.cases();
  for (std::size_t i = 0; i < cases.size();) {
    // Cases of one group of devices share a communicator.
    const Case& first = cases[i];
    std::vector<int> devices{first.from, first.to};
    if (first.from < 0) {
      devices.resize(static_cast<std::size_t>(session.devices()));
      std::iota(devices.begin(), devices.end(), 0);
    }
    const Communicators group(nccl, devices);
    for (; i < cases.size() && cases[i].from == first.from && cases[i].to == first.to; ++i) {
      const Case& c = cases[i];
      if (!session.room_for(c)) continue;
      const GroupBuffers buffers(devices, c.bytes);
      const Summary seconds = session.time_events(
          group.stream(0), [&] { group.run(kind_of(c.kind), c.bytes, buffers); },
          [&] { group.wait(); });
      series.add(c.name.substr(0, c.name.rfind(',')), c, seconds,
                 "events on the first device around the collective");
    }
  }
  series.fit("bytes of the whole buffer");
}

}  // namespace shardfit::calibrate
