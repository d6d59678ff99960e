#include "program/lowering_words.h"

#include <algorithm>
#include <stdexcept>
#include "base/units.h"
#include "graph/trace.h"
#include "model/blame.h"
#include "model/dimensions.h"
#include "model/machine.h"
#include "spec/graph_spec.h"
#include "tensor/ops.h"

namespace shardfit::program {

using model::Globals;
using model::Library;
using model::Machine;
using model::Module;
using model::Value;
using model::ValueKind;
using model::ValueList;
using tensor::Runtime;
using tensor::Tensor;

const std::pair<std::string, std::string>& head_of(const TrainingJob& job,
                                                   const spec::FamilySpec& family) {
  std::vector<std::string> heads;
  const std::string wanted = job.head.empty() ? "causal" : job.head;
  for (const auto& head : family.heads) {
    if (head.first == wanted) return head;
    heads.push_back(head.first);
  }
  if (job.head.empty()) return family.heads.front();
  throw InputError(family.where,
                   "the family '" + family.name + "' has no head " + shardfit::quoted(job.head),
                   suggest(job.head, heads));
}

void set_job_words(const TrainingJob& job, const spec::FamilySpec& family, Globals& globals) {
  // The loop of DataParallel has the batch of all its GPUs.
  const std::int64_t gpus = job.data_parallel ? job.data_parallel->gpus : 1;
  globals.set("micro_batch", Value::of(job.micro_batch * gpus));
  globals.set("data_parallel", Value::of_bool(job.data_parallel.has_value()));
  globals.set("sequence", Value::of(job.sequence));
  globals.set("decoder_sequence",
              Value::of(job.decoder_sequence > 0 ? job.decoder_sequence : job.sequence));
  globals.set("accumulation", Value::of(job.accumulation));
  globals.set("metric_batches", Value::of(job.metric_batches));
  globals.set_text("attention_implementation", job.attention);
  globals.set_text("attention_mask_kind", job.attention_mask);
  globals.set_text("head", head_of(job, family).first);
  globals.set_text("loss", job.loss);
  globals.set_text("experts_implementation", job.experts);
  globals.set_text("expert_routing", job.routing);
  model::ValueList shares;
  for (const double share : job.expert_shares) shares.push_back(Value::of_real(share));
  globals.set("expert_shares", Value::of_list(std::move(shares)));
  if (globals.find("image_size") < 0) globals.set("image_size", Value::of(224));
  globals.set("clip_gradients", Value::of_bool(job.clip_foreach.has_value()));
  globals.set("grad_scaler", Value::of_bool(job.grad_scaler));
  globals.set("autocasting", Value::of_bool(job.autocast.has_value()));
  globals.set("recomputing", Value::of_bool(job.recompute == Recompute::full));
  globals.set(
      "engine_scales_loss",
      Value::of_bool(job.deepspeed && deepspeed_scales_loss(*job.deepspeed, job.parameters)));
  globals.set("tensor_parallel", Value::of(job.titan ? job.titan->tensor : std::int64_t{1}));
  globals.set("loss_parallel",
              Value::of_bool(job.titan && job.titan->tensor > 1 && job.titan->loss_parallel));
  globals.set("data_ranks", Value::of(job.titan ? job.titan->data : std::int64_t{1}));
  const bool pipeline = job.titan && job.titan->pipeline > 1;
  globals.set("pipeline_stages", Value::of(pipeline ? job.titan->pipeline : std::int64_t{1}));
  globals.set("holds_loss", Value::of_bool(!pipeline || titan_holds_last(*job.titan)));
  globals.set("input_dtype", Value::of_dtype(job.autocast ? DType::f32 : job.parameters));
  for (const char* name :
       {"batchnorm_in_eval_mode", "densenet_memory_efficient", "cudnn_disabled", "channels_last"}) {
    globals.set(name, Value::of_bool(job.switches.count(name) > 0));
  }
  for (const auto& [name, sizes] : job.sizes) {
    ValueList list;
    for (const std::int64_t size : sizes) list.push_back(Value::of(size));
    globals.set(name,
                sizes.size() == 1 ? Value::of(sizes.front()) : Value::of_list(std::move(list)));
  }
  if (job.dropout) {
    for (const std::string& rate : family.dropouts) globals.set(rate, Value::of_real(*job.dropout));
  }
}

const model::CompiledClass& class_of(const Library& library, const std::string& name) {
  const model::CompiledClass* type = library.find(name);
  if (!type) {
    throw InputError(library.family().where, "no module or program named " + quoted(name));
  }
  return *type;
}

void rethrow(const model::ModelError& error, const spec::FamilySpec& family,
             const spec::ModelSpec& model) {
  const std::string text =
      std::string(error.what()) + (error.path.empty() ? "" : " (in module '" + error.path + "')");
  if (dynamic_cast<const graph::WrittenOver*>(&error) && model.graph) {
    throw InputError(spec::place_of_operator(*model.graph, error.path), error.what(),
                     {"leave out 'in_place'",
                      "PyTorch: \"one of the variables needed for gradient computation has been "
                      "modified by an inplace operation\""});
  }
  if (model.graph) {
    const bool known = error.where.known() && error.where.source == model.graph->where.source;
    throw InputError(known ? error.where : spec::place_of_operator(*model.graph, error.path), text);
  }
  const spec::Node* number = model::number_behind(error.where, error.what(), family, model);
  if (!number) number = model::missing_size(family, model);
  if (!number || !error.where.known()) {
    const std::string type = model.model_type.empty() ? "" : " (" + model.model_type + ")";
    std::vector<std::string> notes;
    if (error.where.known()) notes = {"the family's expression:", error.where.text()};
    throw InputError(model.where, quoted(model.name) + type + ": " + text, std::move(notes));
  }
  if (number->text == "0") {
    throw InputError(
        number->where, quoted(number->key) + " is 0, expected at least 1",
        {"with it the model cannot run: " + text, "the family's expression:", error.where.text()});
  }
  throw InputError(number->where, quoted(number->key) + ": " + text,
                   {"the family's expression:", error.where.text()});
}

void blame_overflow(const OverflowError& error, const spec::ModelSpec& model) {
  const spec::Node* number = model::absurd_number(model);
  if (!number) return;
  throw InputError(number->where, "the numbers of " + quoted(model.name) +
                                      " are too large to count in 63 bits: " + error.what());
}

namespace {

/// Published counts are of checkpoints, and those hold some buffers too.
void add_counted_buffers(Machine& machine, const Globals& globals,
                         std::vector<Lowering::ParameterShape>& out) {
  std::deque<std::string> texts;
  for (const Module& m : machine.modules) {
    const spec::ClassSpec& type = *m.type->spec;
    for (std::size_t i = 0; i < type.buffers.size(); ++i) {
      const spec::TensorSpec& buffer = type.buffers[i];
      const Tensor& t = m.tensors[type.parameters.size() + i];
      if (!buffer.counted || !t) continue;
      Diagnostics faults;
      const model::Code when = bind_expression(*buffer.counted, globals, nullptr, texts, faults);
      faults.throw_if_any();
      if (!machine.evaluate(when, nullptr, nullptr).truth()) continue;
      out.push_back({m.path + "." + buffer.name, t.shape()});
    }
  }
}

/// The model under a head, built; `see` gets its modules in order of construction, and its root.
void build_model(const std::shared_ptr<const spec::FamilySpec>& family,
                 const spec::ModelSpec& model, const std::string& head,
                 const std::function<void(Machine&, const Module& root)>& see) {
  Globals globals;
  model::set_dimensions(*family, model, globals);
  TrainingJob job;
  job.head = head;
  set_job_words(job, *family, globals);
  if (family->framework == "megatron") set_megatron_words(job, globals);
  const std::shared_ptr<const Library> bound = model::bind_family(family, globals);
  Runtime runtime({});
  runtime.module_id("");
  Machine machine(runtime, *bound, globals);
  try {
    see(machine, *machine.build(class_of(*bound, head_of(job, *family).second), {}, ""));
  } catch (const model::ModelError& error) {
    rethrow(error, *family, model);
  } catch (const OverflowError& error) {
    blame_overflow(error, model);
    throw;
  }
}

}  // namespace

std::vector<Lowering::ParameterShape> Lowering::parameters() const {
  std::vector<ParameterShape> out;
  build_model(family_, model_, family_->heads.front().first,
              [&](Machine& machine, const Module& root) {
                machine.tie();
                for (const model::Parameter& p : machine.parameters(root)) {
                  out.push_back({p.path, p.tensor.shape()});
                }
                add_counted_buffers(machine, machine.globals, out);
              });
  return out;
}

std::optional<std::int64_t> Lowering::longest_sequence() const {
  if (!family_->longest_sequence) return {};
  Globals globals;
  model::set_dimensions(*family_, model_, globals);
  const spec::FamilySpec no_classes;
  Library library(no_classes, globals);
  Runtime runtime({});
  Machine machine(runtime, library, globals);
  std::deque<std::string> texts;
  Diagnostics faults;
  const model::Code code =
      bind_expression(*family_->longest_sequence, globals, nullptr, texts, faults);
  faults.throw_if_any();
  const Value value = machine.evaluate(code, nullptr, nullptr);
  if (value.kind != ValueKind::integer) return {};
  return value.integer;
}

std::vector<Lowering::LinearModule> Lowering::linears(const std::string& head) const {
  std::vector<LinearModule> out;
  build_model(family_, model_, head, [&](Machine& machine, const Module&) {
    const Globals& globals = machine.globals;
    const std::int64_t vocabulary = globals.integer("vocab_size");
    for (const Module& m : machine.modules) {
      if (!m.type->spec->is_linear || m.tensors.empty() || !m.tensors.front()) continue;
      const Tensor& weight = m.tensors.front();
      const bool head_of_model =
          vocabulary > 0 && weight.shape().rank > 0 && weight.shape()[0] == vocabulary;
      out.push_back({m.path, head_of_model});
    }
  });
  return out;
}

std::string program_class(const std::string& program) {
  std::string name = program;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

std::vector<std::string> Lowering::recompute_unit_paths(const std::string& head) const {
  std::vector<std::string> paths;
  build_model(family_, model_, head, [&](Machine& machine, const Module&) {
    for (const Module& m : machine.modules) {
      if (m.type->spec->recompute_unit) paths.push_back(m.path);
    }
  });
  return paths;
}

std::int64_t Lowering::pipeline_layers() const {
  if (family_->framework != "megatron") return 0;
  model::Globals globals;
  model::set_dimensions(*family_, model_, globals);
  return globals.integer("num_layers");
}

bool Lowering::has_metric(const std::string& program) const {
  const std::string name = program_class(program) + "_metric";
  return std::any_of(family_->classes.begin(), family_->classes.end(),
                     [&](const auto& one) { return one.name == name; });
}

std::int64_t Lowering::parameter_count() const {
  std::int64_t count = 0;
  try {
    for (const ParameterShape& p : parameters()) count = checked_add(count, p.shape.count());
  } catch (const OverflowError& error) {
    blame_overflow(error, model_);
    throw;
  }
  return count;
}

TrainingJob megatron_form(TrainingJob job, const spec::ModelSpec& model) {
  const auto refuse = [&](const char* what) {
    throw InputError(model.where,
                     std::string(what) + " has no place in the program of Megatron-core");
  };
  if (job.lora) refuse("an adapter");
  if (job.ddp || job.fsdp1 || job.fsdp2) refuse("a wrapper of torch.distributed");
  if (job.zero_redundancy) refuse("an optimizer of torch.distributed");
  if (job.deepspeed) refuse("an engine of DeepSpeed");
  if (job.offload != TrainingJob::Offload::none) refuse("offload of activations");
  if (job.autocast) job.parameters = *job.autocast;
  job.autocast.reset();
  if (!job.megatron) job.megatron = MegatronJob{};
  if (job.recompute == Recompute::full) {
    job.megatron->recompute = MegatronJob::Recompute::full;
  } else if (job.recompute == Recompute::first_blocks) {  // recompute_method block, of each stage
    job.megatron->recompute = MegatronJob::Recompute::full_block;
    job.megatron->recompute_layers = job.recompute_blocks;
  } else if (job.recompute != Recompute::none) {
    refuse("recompute by operator");
  }
  return job;
}

void count_parameters(const std::vector<model::Parameter>& parameters, Program& program) {
  for (const model::Parameter& p : parameters) {
    const std::int64_t count = p.tensor.count();
    if (count == 0) {
      throw model::ModelError({}, p.path, "a weight of " + tensor::shape_text(p.tensor.shape()));
    }
    program.parameters_total += count;
    if (p.tensor->leaf_requires_grad) program.parameters_trainable += count;
  }
}

}  // namespace shardfit::program
