// Megatron-core on one rank: chunks of the model, their buffers, the optimizer, a step
// (NVIDIA/Megatron-LM core_v0.16.1; the loop is model_specs/frameworks/megatron.yaml).

#include "program/megatron.h"

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>

#include "model/machine.h"
#include "program/block_copier.h"
#include "program/repeat.h"
#include "program/strategies/expert_parallel.h"
#include "program/strategies/megatron_buffers.h"
#include "program/strategies/megatron_checkpoint.h"
#include "program/strategies/megatron_optimizer.h"
#include "program/strategies/pipeline.h"
#include "program/strategies/tensor_parallel.h"
#include "program/training.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using model::Machine;
using model::Module;
using model::Value;
using model::ValueList;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// One chunk of the model with what belongs to it.
struct Chunk {
  const Module* root = nullptr;
  bool first = false, last = false;  // of the whole model
  std::vector<MegatronParameter> parameters;
  std::unique_ptr<GradientBuffer> buffer;
  std::vector<MegatronParameter> experts;  // spread over ranks: a buffer of their own
  std::unique_ptr<GradientBuffer> expert_buffer;
  Tensor input;  // what the stage before sent last; the block keeps it
};

class MegatronRun : public model::Host, public StageProgram {
 public:
  MegatronRun(const TrainingJob& job, Machine& machine, PassCopier& copier)
      : job_(job),
        megatron_(megatron_of(job)),
        machine_(machine),
        runtime_(machine.runtime),
        parallel_(runtime_, tensor_ranks(), megatron_.tensor_rank(), megatron_.sequence_parallel),
        experts_(runtime_, expert_ranks()),
        checkpointing_(machine, megatron_),
        copier_(copier) {
    runtime_.program.rank = static_cast<std::int32_t>(megatron_.rank);
    machine_.host = this;
  }
  ~MegatronRun() override {
    runtime_.after_accumulate = nullptr;
    machine_.host = nullptr;
  }

  void build(const model::CompiledClass& root) {
    const std::int64_t parts = megatron_.pipeline * megatron_.virtual_stages;
    const std::int64_t layers =
        megatron_.stage_layers.empty()
            ? number("num_layers") / parts
            : megatron_.stage_layers.at(static_cast<std::size_t>(megatron_.stage()));
    for (std::int64_t c = 0; c < megatron_.virtual_stages; ++c) {
      Chunk chunk;
      chunk.first = c == 0 && megatron_.stage() == 0;
      chunk.last = c == megatron_.virtual_stages - 1 && megatron_.stage() == megatron_.pipeline - 1;
      const std::string path = megatron_.virtual_stages > 1 ? "chunk" + std::to_string(c) : "";
      chunk.root = machine_.build(
          root, {Value::of_bool(chunk.first), Value::of_bool(chunk.last), Value::of(layers)}, path);
      move_to_device(*chunk.root);
      list_parameters(chunk);
      chunks_.push_back(std::move(chunk));
    }
  }

