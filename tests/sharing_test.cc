// Ranks that share a job: equal ones are lowered once, and are equal.

#include "search/sharing.h"

#include <doctest/doctest.h>

#include <set>

#include "program/lora.h"
#include "spec/model_spec.h"

using namespace shardfit;
using spec::Parallel;

namespace {

/// What memory depends on.
bool same_bytes(const Program& a, const Program& b) {
  if (a.instructions.size() != b.instructions.size() || a.storages.size() != b.storages.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.instructions.size(); ++i) {
    const Instruction &x = a.instructions[i], &y = b.instructions[i];
    if (x.action != y.action || x.stream != y.stream || x.id != y.id) return false;
  }
  for (std::size_t i = 0; i < a.storages.size(); ++i) {
    if (a.storages[i].bytes != b.storages[i].bytes) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("ranks that are lowered once have the programs that each has by itself") {
  const program::Lowering lowering(
      spec::read_model(SHARDFIT_SOURCE_DIR "/tests/data/models/tiny-llama.json", {}),
      "plain-pytorch");
  program::TrainingJob job;
  job.sequence = 64;
  job.steps = 2;
  program::TrainingJob adapted = job;
  adapted.lora = program::LoraJob{};
  adapted.lora->rank = 10;
  adapted.lora->targets = {"q_proj", "v_proj"};
  const auto parameters = static_cast<std::int64_t>(lowering.parameters().size());
  for (const auto& [parallel, ranks] : {std::pair<Parallel, std::int64_t>{Parallel::fsdp2, 3},
                                        {Parallel::fsdp2, 7},
                                        {Parallel::fsdp2, 300},
                                        {Parallel::zero1, 5},
                                        {Parallel::zero1, parameters + 9}}) {
    for (const program::TrainingJob& one : {job, adapted}) {
      CAPTURE(ranks);
      CAPTURE(one.lora.has_value());
      if (one.lora && parallel == Parallel::zero1) continue;
      const auto job_of = [&](int rank) { return search::job_of_rank(one, parallel, ranks, rank); };
      const auto lowered =
          search::lower_groups(lowering, search::rank_groups(one, parallel, ranks), job_of);
      REQUIRE(static_cast<std::int64_t>(lowered.size()) == ranks);
      std::set<const Program*> programs;
      for (int rank = 0; rank < ranks; ++rank) {
        const Program& shared = *lowered[static_cast<std::size_t>(rank)].program;
        programs.insert(&shared);
        // Where one stands for many, some of them are looked at.
        if (ranks > 20 && rank % 23 != 5 && rank + 2 < ranks && rank > 2) continue;
        CAPTURE(rank);
        CHECK(same_bytes(shared, lowering.lower(job_of(rank))));
      }
      if (ranks >= 300) CHECK(programs.size() < 40);
      if (parallel == Parallel::zero1 && ranks > parameters) {
        CHECK(static_cast<std::int64_t>(programs.size()) == parameters + 1);
      }
    }
  }
}

TEST_CASE("ranks of ZeRO-3 share one program where their parts are equal, and only there") {
  const program::Lowering lowering(
      spec::read_model(SHARDFIT_SOURCE_DIR "/tests/data/models/tiny-llama.json", {}), "deepspeed");
  program::TrainingJob job;
  job.framework = "deepspeed";
  job.program = "deepspeed-loop-1";
  job.sequence = 64;
  job.steps = 2;
  for (const std::int64_t ranks : {2, 4, 7}) {
    CAPTURE(ranks);
    const auto job_of = [&](int rank) {
      return search::job_of_rank(job, Parallel::zero3, ranks, rank);
    };
    const auto lowered =
        search::lower_groups(lowering, search::rank_groups(job, Parallel::zero3, ranks), job_of);
    std::set<const Program*> programs;
    for (const search::LoweredGroup& one : lowered) {
      programs.insert(one.program.get());
      CHECK(same_bytes(*one.program, lowering.lower(job_of(one.group.rank))));
    }
    CHECK((programs.size() == 1) == (ranks != 7));
  }
}

TEST_CASE("no rank is lowered after the one that is not taken") {
  const program::Lowering lowering(
      spec::read_model(SHARDFIT_SOURCE_DIR "/tests/data/models/tiny-llama.json", {}),
      "plain-pytorch");
  program::TrainingJob job;
  job.sequence = 64;
  job.steps = 1;
  const auto job_of = [&](int rank) { return search::job_of_rank(job, Parallel::zero1, 5, rank); };
  const auto groups = search::rank_groups(job, Parallel::zero1, 5);
  int seen = 0;
  const auto lowered =
      search::lower_groups(lowering, groups, job_of, [&](const auto&) { return ++seen < 2; });
  CHECK(lowered.size() == 2);
  CHECK(seen == 2);
}

TEST_CASE("ranks of sharded adapters exchange alike, also one whose share holds none of them") {
  const program::Lowering lowering(
      spec::read_model(SHARDFIT_SOURCE_DIR "/tests/data/models/tiny-llama.json", {}), "hf-trainer");
  program::TrainingJob job;
  job.framework = "hf-trainer";
  job.program = "trainer-1";
  job.sequence = 64;
  job.steps = 2;
  job.clip_foreach = true;
  job.record_computes = true;
  job.lora = program::LoraJob{};
  job.lora->targets = {"q_proj", "v_proj"};
  job.lora->fp32_adapters = false;
  std::vector<std::vector<CollectiveKind>> exchanges;
  std::set<std::int64_t> gradients;
  for (const int rank : {0, 1, 2, 3}) {
    const Program one = lowering.lower(search::job_of_rank(job, Parallel::fsdp1, 4, rank));
    auto& own = exchanges.emplace_back();
    for (const Collective& collective : one.collectives) own.push_back(collective.kind);
    std::int64_t states = 0;
    for (const StorageInfo& storage : one.storages) {
      if (storage.category == Category::optimizer_state) states += storage.bytes;
    }
    gradients.insert(states > 0 ? 1 : 0);
  }
  CHECK(gradients.size() == 2);  // some rank has no adapter
  for (const auto& own : exchanges) CHECK(own == exchanges.front());
}
