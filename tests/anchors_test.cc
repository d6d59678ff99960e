// Published optima of other solvers, to the digits printed.
#include "anchors.h"

#include <doctest/doctest.h>

#include "partition/partition.h"
#include "support.h"

using namespace shardfit;
using namespace shardfit::partition;

namespace {

const std::string data = SHARDFIT_SOURCE_DIR "/tests/data/solver";

PartitionResult solve_placement(const test::Anchor& a) {
  PlacementInstance p = read_placement(spec::read_source(data + "/" + test::file_of(a)));
  double bytes = 0;
  for (const PlacementInstance::Node& n : p.nodes) bytes += n.bytes;
  std::vector<DeviceClass> devices;
  if (a.devices == "2")
    devices.push_back({"gpu", 2, false, 1, bytes * (a.cap == "loose" ? 2 : 0.55), true});
  else
    devices = {{"gpu", p.accelerators, false, 1, p.accelerator_bytes, true},
               {"cpu", p.cpus, true, 1, std::numeric_limits<double>::infinity(), false}};
  return solve_partition(raw_graph(p), devices, {});
}

}  // namespace

TEST_CASE("dnn-partitioning and PipeDream: every published optimum, proven") {
  int rows = 0;
  for (const test::Anchor& a : test::read_anchors(data)) {
    CAPTURE(a.instance);
    CAPTURE(a.cap);
    double objective = 0;
    PartitionResult r;
    if (a.set == "dnn-partitioning") {
      r = solve_placement(a);
      objective = r.objective_ms;
    } else if (a.set == "pipedream") {
      ProfileInstance p =
          without_inputs(read_profile(spec::read_source(data + "/" + test::file_of(a))));
      PartitionOptions options;
      options.limit_last_part = false;
      r = solve_partition(raw_graph(p), {{"gpu", 2, false, 1, 16e9, true}}, options);
      objective = r.objective_ms * 1e-3;
    } else {
      continue;
    }
    CHECK(test::digits_of(objective, a.digits) == a.optimum);
    CHECK(r.proven);
    ++rows;
  }
  CHECK(rows == 26);
}