  /// The wrapper and the optimizer.
  void wrap() {
    std::vector<MegatronOptimizer::Chunk> wrapped;
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      Chunk& chunk = chunks_[c];
      chunk.buffer = std::make_unique<GradientBuffer>(runtime_, megatron_, chunk.parameters,
                                                      bucket_size(c), megatron_.data);
      chunk.expert_buffer = std::make_unique<GradientBuffer>(
          runtime_, megatron_, chunk.experts, bucket_size(c), megatron_.expert_data());
      wrapped.push_back(
          {&chunk.parameters, chunk.buffer.get(), &chunk.experts, chunk.expert_buffer.get()});
    }
    // Added to the buffer at once (distributed_data_parallel.py, _make_backward_post_hook).
    runtime_.after_accumulate = [this](tensor::TensorBody& body) {
      const auto count = static_cast<double>(body.shape.count());
      const auto bytes = element_size(body.dtype) + 2 * element_size(buffer_dtype());
      runtime_.launched("add", buffer_dtype(), count * static_cast<double>(bytes));
      body.grad.reset();
    };
    optimizer_ = std::make_unique<MegatronOptimizer>(runtime_, megatron_, job_.optimizer,
                                                     job_.implementation, job_.parameters, wrapped);
  }

  void set_step(int step) { step_ = step; }
  /// Nothing tells one from another, and their backward passes come in the order of the forward.
  bool blocks_stand_alone() const {
    if (machine_.globals.integer("num_experts") > 0) return false;  // dispatchers keep tensors
    return megatron_.recompute != MegatronJob::Recompute::full_block &&
           megatron_.virtual_stages == 1;
  }

  Value run(const std::string& name, Value* arguments) override;

  // StageProgram
  Result forward(std::int64_t chunk, const Tensor& input) override;
  Tensor loss_scale() override { return optimizer_->loss_scale(); }
  void finalize() override;

 private:
  std::vector<std::int32_t> tensor_ranks() const {
    std::vector<std::int32_t> ranks;
    const std::int64_t first = megatron_.rank - megatron_.tensor_rank();
    for (std::int64_t i = 0; i < megatron_.tensor; ++i) {
      ranks.push_back(static_cast<std::int32_t>(first + i));
    }
    return ranks;
  }
  std::vector<std::int32_t> stage_ranks() const {
    std::vector<std::int32_t> ranks;
    const std::int64_t width = megatron_.tensor * megatron_.data;
    for (std::int64_t s = 0; s < megatron_.pipeline; ++s) {
      ranks.push_back(static_cast<std::int32_t>(megatron_.rank % width + s * width));
    }
    return ranks;
  }
  std::vector<std::int32_t> expert_ranks() const {
    const std::vector<std::int32_t> all = data_ranks();
    const std::int64_t first = megatron_.data_rank() - megatron_.expert_rank();
    return {all.begin() + first, all.begin() + first + megatron_.expert};
  }
  /// Those with the same experts.
  std::vector<std::int32_t> expert_data_ranks() const {
    std::vector<std::int32_t> ranks;
    const std::vector<std::int32_t> all = data_ranks();
    for (std::int64_t d = megatron_.expert_rank(); d < megatron_.data; d += megatron_.expert) {
      ranks.push_back(all[static_cast<std::size_t>(d)]);
    }
    return ranks;
  }
  std::vector<std::int32_t> data_ranks() const {
    std::vector<std::int32_t> ranks;
    const std::int64_t first = megatron_.rank - megatron_.data_rank() * megatron_.tensor;
    for (std::int64_t d = 0; d < megatron_.data; ++d) {
      ranks.push_back(static_cast<std::int32_t>(first + d * megatron_.tensor));
    }
    return ranks;
  }
  std::int64_t number(const char* name) const { return machine_.globals.integer(name); }

  void move_to_device(const Module& root);
  void list_parameters(Chunk& chunk);
  DType buffer_dtype() const {
    return megatron_.gradients == DType::f32 ? DType::f32 : job_.parameters;
  }
  std::int64_t bucket_size(std::size_t chunk) const {
    const bool bucketed =
        megatron_.overlap && megatron_.stage() == 0 && (chunk == 0 || megatron_.bucket_all_chunks);
    if (!bucketed) return 0;
    if (megatron_.bucket_size > 0) return megatron_.bucket_size;
    return std::max<std::int64_t>(40'000'000, 1'000'000 * megatron_.data);
  }
  Value rotary_table(const Tensor& frequencies, std::int64_t length);
  void exchange_data(CollectiveKind kind, const Tensor& buffer,
                     const std::vector<std::int32_t>& ranks);
  /// A kernel over a whole buffer, each element read or written `passes` times.
  void launched_over(const char* kind, const Tensor& buffer, int passes) {
    runtime_.launched(kind, buffer.dtype(),
                      static_cast<double>(passes * runtime_.info(buffer).bytes));
  }
  void sum_norm_gradients();

  const TrainingJob& job_;
  const MegatronJob megatron_;
  Machine& machine_;
  Runtime& runtime_;
  TensorParallel parallel_;
  ExpertParallel experts_;
  MegatronCheckpointing checkpointing_;
  PassCopier& copier_;
  std::deque<Chunk> chunks_;
  Chunk* current_ = nullptr;
  std::unique_ptr<MegatronOptimizer> optimizer_;
  std::map<const tensor::TensorBody*, Tensor> rotary_tables_;
  std::int32_t parameters_ = 0;
  int step_ = 0;
};

