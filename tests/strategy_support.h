#pragma once
// A small Llama lowered under a strategy, and what its program exchanges.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "model_support.h"

namespace shardfit::test {

inline constexpr std::int64_t small_layers = 3;

/// Of the tied embedding and the last norm: all that is outside its blocks.
inline constexpr std::int64_t small_root_bytes = (128256 + 1) * 2048 * 2;

/// A plain-pytorch job of 64 tokens, to be given a strategy.
inline program::TrainingJob small_job(int steps) {
  program::TrainingJob job;
  job.program = "plain-loop-1";
  job.sequence = 64;
  job.steps = steps;
  return job;
}

/// The job on three layers of Llama 3.2 1B.
inline Program lower_small_llama(const program::TrainingJob& job) {
  spec::ModelSpec model = spec::read_model(
      SHARDFIT_SOURCE_DIR "/tests/data/validate/models/meta-llama__Llama-3.2-1B.json");
  set_number(model, "num_hidden_layers", small_layers);
  return program::Lowering(std::move(model), "plain-pytorch").lower(job);
}

/// How many exchanges of each kind.
inline std::map<CollectiveKind, int> exchanges(const Program& program) {
  std::map<CollectiveKind, int> count;
  for (const Instruction& i : program.instructions) {
    if (i.action == Action::collective) ++count[program.collectives[i.id].kind];
  }
  return count;
}

/// Bytes up to `loaded`: the most that are alive at once, and what is alive then.
struct Loading {
  std::int64_t peak = 0, loaded = 0;
};
inline Loading loading_of(const Program& program) {
  Loading loading;
  for (const Instruction& i : program.instructions) {
    if (i.action == Action::phase) break;
    if (i.action == Action::allocate) loading.loaded += program.storages[i.id].bytes;
    if (i.action == Action::release) loading.loaded -= program.storages[i.id].bytes;
    loading.peak = std::max(loading.peak, loading.loaded);
  }
  return loading;
}

/// A model that is built on the host, sharded as `sharded` says, is on the card a unit at a time:
/// the largest unit `times` over beside the shards, where one built on the card is there whole.
template <class Sharded, class Lower>
void check_a_unit_at_a_time(Sharded sharded, std::int64_t times, Lower lower) {
  const Program built_there = lower(sharded);
  const Loading on_device = loading_of(built_there);
  sharded.built_on_host = true;
  const Loading loading = loading_of(lower(sharded));
  CHECK(on_device.peak > 2 * built_there.parameters_total);  // bf16
  CHECK(loading.peak <= times * small_root_bytes + loading.loaded);
  CHECK(loading.peak > times * small_root_bytes);
  CHECK(loading.loaded == on_device.loaded);
}

}  // namespace shardfit::test
