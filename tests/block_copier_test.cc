// Equal blocks that are copied give the program that running all of them gives.
#include "program/block_copier.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model_support.h"
#include "validate/cases.h"

using namespace shardfit;

namespace {

/// Every instruction with all that is said of it: storages and events by the order in which they
/// come up, modules by their paths.
std::vector<std::string> spelled(const Program& program) {
  std::vector<std::string> out;
  std::vector<std::size_t> order(program.storages.size());
  std::vector<std::size_t> events(program.events);  // 0: not yet
  std::size_t next = 0, next_event = 0;
  for (const Instruction& i : program.instructions) {
    std::string text = std::to_string(static_cast<int>(i.action)) + "@" + std::to_string(i.stream);
    const auto add = [&text](const auto&... parts) { ((text += ' ', text += parts), ...); };
    if (i.action == Action::allocate) {
      order[i.id] = next++;
      const StorageInfo& s = program.storages[i.id];
      add(std::to_string(s.bytes), category_name(s.category), s.kind, program.modules[s.module],
          s.backward ? "backward" : "forward");
    } else if (i.action == Action::release || i.action == Action::record_stream) {
      add(std::to_string(order[i.id]));
    } else if (i.action == Action::compute) {
      const Compute& c = program.computes[i.id];
      add(c.kind, program.modules[c.module], c.backward ? "backward" : "forward",
          std::to_string(c.flops), std::to_string(c.bytes), std::to_string(c.m),
          std::to_string(c.n), std::to_string(c.k), std::to_string(c.groups),
          std::to_string(static_cast<int>(c.dtype)));
    } else if (i.action == Action::collective) {
      const Collective& c = program.collectives[i.id];
      add(collective_name(c.kind), program.modules[c.module], c.backward ? "backward" : "forward",
          std::to_string(c.bytes), std::to_string(c.group), std::to_string(c.peer),
          std::to_string(static_cast<int>(c.dtype)));
    } else if (i.action == Action::record_event || i.action == Action::wait_event ||
               i.action == Action::host_wait) {
      std::size_t& event = events[i.id];
      if (event == 0) event = ++next_event;
      add(std::to_string(event));
    } else if (i.action == Action::phase) {
      add(program.phases[i.id].name, std::to_string(program.phases[i.id].step));
    }
    out.push_back(std::move(text));
  }
  return out;
}

/// The first difference, or nothing.
std::string difference(const Program& a, const Program& b) {
  const auto x = spelled(a), y = spelled(b);
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (x[i] != y[i]) return std::to_string(i) + ": " + x[i] + " / " + y[i];
  }
  return x.size() == y.size() ? "" : std::to_string(x.size()) + " / " + std::to_string(y.size());
}

struct Copied {
  int jobs = 0, copied = 0;
};

/// Lowers the job twice and compares; counts it where blocks were copied.
void check(const program::Lowering& lowering, program::TrainingJob job, Copied& count) {
  job.copy_blocks = false;
  const Program every = lowering.lower(job);
  job.copy_blocks = true;
  const std::int64_t before = program::BlockCopier::copied();
  const Program some = lowering.lower(job);
  CHECK(difference(some, every) == "");
  ++count.jobs;
  count.copied += program::BlockCopier::copied() > before;
}

}  // namespace

TEST_CASE("copied blocks: measured cases of one rank, eight layers each") {
  Copied count;
  for (const char* file : {"plain", "vision", "trainer", "steps"}) {
    const std::string data =
        std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/validate/" + file + ".yaml";
    for (validate::Case& c : validate::read_cases(data)) {
      program::TrainingJob& job = c.job;
      const bool shared = job.fsdp1 || job.fsdp2 || job.deepspeed || job.megatron || job.titan;
      if (!c.skipped.empty() || shared) continue;
      CAPTURE(c.id);
      spec::ModelSpec model = validate::model_of(c);
      for (const char* layers : {"num_hidden_layers", "n_layer", "num_layers", "n_layers"}) {
        const spec::Node* own = model.numbers.child(layers);
        if (own && own->kind == spec::Kind::integer) test::set_number(model, layers, 8);
      }
      job.record_computes = true;
      job.steps = 2;
      try {
        check(program::Lowering(std::move(model), job.framework), job, count);
      } catch (const InputError&) {
        continue;  // its layers are listed one by one, and eight are not what it lists
      }
    }
  }
  MESSAGE(count.copied, " of ", count.jobs, " with copied blocks");
  CHECK(count.jobs > 150);
  CHECK(count.copied > 100);
}

TEST_CASE("copied blocks: measured cases of Megatron, eight layers a stage") {
  Copied count;
  const std::string data = std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/validate/megatron.yaml";
  for (validate::Case& c : validate::read_cases(data)) {
    program::TrainingJob& job = c.job;
    if (!c.skipped.empty() || !job.megatron) continue;
    spec::ModelSpec model = validate::model_of(c);
    program::MegatronJob& megatron = *job.megatron;
    const std::int64_t layers = 8 * megatron.pipeline * megatron.virtual_stages;
    test::set_number(model, "num_layers", layers);
    megatron.stage_layers.clear();
    job.record_computes = true;
    job.steps = 2;
    const program::Lowering lowering(std::move(model), job.framework);
    for (const std::int64_t rank : {std::int64_t{0}, megatron.ranks() - 1}) {
      megatron.rank = rank;
      CAPTURE(c.id);
      CAPTURE(rank);
      check(lowering, job, count);
    }
  }
  MESSAGE(count.copied, " of ", count.jobs, " with copied blocks");
  CHECK(count.jobs > 60);
  CHECK(count.copied > 40);
}

