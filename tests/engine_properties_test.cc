// Invariants of the programs that the engine writes, over seeded models and jobs.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "model_support.h"
#include "run/run.h"
#include "support.h"

namespace shardfit {
namespace {

using program::Implementation;
using program::Lowering;
using program::Recompute;
using program::TrainingJob;

/// A small Llama-like model: any heads, groups and widths that go together.
spec::ModelSpec random_model(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int> from) {
    std::uniform_int_distribution<std::size_t> at(0, from.size() - 1);
    return *(from.begin() + at(random));
  };
  spec::ModelSpec model = test::model_named("llama-3-8b");
  const int heads = pick({2, 4, 8});
  const int head_dim = pick({16, 32, 40, 64});
  test::set_number(model, "num_attention_heads", heads);
  test::set_number(model, "num_key_value_heads", heads / pick({1, 2}));
  test::set_number(model, "hidden_size", heads * head_dim);
  test::set_number(model, "intermediate_size", pick({96, 256, 300}));
  test::set_number(model, "num_hidden_layers", pick({1, 2, 3}));
  test::set_number(model, "vocab_size", pick({100, 513, 2048}));
  return model;
}

TrainingJob random_job(std::mt19937& random) {
  const auto pick = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  TrainingJob job;
  job.program = std::array{"plain-loop-1", "plain-loop-2"}[static_cast<std::size_t>(pick(2))];
  job.sequence = 8 * (1 + pick(12));
  job.micro_batch = 1 + pick(3);
  job.accumulation = 1 + pick(2);
  job.optimizer = std::array{"adamw", "sgd", "adafactor"}[static_cast<std::size_t>(pick(3))];
  job.parameters = pick(2) ? DType::bf16 : DType::f32;
  if (job.parameters == DType::f32 && pick(2)) job.autocast = DType::bf16;
  if (pick(3) == 0) job.attention = "eager";
  if (pick(3) == 0) job.clip_foreach = true;
  if (pick(3) == 0) {
    job.recompute = Recompute::full;
    job.reentrant = pick(2) == 1;
  }
  return job;
}

using ByCategory = std::array<std::int64_t, category_count>;

/// The live bytes after each instruction.
struct Walk {
  std::int64_t live = 0, peak = 0;
  ByCategory categories{};
  std::vector<char> state;  // 0 never, 1 live, 2 freed
  bool sound = true;
  explicit Walk(const Program& program) : state(program.storages.size(), 0) {}
  void step(const Program& program, const Instruction& i) {
    if (i.action != Action::allocate && i.action != Action::release) return;
    const StorageInfo& storage = program.storages[i.id];
    const bool take = i.action == Action::allocate;
    sound = sound && state[i.id] == (take ? 0 : 1) && storage.bytes > 0;
    state[i.id] = take ? 1 : 2;
    live += take ? storage.bytes : -storage.bytes;
    categories[static_cast<std::size_t>(storage.category)] += take ? storage.bytes : -storage.bytes;
    peak = std::max(peak, live);
  }
};

std::int64_t requested_peak(const Program& program) {
  Walk walk(program);
  for (const Instruction& i : program.instructions) walk.step(program, i);
  return walk.peak;
}

/// Activations alive at the end of the first forward: what backward will read.
std::int64_t stored_activations(const Program& program) {
  Walk walk(program);
  for (const Instruction& i : program.instructions) {
    walk.step(program, i);
    if (i.action == Action::phase && program.phases[i.id].name == "forward") break;
  }
  return walk.categories[static_cast<std::size_t>(Category::activation)];
}

bool same(const Program& a, const Program& b) {
  const auto instruction = [](const Instruction& x, const Instruction& y) {
    return x.action == y.action && x.stream == y.stream && x.id == y.id;
  };
  const auto storage = [](const StorageInfo& x, const StorageInfo& y) {
    return x.bytes == y.bytes && x.category == y.category && x.stream == y.stream &&
           x.backward == y.backward && x.module == y.module && std::strcmp(x.kind, y.kind) == 0;
  };
  return std::equal(a.instructions.begin(), a.instructions.end(), b.instructions.begin(),
                    b.instructions.end(), instruction) &&
         std::equal(a.storages.begin(), a.storages.end(), b.storages.begin(), b.storages.end(),
                    storage) &&
         a.modules == b.modules;
}

}  // namespace