/// torch's norms and position embeddings are made on the host: model.cuda() allocates them in fp32,
/// the half-precision wrapper copies them into the model's dtype, one by one.
void MegatronRun::move_to_device(const Module& root) {
  std::vector<Tensor> moved;
  for (const model::Parameter& p : machine_.parameters(root)) {
    if (!p.tensor->on_host) continue;
    p.tensor->on_host = false;
    const Scoped<tensor::Label> label(runtime_.label, {"parameter", p.module->label, false});
    const Tensor there = runtime_.empty(p.tensor.shape(), p.tensor.dtype());
    runtime_.set_category(there, Category::parameter);
    runtime_.rebase(p.tensor, there);
    moved.push_back(p.tensor);
  }
  for (const Tensor& p : moved) {
    if (p.dtype() == job_.parameters) continue;
    const Tensor narrow = runtime_.empty(p.shape(), job_.parameters);
    runtime_.set_category(narrow, Category::parameter);
    runtime_.rebase(p, narrow);
    p->dtype = job_.parameters;
  }
}

void MegatronRun::list_parameters(Chunk& chunk) {
  const int tied = machine_.globals.find("tied");
  const bool shares = tied >= 0 &&
                      machine_.globals.values[static_cast<std::size_t>(tied)].truth() &&
                      megatron_.pipeline > 1;
  for (const model::Parameter& p : machine_.parameters(*chunk.root)) {
    MegatronParameter own;
    own.tensor = p.tensor;
    own.path = p.path;
    own.decays = p.tensor.rank() > 1 && !ends_with(p.path, ".bias");
    const bool embedding = ends_with(p.path, "word_embeddings.weight");
    const bool head = ends_with(p.path, "output_layer.weight");
    own.shared_embedding = shares && (embedding || head);
    const std::string& type = p.module->type->spec->name;
    own.sequence_parallel = type == "torch_norm" || (type == "row_linear" && p.place == 1);
    // Of copies on several ranks the norm counts one (param_is_not_tensor_parallel_duplicate).
    const bool copied = own.sequence_parallel || type == "position_embedding";
    own.counted = !(shares && head) && !(copied && megatron_.tensor_rank() > 0);
    p.tensor->parameter = parameters_++;
    runtime_.program.parameters_total += p.tensor.count();
    runtime_.program.parameters_trainable += p.tensor.count();
    const bool spread = megatron_.expert > 1 && p.path.find(".local_experts.") != std::string::npos;
    (spread ? chunk.experts : chunk.parameters).push_back(std::move(own));
  }
}

/// The angles of all positions, made when a length is first asked for and kept (lru_cache).
Value MegatronRun::rotary_table(const Tensor& frequencies, std::int64_t length) {
  Tensor& table = rotary_tables_[frequencies.get()];
  if (table) return Value::of(table);
  const Scoped<tensor::Label> label(runtime_.label, {"rotary", runtime_.label.module, false});
  Tensor positions = runtime_.empty(Shape{length}, DType::f32);
  positions = tensor::add_scalar(positions);
  Tensor angles = tensor::mul(tensor::view(positions, Shape{length, 1}),
                              tensor::view(frequencies, Shape{1, frequencies.count()}));
  positions.reset();
  const Tensor both = tensor::cat({angles, angles}, -1);
  table = tensor::view(both, Shape{length, 1, 1, both.size(-1)});
  runtime_.set_category(table, Category::activation);
  return Value::of(table);
}