TEST_CASE("copied blocks: passes in flight") {
  Copied count;
  const std::string data = std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/validate/megatron.yaml";
  const std::vector<validate::Case> cases = validate::read_cases(data);
  const auto measured = std::find_if(cases.begin(), cases.end(), [](const validate::Case& c) {
    return c.id == "zero-mc-l8b-pp2-r1";
  });
  REQUIRE(measured != cases.end());
  using Recompute = program::MegatronJob::Recompute;
  for (const std::int64_t passes : {1, 2, 3, 9}) {
    for (const std::int64_t pipeline : {1, 2, 4}) {
      for (const auto recompute : {Recompute::none, Recompute::full, Recompute::full_block}) {
        program::TrainingJob job = measured->job;
        job.accumulation = passes;
        job.record_computes = true;
        job.steps = 2;
        program::MegatronJob& megatron = *job.megatron;
        megatron = {};
        megatron.pipeline = pipeline;
        megatron.tensor = passes == 2 ? 1 : 2;
        megatron.sequence_parallel = passes == 3;
        megatron.data = passes == 1 ? 2 : 1;
        megatron.overlap = passes == 1;
        megatron.recompute = recompute;
        megatron.recompute_layers = 3;
        if (passes == 9) megatron.schedule = program::PipelineSchedule::gpipe;
        spec::ModelSpec model = validate::model_of(*measured);
        test::set_number(model, "num_layers", 8 * pipeline);
        const program::Lowering lowering(std::move(model), job.framework);
        for (std::int64_t rank = 0; rank < megatron.ranks(); rank += megatron.tensor) {
          megatron.rank = rank;
          CAPTURE(passes);
          CAPTURE(pipeline);
          CAPTURE(static_cast<int>(recompute));
          CAPTURE(rank);
          check(lowering, job, count);
        }
      }
    }
  }
  MESSAGE(count.copied, " of ", count.jobs, " with copied blocks");
  CHECK(count.copied > count.jobs / 2);
}

TEST_CASE("copied blocks: passes whose gradients are not exchanged") {
  Copied count;
  for (const std::int64_t passes : {1, 2, 3, 9}) {
    for (const bool view : {false, true}) {
      for (const bool static_graph : {false, true}) {
        program::TrainingJob job;
        job.framework = "hf-trainer";
        job.program = "trainer-1";
        job.sequence = 64;
        job.micro_batch = 2;
        job.accumulation = passes;
        job.recompute = view ? program::Recompute::full : program::Recompute::none;
        job.record_computes = true;
        job.ddp = program::DdpJob{};
        job.ddp->bucket_view = view;
        job.ddp->static_graph = static_graph;
        job.ddp->no_sync = true;
        CAPTURE(passes);
        CAPTURE(view);
        CAPTURE(static_graph);
        spec::ModelSpec model = spec::read_model("llama-3.2-1b");
        test::set_number(model, "num_hidden_layers", 9);
        check(program::Lowering(std::move(model), job.framework), job, count);
      }
    }
  }
  CHECK(count.jobs == 16);
  CHECK(count.copied == 12);  // all but those of one pass, which exchanges
}

TEST_CASE("copied blocks: every recomputation, precision, attention, adapters, many passes") {
  Copied count;
  for (const auto recompute :
       {program::Recompute::none, program::Recompute::full, program::Recompute::save_attention,
        program::Recompute::save_attention_matmul_half, program::Recompute::every_second,
        program::Recompute::first_blocks}) {
    for (const bool reentrant : {false, true}) {
      if (reentrant && recompute != program::Recompute::full) continue;
      for (int variant = 0; variant < 6; ++variant) {
        program::TrainingJob job;
        job.recompute = recompute;
        job.recompute_blocks = 5;
        job.reentrant = reentrant;
        job.framework = "hf-trainer";
        job.program = "trainer-1";
        job.sequence = 64;
        job.micro_batch = 2;
        job.accumulation = 1 + variant % 3 * 3;
        job.record_computes = true;
        job.early_stop = variant != 3;
        if (variant % 2 == 1) {
          job.parameters = DType::f32;
          job.autocast = DType::bf16;
        }
        if (variant == 2) job.attention = "eager";
        if (variant == 4) job.zero_to_none = false;
        if (variant > 4) {
          job.lora = program::LoraJob{};
          job.lora->targets = {"q_proj", "v_proj", "down_proj"};
          job.lora->dropout = 0.1;
        }
        CAPTURE(static_cast<int>(recompute));
        CAPTURE(reentrant);
        CAPTURE(variant);
        spec::ModelSpec model = spec::read_model("llama-3.2-1b");
        test::set_number(model, "num_hidden_layers", 9);
        check(program::Lowering(std::move(model), job.framework), job, count);
      }
    }
  }
  CHECK(count.jobs == 42);
  CHECK(count.copied == 30);  // all but those that choose blocks by their number
}

TEST_CASE("copied blocks: the depth of a model hardly counts") {
  program::TrainingJob job;
  job.framework = "hf-trainer";
  job.program = "trainer-1";
  job.sequence = 64;
  job.steps = 1;
  for (const std::int64_t layers : {6, 7, 40}) {
    spec::ModelSpec model = spec::read_model("llama-3.2-1b");
    test::set_number(model, "num_hidden_layers", layers);
    const std::int64_t before = program::BlockCopier::copied();
    program::Lowering(std::move(model), job.framework).lower(job);
    CHECK(program::BlockCopier::copied() - before == layers - 6);
  }
}
