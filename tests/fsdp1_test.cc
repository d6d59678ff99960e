// FullyShardedDataParallel: what its program exchanges and when. Bytes are held by the exact
// readings.

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>

#include "strategy_support.h"

using namespace shardfit;

namespace {

using test::exchanges;
constexpr std::int64_t layers = test::small_layers;
using Sharding = program::Fsdp1Job::Sharding;

Program lower(const program::Fsdp1Job& fsdp, int steps = 1) {
  program::TrainingJob job = test::small_job(steps);
  job.fsdp1 = fsdp;
  return test::lower_small_llama(job);
}

}  // namespace

TEST_CASE("fsdp1: a block is gathered twice and reduced once a step, the root gathered once") {
  const auto count = exchanges(lower({}));
  CHECK(count.at(CollectiveKind::all_gather) == 2 * layers + 1);
  CHECK(count.at(CollectiveKind::reduce_scatter) == layers + 1);
  CHECK(count.size() == 2);
}

TEST_CASE("fsdp1: where only gradients and states are sharded, a block is gathered once") {
  program::Fsdp1Job fsdp;
  fsdp.sharding = Sharding::gradients_and_states;
  CHECK(exchanges(lower(fsdp)).at(CollectiveKind::all_gather) == layers + 1);
}

TEST_CASE("fsdp1: without sharding, gradients are all-reduced; one rank exchanges nothing") {
  program::Fsdp1Job fsdp;
  fsdp.sharding = Sharding::none;
  const auto count = exchanges(lower(fsdp));
  CHECK(count.at(CollectiveKind::all_reduce) == layers + 1);
  CHECK(count.size() == 1);
  fsdp.sharding = Sharding::full;
  fsdp.ranks = 1;
  CHECK(exchanges(lower(fsdp)).empty());
}

TEST_CASE("fsdp1: at most two gathers are ahead of what has been let go") {
  const Program program = lower({}, 2);
  std::set<std::uint32_t> waited;
  int gathers = 0;
  for (const Instruction& i : program.instructions) {
    if (i.action == Action::host_wait) waited.insert(i.id);
    gathers += i.action == Action::collective &&
               program.collectives[i.id].kind == CollectiveKind::all_gather;
  }
  CHECK(!waited.empty());
  program::Fsdp1Job fsdp;
  fsdp.limit_gathers = false;
  int unlimited = 0;
  for (const Instruction& i : lower(fsdp, 2).instructions) {
    unlimited += i.action == Action::host_wait;
  }
  CHECK(unlimited == 0);
  CHECK(gathers == 2 * (2 * layers + 1));
}

TEST_CASE("fsdp1: shards of all ranks hold the flat parameters, padded to 16 bytes and the ranks") {
  program::Fsdp1Job fsdp;
  fsdp.ranks = 3;
  std::set<std::int64_t> bytes;
  for (const Collective& c : lower(fsdp).collectives) bytes.insert(c.bytes);
  const std::int64_t block =
      2048 * 2048 * 2 + 512 * 2048 * 2 + 3 * 2048 * 8192 + 2 * 2048;  // all parts divide by 8
  const std::int64_t root = 128256 * 2048 + 2048;
  CHECK(bytes == std::set<std::int64_t>{2 * ((block + 2) / 3 * 3), 2 * ((root + 2) / 3 * 3)});
}

TEST_CASE("fsdp1: a model built on the host is on the card a unit at a time") {
  program::Fsdp1Job fsdp;
  fsdp.ranks = 8;
  // A unit's parameters and the flat one made of them are there at once.
  test::check_a_unit_at_a_time(fsdp, 2, [](const program::Fsdp1Job& job) { return lower(job); });
}

TEST_CASE("fsdp1: nothing waits for an event that has not been recorded") {
  program::Fsdp1Job fsdp;
  fsdp.sharding = Sharding::hybrid;
  fsdp.replicas = 2;
  fsdp.compute = DType::bf16;
  fsdp.reduce = DType::f32;
  std::set<std::uint32_t> recorded;
  int waits = 0;
  for (const Instruction& i : lower(fsdp, 3).instructions) {
    if (i.action == Action::record_event) recorded.insert(i.id);
    if (i.action != Action::wait_event && i.action != Action::host_wait) continue;
    ++waits;
    CHECK(recorded.count(i.id) == 1);
  }
  CHECK(waits > 0);
}
