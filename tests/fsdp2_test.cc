// fully_shard: what its program exchanges and when. Bytes are held by the exact readings.

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>

#include "strategy_support.h"

using namespace shardfit;

namespace {

using test::exchanges;
constexpr std::int64_t layers = test::small_layers;

Program lower(const program::Fsdp2Job& fsdp, int steps = 1) {
  program::TrainingJob job = test::small_job(steps);
  job.fsdp2 = fsdp;
  return test::lower_small_llama(job);
}

std::int64_t shard_bytes(const Program& program) {
  std::int64_t bytes = 0;
  std::set<std::uint32_t> live;
  for (const Instruction& i : program.instructions) {
    if (i.action == Action::allocate) live.insert(i.id);
    if (i.action == Action::release) live.erase(i.id);
    if (i.action == Action::phase) break;  // loaded
  }
  for (const std::uint32_t id : live) {
    const StorageInfo& s = program.storages[id];
    if (s.category == Category::parameter && s.bytes > 256) bytes += s.bytes;
  }
  return bytes;
}

}  // namespace

TEST_CASE("fsdp2: a block is gathered twice and reduced once a step, the root gathered once") {
  const auto count = exchanges(lower({}));
  CHECK(count.at(CollectiveKind::all_gather) == 2 * layers + 1);
  CHECK(count.at(CollectiveKind::reduce_scatter) == layers + 1);
  CHECK(count.size() == 2);
}

TEST_CASE("fsdp2: blocks that stay whole after forward are gathered once a step") {
  program::Fsdp2Job fsdp;
  fsdp.reshard_after_forward = false;
  CHECK(exchanges(lower(fsdp)).at(CollectiveKind::all_gather) == layers + 1);
}

TEST_CASE("fsdp2: copies of the model all-reduce each shard's gradients") {
  program::Fsdp2Job fsdp;
  fsdp.replicas = 4;
  fsdp.rank = 5;
  const Program program = lower(fsdp);
  CHECK(exchanges(program).at(CollectiveKind::all_reduce) == layers + 1);
  const std::vector<std::vector<std::int32_t>> groups = {{4, 5}, {1, 3, 5, 7}};
  CHECK(program.groups == groups);
}

TEST_CASE("fsdp2: one rank exchanges nothing and still keeps shard and whole") {
  program::Fsdp2Job fsdp;
  fsdp.ranks = 1;
  const Program program = lower(fsdp);
  CHECK(exchanges(program).empty());
  int wholes = 0;
  for (const StorageInfo& s : program.storages) {
    wholes += std::string(s.kind) == "all_gather_copy_out" && s.category == Category::parameter;
  }
  CHECK(wholes > 0);
}

TEST_CASE("fsdp2: a gather's buffer holds the padded parameters of all ranks") {
  program::Fsdp2Job fsdp;
  fsdp.ranks = 3;
  const Program program = lower(fsdp);
  const std::int64_t hidden = 2048;
  const auto padded = [](std::int64_t rows) { return (rows + 2) / 3 * 3; };
  const std::int64_t block =
      2 * (2 * padded(2048) * hidden + 2 * padded(512) * hidden + 2 * padded(8192) * hidden +
           padded(2048) * 8192 + 2 * padded(2048));
  std::set<std::int64_t> bytes;
  for (const Collective& c : program.collectives) bytes.insert(c.bytes);
  CHECK(bytes == std::set<std::int64_t>{block, 2 * (padded(128256) * hidden + padded(2048))});
}

TEST_CASE("fsdp2: shards of all ranks hold the model, with padding to the first rank's rows") {
  program::Fsdp2Job fsdp;
  fsdp.ranks = 8;
  fsdp.rank = 7;
  CHECK(8 * shard_bytes(lower(fsdp)) == 2 * lower(fsdp).parameters_total);
}

TEST_CASE("fsdp2: a model built on the host is on the card a unit at a time") {
  program::Fsdp2Job fsdp;
  fsdp.ranks = 8;
  test::check_a_unit_at_a_time(fsdp, 1, [](const program::Fsdp2Job& job) { return lower(job); });
}

TEST_CASE("fsdp2: nothing waits for an event that has not been recorded") {
  program::Fsdp2Job fsdp;
  fsdp.replicas = 2;
  fsdp.ranks = 4;
  fsdp.reshard_ranks = 2;
  const Program program = lower(fsdp, 3);
  std::set<std::uint32_t> recorded;
  int waits = 0;
  for (const Instruction& i : program.instructions) {
    if (i.action == Action::record_event) recorded.insert(i.id);
    if (i.action != Action::wait_event && i.action != Action::host_wait) continue;
    ++waits;
    CHECK(recorded.count(i.id) == 1);
  }
  CHECK(waits > 0);
}

TEST_CASE("fsdp2: no memory is used after it was taken, none is given twice") {
  program::Fsdp2Job fsdp;
  const Program program = lower(fsdp, 3);
  std::vector<int> given(program.storages.size()), taken(program.storages.size());
  for (const Instruction& i : program.instructions) {
    if (i.action == Action::allocate) ++given[i.id];
    if (i.action == Action::release) ++taken[i.id];
  }
  for (std::size_t id = 0; id < given.size(); ++id) {
    CHECK(given[id] == 1);
    CHECK(taken[id] <= 1);
  }
}
