// Total, free and context bytes.
#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

void run_context(Session& session) {
  const MemoryInfo memory = memory_info();
  const auto bytes = [](std::int64_t count) { return static_cast<double>(count); };
  session.add_once("usable", Unit::bytes, bytes(memory.total), "total of cudaMemGetInfo");
  session.add_once("free at start", Unit::bytes, bytes(session.facts().free_bytes),
                   "free of cudaMemGetInfo after the context was made");
  session.add_once("taken at start", Unit::bytes,
                   bytes(session.facts().usable_bytes - session.facts().free_bytes),
                   "total less free: the context, and whatever else was on the device");
  session.add_once("multiprocessors", Unit::count, session.facts().multiprocessors,
                   "cudaGetDeviceProperties");
  const DeviceFacts& facts = session.facts();
  const auto used = session.nvml().process_bytes(session.nvml_device());
  if (used) {
    session.add_once("context of this process", Unit::bytes, bytes(*used),
                     "NVML's bytes of this process, with one stream and one kernel image");
  } else if (facts.used_before >= 0 && facts.used_after > facts.used_before) {
    // In a container NVML does not know the process by its number.
    session.add_once("context of this process", Unit::bytes,
                     bytes(facts.used_after - facts.used_before),
                     "NVML's bytes in use after the context was made less before");
  } else {
    session.waive("context of this process: " + (session.nvml().there()
                                                     ? "NVML does not tell bytes in use here"
                                                     : session.nvml().missing()));
  }
}

}  // namespace shardfit::calibrate