Value MegatronRun::run(const std::string& name, Value* arguments) {
  const auto tensor_at = [&](int i) {
    return arguments[i].is_none() ? Tensor() : model::tensor_of(arguments[i], "an argument");
  };
  if (name == "parallel_linear") {
    return Value::of(
        parallel_.linear(tensor_at(0), tensor_at(1), tensor_at(2), arguments[3].truth()));
  }
  if (name == "into_tensor_parallel") return Value::of(parallel_.copy_in(tensor_at(0)));
  if (name == "reduce_tensor_parallel") return Value::of(parallel_.reduce_out(tensor_at(0)));
  if (name == "from_tensor_parallel") {
    return Value::of(parallel_.sequence() ? parallel_.scatter_sum(tensor_at(0))
                                          : parallel_.reduce_out(tensor_at(0)));
  }
  if (name == "split_sequence") return Value::of(parallel_.own_rows(tensor_at(0)));
  if (name == "lookup_vocabulary") {
    return Value::of(parallel_.embedding(tensor_at(0), tensor_at(1)));
  }
  if (name == "vocabulary_loss") {
    return Value::of(
        parallel_.cross_entropy(tensor_at(0), tensor_at(1), megatron_.cross_entropy_fusion));
  }
  if (name == "shared_buffer") {
    return Value::of(
        parallel_.buffer(model::sizes_of(arguments[0], "a buffer's shape"), arguments[1].dtype));
  }
  if (name == "rotary_table") {
    return rotary_table(tensor_at(0), model::integer_of(arguments[1], "a length"));
  }
  if (name == "router_linear") return Value::of(experts_.router(tensor_at(0), tensor_at(1)));
  if (name == "exchange_rows") {
    return Value::of(experts_.exchange_rows(tensor_at(0),
                                            model::integer_of(arguments[1], "the rows that come"),
                                            model::integer_of(arguments[2], "the most rows")));
  }
  if (name == "gather_counts") return Value::of(experts_.gather_counts(tensor_at(0)));
  if (name == "stage_input") return Value::of(current_->input);
  if (name == "model") {
    return machine_.call(*current_->root,
                         ValueList{arguments[0], arguments[1], arguments[2], arguments[3]});
  }
  if (name == "send_to_host") {
    experts_.send_to_host(tensor_at(0));
  } else if (name == "keep") {
    experts_.keep(*arguments[0].text, tensor_at(1), arguments[2].truth());
  } else if (name == "phase") {
    runtime_.mark(*arguments[0].text, step_, *arguments[0].text == "between_steps");
  } else if (name == "zero_grad") {
    for (const Chunk& chunk : chunks_) {
      launched_over("fill", chunk.buffer->gradients(), 1);
      if (!chunk.experts.empty()) launched_over("fill", chunk.expert_buffer->gradients(), 1);
    }
    optimizer_->zero_grad();
  } else if (name == "forward_backward") {
    StageSettings settings;
    settings.shape = pipeline_shape(job_);
    settings.ranks = stage_ranks();
    const std::int64_t rows =
        parallel_.sequence() ? job_.sequence / megatron_.tensor : job_.sequence;
    settings.exchanged = Shape{rows, job_.micro_batch, number("hidden_size")};
    settings.dtype = job_.parameters;
    return Value::of_list(run_pipeline_step(runtime_, settings, *this, copier_));
  } else if (name == "optimizer_step") {
    optimizer_->step();
    if (megatron_.distributed_optimizer) {
      for (const Chunk& chunk : chunks_) {
        exchange_data(CollectiveKind::all_gather, chunk.parameters.front().tensor, data_ranks());
        if (chunk.experts.empty()) continue;
        exchange_data(CollectiveKind::all_gather, chunk.experts.front().tensor,
                      expert_data_ranks());
      }
    }
  } else {
    throw std::runtime_error("'" + name + "' is no function of Megatron's program");
  }
  return {};
}

/// set_input_tensor, then the framework's own forward step.
MegatronRun::Result MegatronRun::forward(std::int64_t chunk, const Tensor& input) {
  check(job_.stop);
  current_ = &chunks_[static_cast<std::size_t>(chunk)];
  current_->input = input;
  const model::CompiledClass* step = machine_.library.find("mcore_forward_step");
  if (!step) throw std::runtime_error("the framework's file has no 'mcore_forward_step'");
  Value result;
  {
    model::ValueList locals(static_cast<std::size_t>(step->slots));
    locals[0] = Value::of_bool(current_->last);
    machine_.run(step->forward, nullptr, locals.data(), result);
  }
  const ValueList& parts = *result.list;
  Result out;
  out.output = model::tensor_of(parts[0], "the output");
  if (!parts[1].is_none()) out.tokens = parts[1].tensor;
  out.report = parts[2];
  return out;
}