TEST_CASE("every storage is allocated before it is freed, and once; categories sum to the total") {
  for (unsigned seed = 0; seed < test::fuzz_rounds(12); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Lowering lowering(random_model(random), "plain-pytorch");
    const Program program = lowering.lower(random_job(random));
    Walk walk(program);
    bool sums = true;
    for (const Instruction& i : program.instructions) {
      walk.step(program, i);
      std::int64_t sum = 0;
      for (const std::int64_t bytes : walk.categories) {
        sum += bytes;
        sums = sums && bytes >= 0;
      }
      sums = sums && sum == walk.live;
    }
    CHECK(walk.sound);
    CHECK(sums);
    CHECK(std::count(walk.state.begin(), walk.state.end(), 0) == 0);
    bool labelled = true;
    for (const StorageInfo& storage : program.storages) {
      labelled = labelled && *storage.kind && storage.module < program.modules.size();
    }
    CHECK(labelled);
    // What the memory clock reads off the same program is the same.
    const run::RunResult result = run::run_program(program, {});
    for (const run::PhaseReading& phase : result.phases) {
      std::int64_t sum = 0;
      for (const std::int64_t bytes : phase.categories) sum += bytes;
      CHECK(sum <= phase.allocated);
      CHECK(sum > 0);
      CHECK(phase.allocated <= phase.reserved);
    }
  }
}

TEST_CASE("between steps only parameters, optimizer states, workspaces and the loop's names live") {
  for (unsigned seed = 0; seed < test::fuzz_rounds(6); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Lowering lowering(random_model(random), "plain-pytorch");
    TrainingJob job = random_job(random);
    job.program = "plain-loop-1";
    const Program program = lowering.lower(job);
    Walk walk(program);
    for (const Instruction& i : program.instructions) {
      walk.step(program, i);
      if (i.action != Action::phase || program.phases[i.id].name != "between_steps") continue;
      CHECK(walk.categories[static_cast<std::size_t>(Category::activation)] == 0);
      CHECK(walk.categories[static_cast<std::size_t>(Category::gradient)] == 0);
      CHECK(walk.categories[static_cast<std::size_t>(Category::parameter)] > 0);
    }
  }
}

TEST_CASE("a larger micro-batch never needs fewer requested bytes") {
  for (unsigned seed = 0; seed < test::fuzz_rounds(4); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Lowering lowering(random_model(random), "plain-pytorch");
    TrainingJob job = random_job(random);
    std::int64_t before = 0;
    for (std::int64_t batch = 1; batch <= 6; ++batch) {
      job.micro_batch = batch;
      const std::int64_t peak = requested_peak(lowering.lower(job));
      CAPTURE(batch);
      CHECK(peak >= before);
      before = peak;
    }
  }
}

TEST_CASE("recompute never raises stored activations") {
  for (unsigned seed = 0; seed < test::fuzz_rounds(6); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Lowering lowering(random_model(random), "plain-pytorch");
    TrainingJob job = random_job(random);
    job.recompute = Recompute::none;
    job.reentrant = false;
    const std::int64_t stored = stored_activations(lowering.lower(job));
    job.recompute = Recompute::full;
    const std::int64_t full = stored_activations(lowering.lower(job));
    CHECK(full < stored);
    for (const Recompute policy :
         {Recompute::every_second, Recompute::save_attention, Recompute::save_attention_matmul}) {
      job.recompute = policy;
      const std::int64_t some = stored_activations(lowering.lower(job));
      CHECK(some <= stored);
      CHECK(some >= full);
    }
  }
}

TEST_CASE("the same model and job give the same program, and watching it changes nothing") {
  for (unsigned seed = 0; seed < test::fuzz_rounds(6); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const Lowering lowering(random_model(random), "plain-pytorch");
    TrainingJob job = random_job(random);
    const Program program = lowering.lower(job);
    CHECK(same(program, lowering.lower(job)));
    job.record_computes = true;
    Program recorded = lowering.lower(job);
    CHECK(!recorded.computes.empty());
    std::erase_if(recorded.instructions,
                  [](const Instruction& i) { return i.action == Action::compute; });
    CHECK(same(program, recorded));
    for (const Compute& compute : recorded.computes) {
      CHECK(compute.flops >= 0);
      CHECK(compute.bytes >= 0);
    }
  }
}

TEST_CASE("reentrant recompute of a decoder gives the encoder its gradient") {
  spec::ModelSpec model = spec::read_model("t5-base");
  for (const char* layers : {"num_layers", "num_decoder_layers"})
    test::set_number(model, layers, 2);
  program::TrainingJob job;
  job.sequence = 64;
  job.decoder_sequence = 32;
  job.record_computes = true;
  job.recompute = program::Recompute::full;
  job.reentrant = true;
  const Program program = program::Lowering(std::move(model), job.framework).lower(job);
  const auto in_encoder = [&](const Compute& compute) {
    return compute.backward && program.modules[compute.module].rfind("encoder.block", 0) == 0;
  };
  CHECK(std::any_of(program.computes.begin(), program.computes.end(), in_encoder));
}

}  // namespace shardfit
