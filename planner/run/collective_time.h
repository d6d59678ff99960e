#pragma once
// Seconds of one exchange between ranks: latency + bytes over the pair's real link, by the cheapest
// of a library's protocols.

#include "spec/speed_spec.h"
#include "tensor/program.h"

namespace shardfit::run {

/// The link between the ranks of a job.
struct LinkRates {
  double bytes_per_second = 0;  // one direction, what one rank can send in all to the others
  int ranks_of_machine = 8;     // more ranks than these talk over the network
  double network_bytes_per_second = 50e9;  // one direction, for each rank
  double network_seconds = 20e-6;          // more latency for every doubling of machines
};

/// Bytes each rank sends over its link: a ring's share of the whole buffer of `bytes`.
double bytes_on_link(CollectiveKind kind, double bytes, int ranks);

/// Seconds from the last rank's arrival to the end.
double collective_seconds(const spec::CollectiveSpeed& speed, const LinkRates& link,
                          CollectiveKind kind, double bytes, int ranks);

}  // namespace shardfit::run
