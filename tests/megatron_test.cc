#include <doctest/doctest.h>

#include <map>

#include "exact_readings.h"
#include "model_support.h"
#include "program/megatron.h"
#include "run/run.h"
#include "run/time_clock.h"
#include "spec/cluster_spec.h"

namespace shardfit {
namespace {

using program::Lowering;
using program::MegatronJob;
using program::PipelineSchedule;
using program::TrainingJob;

/// A Llama of four layers and 16 key/value heads' worth of room for degrees.
Lowering small_llama(std::int64_t layers = 4) {
  spec::ModelSpec model = test::model_named("llama-3-8b");
  for (const auto& [key, value] : {std::pair<const char*, std::int64_t>{"hidden_size", 256},
                                   {"intermediate_size", 512},
                                   {"num_attention_heads", 8},
                                   {"num_key_value_heads", 4},
                                   {"vocab_size", 1000},
                                   {"num_hidden_layers", layers}}) {
    test::set_number(model, key, value);
  }
  return Lowering(std::move(model), "megatron");
}

TrainingJob small_job() {
  TrainingJob job;
  job.framework = "megatron";
  job.program = "mcore-loop-1";
  job.optimizer = "adam";
  job.implementation = program::Implementation::fused;
  job.accumulation = 4;
  job.sequence = 128;
  job.megatron = MegatronJob{};
  return job;
}

bool equal(const Program& a, const Program& b) {
  if (a.instructions.size() != b.instructions.size()) return false;
  for (std::size_t i = 0; i < a.instructions.size(); ++i) {
    const Instruction& x = a.instructions[i];
    const Instruction& y = b.instructions[i];
    if (x.action != y.action || x.stream != y.stream || x.id != y.id) return false;
    if (x.action == Action::allocate && a.storages[x.id].bytes != b.storages[y.id].bytes) {
      return false;
    }
  }
  return true;
}

/// The programs of all ranks.
std::vector<Program> all_ranks(const Lowering& lowering, TrainingJob job) {
  std::vector<Program> programs;
  for (std::int64_t rank = 0; rank < job.megatron->ranks(); ++rank) {
    job.megatron->rank = rank;
    programs.push_back(lowering.lower(job));
  }
  return programs;
}

/// What one rank sends another in one direction of the pipeline, in order.
using Wires = std::map<std::tuple<std::int32_t, std::int32_t, bool>, std::vector<std::int64_t>>;

void gather(const Program& program, Wires& sent, Wires& received) {
  for (const Instruction& instruction : program.instructions) {
    if (instruction.action != Action::collective) continue;
    const Collective& c = program.collectives[instruction.id];
    const std::string& stream = program.streams[instruction.stream];
    const bool forward = stream == "send next" || stream == "receive previous";
    if (c.kind == CollectiveKind::send) sent[{program.rank, c.peer, forward}].push_back(c.bytes);
    if (c.kind == CollectiveKind::receive) {
      received[{c.peer, program.rank, forward}].push_back(c.bytes);
    }
  }
}

run::Machine fast_machine() {
  run::Machine machine;
  machine.device.bandwidth = 1e12;
  machine.device.multiprocessors = 132;
  machine.device.bf16 = 1e15;
  machine.link.bytes_per_second = 1e11;
  spec::CollectiveSpeed exchange;
  exchange.protocols.fill({0, 0, 1});
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter"}) {
    machine.speed.collectives[kind] = exchange;
  }
  spec::ProductSpeed products;
  products.cache_bytes = 0;
  products.cache_ratio = 1e12;
  machine.speed.products["bf16"] = products;
  return machine;
}

}  // namespace

TEST_CASE("exact readings: Megatron-core, every rank equal to the byte") {
  test::check_exact("megatron.yaml", 32, 14);
}

TEST_CASE("tensor and pipeline degree 1 equal the single-GPU program") {
  const Lowering lowering = small_llama();
  TrainingJob job = small_job();
  job.megatron.reset();
  const Program alone = lowering.lower(job);
  CHECK(alone.collectives.empty());
  for (const bool sequence : {false, true}) {
    for (const auto schedule :
         {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward}) {
      job.megatron = MegatronJob{};
      job.megatron->sequence_parallel = sequence;
      job.megatron->schedule = schedule;
      CHECK(equal(alone, lowering.lower(job)));
    }
  }
}

TEST_CASE("the shards of all ranks are the model, norms held by every tensor rank") {
  const Lowering lowering = small_llama();
  const std::int64_t whole = lowering.lower(small_job()).parameters_total;
  TrainingJob job = small_job();
  job.megatron->pipeline = 2;
  job.megatron->tensor = 2;
  job.megatron->padded_vocabulary = 1024;  // as the single GPU pads it
  std::int64_t sum = 0;
  for (const Program& p : all_ranks(lowering, job)) sum += p.parameters_total;
  const std::int64_t norms = (2 * 4 + 1) * 256;
  CHECK(sum == whole + norms);
}

