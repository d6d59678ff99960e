// Bytes and time of a stream and of an event.
#include <vector>

#include "calibrate/benchmarks/rows.h"
#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

constexpr int many = 128;

template <class Object>
void measure(Session& session, const char* name) {
  const std::int64_t before = memory_info().free;
  std::vector<Object> objects;
  objects.reserve(many);
  const double from = now();
  for (int i = 0; i < many; ++i) objects.emplace_back();
  const double seconds = (now() - from) / many;
  const double bytes = static_cast<double>(before - memory_info().free) / many;
  session.add_once(std::string(name) + " bytes", Unit::bytes, bytes, "a share of 128 of them");
  session.add_once(std::string(name) + " seconds", Unit::seconds, seconds,
                   "host's time to make one, of 128");
}

}  // namespace

void run_streams_events(Session& session) {
  measure<Stream>(session, "stream");
  measure<Event>(session, "event");
}

}  // namespace shardfit::calibrate