void MegatronRun::exchange_data(CollectiveKind kind, const Tensor& buffer,
                                const std::vector<std::int32_t>& ranks) {
  if (ranks.size() < 2) return;
  Collective collective;
  collective.kind = kind;
  collective.dtype = buffer.dtype();
  collective.bytes = runtime_.info(buffer).bytes;
  collective.group = runtime_.group(ranks);
  const std::uint32_t done = runtime_.exchange(collective, runtime_.stream("data"));
  runtime_.wait_event(done, runtime_.current_stream);
}

/// finalize_model_grads.py: gradients over data ranks, those of norms over tensor ranks, those of a
/// shared embedding over the first and the last stage.
void MegatronRun::finalize() {
  const Scoped<tensor::Label> label(runtime_.label, {"finalize_gradients", 0, true});
  for (const Chunk& chunk : chunks_) {
    if (megatron_.data > 1) launched_over("mul", chunk.buffer->gradients(), 2);  // the mean
    const CollectiveKind kind = megatron_.distributed_optimizer ? CollectiveKind::reduce_scatter
                                                                : CollectiveKind::all_reduce;
    exchange_data(kind, chunk.buffer->gradients(), data_ranks());
    if (chunk.experts.empty()) continue;
    launched_over("mul", chunk.expert_buffer->gradients(), 2);
    exchange_data(kind, chunk.expert_buffer->gradients(), expert_data_ranks());
  }
  if (parallel_.sequence()) sum_norm_gradients();
  for (const Chunk& chunk : chunks_) {
    for (const MegatronParameter& p : chunk.parameters) {
      if (!p.shared_embedding || megatron_.pipeline < 2) continue;
      const std::vector<std::int32_t> stages = stage_ranks();
      Collective collective;
      collective.kind = CollectiveKind::all_reduce;
      collective.dtype = p.main_gradient.dtype();
      collective.bytes = p.main_gradient.count() * element_size(p.main_gradient.dtype());
      collective.group = runtime_.group({stages.front(), stages.back()});
      const std::uint32_t done = runtime_.exchange(collective, runtime_.stream("embedding"));
      runtime_.wait_event(done, runtime_.current_stream);
    }
  }
}

/// Flattened into one tensor for the exchange.
void MegatronRun::sum_norm_gradients() {
  std::int64_t count = 0;
  DType dtype = DType::f32;
  for (const Chunk& chunk : chunks_) {
    for (const MegatronParameter& p : chunk.parameters) {
      if (!p.sequence_parallel) continue;
      count += p.tensor.count();
      dtype = p.main_gradient.dtype();
    }
  }
  if (count == 0) return;
  const Tensor together = runtime_.empty(Shape{count}, dtype);
  runtime_.set_category(together, Category::communication);
  parallel_.wait(parallel_.exchange(CollectiveKind::all_reduce, together));
}

}  // namespace

void run_megatron(const TrainingJob& job, Machine& machine, const model::CompiledClass& root,
                  const model::CompiledClass& loop) {
  Program& program = machine.runtime.program;
  PassCopier copier(
      program, job.equal_passes == EqualPasses::run ? EqualPasses::run : EqualPasses::copy, true);
  StepRange range, end;
  const auto here = [&] { return StepRange{program.instructions.size(), program.storages.size()}; };
  {
    MegatronRun run(job, machine, copier);
    run.build(root);
    run.wrap();
    program.instructions.push_back({Action::empty_cache, 0, 0});
    machine.runtime.mark("loaded", 0, true);
    end = here();
    ValueList locals(static_cast<std::size_t>(loop.slots));
    std::optional<BlockCopier> blocks;
    if (job.copy_blocks && run.blocks_stand_alone()) {
      blocks.emplace(machine, BlockCopier::Around{[] { return true; }, true});
    }
    for (int step = 1; step <= job.steps; ++step) {
      // The first step makes what stays (tables, buffers that grow); later ones are alike.
      if (step > 2 && job.repeat_steps && repeat_step(program, range, step)) {
        range = end;
        end = here();
        continue;
      }
      run.set_step(step);
      range = here();
      program.instructions.push_back({Action::reset_peaks, 0, 0});
      Value result;
      machine.run(loop.forward, nullptr, locals.data(), result);
      copier.rename();
      end = here();
    }
    if (blocks) blocks->finish();
  }
  // What is freed as the run goes is none of the program.
  program.instructions.resize(end.first_instruction);
}

}  // namespace shardfit::program