TEST_CASE(
    "what a rank sends is what its neighbour receives, in order, and all ranks play together") {
  for (const std::int64_t pipeline : {2, 4}) {
    for (const std::int64_t chunks : {1, 2}) {
      for (const std::int64_t tensor : {1, 2}) {
        for (const auto schedule :
             {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward}) {
          CAPTURE(pipeline);
          CAPTURE(chunks);
          CAPTURE(tensor);
          TrainingJob job = small_job();
          job.record_computes = true;
          job.megatron->pipeline = pipeline;
          job.megatron->virtual_stages = chunks;
          job.megatron->tensor = tensor;
          job.megatron->data = 2;
          job.megatron->sequence_parallel = tensor > 1;
          job.megatron->distributed_optimizer = true;
          job.megatron->schedule = schedule;
          const std::vector<Program> programs = all_ranks(small_llama(8), job);
          Wires sent, received;
          for (const Program& p : programs) gather(p, sent, received);
          CHECK(sent == received);
          CHECK_FALSE(sent.empty());
          std::vector<run::RankProgram> ranks;
          for (const Program& p : programs) ranks.push_back({&p, {}});
          CHECK(run::run_time(ranks, fast_machine()).step_seconds > 0);
        }
      }
    }
  }
}

TEST_CASE("1f1b: more micro-batches than stages take no more memory; gpipe takes it for each") {
  const Lowering lowering = small_llama();
  const auto peak = [&](std::int64_t micro_batches, PipelineSchedule schedule) {
    TrainingJob job = small_job();
    job.accumulation = micro_batches;
    job.megatron->pipeline = 4;
    job.megatron->schedule = schedule;
    return run::run_program(lowering.lower(job), {}).allocated_peak;
  };
  const auto one = PipelineSchedule::one_forward_one_backward;
  // The last stage's reports are kept for each micro-batch; the first stage has none.
  CHECK(peak(8, one) == peak(32, one));
  CHECK(peak(8, PipelineSchedule::gpipe) < peak(16, PipelineSchedule::gpipe));
  CHECK(peak(4, PipelineSchedule::gpipe) == peak(4, one));
}

TEST_CASE("recompute never raises what is stored; the distributed optimizer shards by data rank") {
  const Lowering lowering = small_llama();
  TrainingJob job = small_job();
  job.attention = "eager";
  const auto live = [&] {
    const run::RunResult result = run::run_program(lowering.lower(job), {});
    return result.allocated_peak;
  };
  const std::int64_t none = live();
  for (const auto recompute :
       {MegatronJob::Recompute::full, MegatronJob::Recompute::full_block,
        MegatronJob::Recompute::core_attention, MegatronJob::Recompute::mlp}) {
    job.megatron->recompute = recompute;
    CHECK(live() <= none);
  }
  job.megatron->recompute = MegatronJob::Recompute::none;
  std::int64_t before = 0;
  for (const std::int64_t data : {1, 2, 8}) {
    job.megatron->data = data;
    job.megatron->distributed_optimizer = true;
    const std::int64_t now = live();
    if (before > 0) CHECK(now < before);
    before = now;
  }
}

TEST_CASE("what Megatron's program has no place for is refused, mixed precision is its bf16") {
  const Lowering lowering = small_llama();
  TrainingJob job = small_job();
  job.lora = program::LoraJob{};
  CHECK(test::errors_of([&] { lowering.lower(job); }).find("an adapter has no place") !=
        std::string::npos);
  job = small_job();
  const Program half = lowering.lower(job);
  job.parameters = DType::f32;
  job.autocast = DType::bf16;
  CHECK(equal(half, lowering.lower(job)));
}

TEST_CASE(
    "degrees the model does not take are faults of its file, each with the nearest that it does") {
  const Lowering lowering = small_llama();
  const auto message_of = [&](const TrainingJob& job) {
    return test::errors_of([&] { lowering.lower(job); });
  };
  TrainingJob job = small_job();
  job.megatron->tensor = 3;
  CHECK(lowering.check(job).size() == 3);
  CHECK(message_of(job).find("tp: 8 attention heads do not divide by 3") != std::string::npos);
  CHECK(message_of(job).find("the nearest that can be: 2") != std::string::npos);
  CHECK(message_of(job).find("llama-3-8b.json") != std::string::npos);
  job = small_job();
  job.megatron->pipeline = 8;
  CHECK(message_of(job).find("pp: 8 stages for 4 layers") != std::string::npos);
  job.megatron->pipeline = 0;
  CHECK(message_of(job).find("pp: a degree of 0") != std::string::npos);
  job = small_job();
  job.megatron->rank = 5;
  CHECK(message_of(job).find("rank: no rank 5 among 1") != std::string::npos);
}

}  // namespace shardfit
