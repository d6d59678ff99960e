// Granularity of mapped memory, and the time of a map.
#include "calibrate/gpu/virtual_memory.h"
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_virtual_memory(Session& session) {
  const VirtualMemory memory(session.options().device);
  if (!memory.there()) return session.waive(memory.missing());
  session.add_once("granularity", Unit::bytes, static_cast<double>(memory.granularity(false)),
                   "cuMemGetAllocationGranularity, minimum");
  session.add_once("recommended granularity", Unit::bytes,
                   static_cast<double>(memory.granularity(true)),
                   "cuMemGetAllocationGranularity, recommended");
  const std::int64_t page = std::max<std::int64_t>(memory.granularity(false), 20 << 20);
  const std::int64_t before = memory_info().free;
  {
    const auto range = memory.reserve(16 * page);
    const double from = now();
    std::vector<VirtualMemory::Page> pages;
    for (int i = 0; i < 16; ++i) pages.push_back(memory.map(range.address() + i * page, page));
    session.add_once("map of 20 MiB", Unit::seconds, (now() - from) / 16,
                     "host's time to create, map and open one, of 16");
    session.add_once("taken for 320 MiB", Unit::bytes,
                     static_cast<double>(before - memory_info().free),
                     "free bytes before less after");
  }
  session.add_once("left after the unmap", Unit::bytes,
                   static_cast<double>(before - memory_info().free),
                   "free bytes before less after");
}

}  // namespace shardfit::calibrate
