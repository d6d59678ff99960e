#include "run/collective_time.h"

#include <algorithm>
#include <cmath>

namespace shardfit::run {

double bytes_on_link(CollectiveKind kind, double bytes, int ranks) {
  if (ranks < 2) return 0;
  const double others = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * others * bytes;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      return others * bytes;
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
    case CollectiveKind::send:
    case CollectiveKind::receive:
      return bytes;
  }
  return bytes;
}

double collective_seconds(const spec::CollectiveSpeed& speed, const LinkRates& link,
                          CollectiveKind kind, double bytes, int ranks) {
  if (ranks < 2) return 0;
  const double sent = bytes_on_link(kind, bytes, ranks);
  const double others = static_cast<double>(ranks - 1);
  const double near = std::min(ranks, link.ranks_of_machine);
  const double few = std::pow(2 / near, speed.crowding) / (1 + speed.few_ranks / others);
  const bool far = ranks > link.ranks_of_machine;
  const double rate =
      far ? std::min(link.bytes_per_second, link.network_bytes_per_second) : link.bytes_per_second;
  double best = 1e30;
  for (const spec::Protocol& protocol : speed.protocols) {
    const double latency =
        protocol.latency_seconds +
        protocol.rank_seconds * (std::min(others, link.ranks_of_machine - 1.0) - 1);
    best = std::min(best, latency + sent / (rate * protocol.link_share * few));
  }
  if (far) {
    const double machines = static_cast<double>(ranks) / link.ranks_of_machine;
    best += link.network_seconds * std::max(1.0, std::log2(machines));
  }
  return best;
}

}  // namespace shardfit::run
