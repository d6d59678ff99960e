#include "search/training_job.h"
#include "search/experts.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "program/lora.h"
#include "search/block_levels.h"
#include "search/tables.h"
#include "search/titan.h"

namespace shardfit::search {
namespace {

using program::Implementation;
using program::TrainingJob;
using spec::JobSpec;
using spec::OptionSpec;

template <class E>
std::string word(std::span<const std::string> names, E value) {
  return names[static_cast<std::size_t>(value)];
}

/// As a profile lists it.
std::string policy_word(const SelectivePolicy& policy) {
  if (policy.blocks > 0) return "first-N-blocks";
  return policy.chosen.empty() ? policy.name : "blocks-LIST";
}

/// Fills a RankJob from the words of an option; what cannot be expressed yet goes to faults.
class Mapping {
 public:
  Mapping(const OptionSpec& option, const program::Lowering& lowering, RankJob& out,
          Diagnostics& faults)
      : option_(option),
        spec_(option.job),
        lowering_(lowering),
        model_(lowering.model()),
        out_(out),
        faults_(faults) {}

  void framework() {
    out_.profile = read_profile(word(spec::framework_names(), spec_.framework.value));
    out_.job.framework = out_.profile.framework;
    out_.job.program = out_.profile.program;
    if (spec_.framework_version) {
      not_yet(spec_.framework_version->where, "a choice of releases",
              {"modelled: " + out_.profile.version});
    } else {
      assume("framework-version", out_.profile.version, "not given; the newest modelled");
    }
    assume("program", out_.profile.program, "of this framework: " + out_.profile.program_says);
  }

  void device() {
    const spec::DeviceSpec& device = option_.cluster.device;
    const bool rocm = device.compute_capability.starts_with("gfx9");
    const auto capability = rocm ? std::optional<double>(9.0)  // of CUDA, the nearest
                                 : parse_real(device.compute_capability);
    if (!capability) {
      not_yet(option_.cluster.where, "a card of capability " + device.compute_capability);
      return;
    }
    tensor::DeviceTraits& traits = out_.job.device;
    traits.capability_major = static_cast<int>(*capability);
    traits.capability_minor = static_cast<int>(std::lround(*capability * 10)) % 10;
    if (rocm) on_rocm(device);
    if (device.multiprocessors) {
      traits.multiprocessors = static_cast<int>(device.multiprocessors->value);
    } else {
      assume("multiprocessors", std::to_string(traits.multiprocessors),
             "the device's file gives none; kernels size their scratch space by it");
    }
    if (!device.usable) {
      faults_.error(option_.cluster.where,
                    "no sourced number of usable bytes for device " + shardfit::quoted(device.name),
                    {"give --device-profile with 'memory: usable' as your runtime reports it"});
      return;
    }
    const Context context = context_of(device);
    if (device.usable->value.count() <= context.bytes()) {
      faults_.error(device.usable->where,
                    "the usable memory of device " + shardfit::quoted(device.name) + ", " +
                        format_bytes(device.usable->value) + ", is not more than the " +
                        format_bytes(Bytes(context.bytes())) +
                        " that a process takes beside the allocator");
    }
  }

  /// What the model's file says beside its numbers: the class it ends in, quantized weights.
  void model() {
    struct End {
      const char* of_class;
      const char* head;
    };
    constexpr End ends[] = {{"ForCausalLM", "causal"},
                            {"LMHeadModel", "causal"},
                            {"ForSequenceClassification", "seqcls"},
                            {"ForMaskedLM", "mlm"},
                            {"ForPreTraining", "mlm"},
                            {"ForConditionalGeneration", "seq2seq"},
                            {"ForImageClassification", "image"}};
    const auto& heads = lowering_.family().heads;
    const auto has = [&](const std::string& head) {
      return std::any_of(heads.begin(), heads.end(),
                         [&](const auto& known) { return known.first == head; });
    };
    out_.job.head = has("causal") ? "causal" : heads.front().first;
    const std::string named = model_.architectures.empty() ? "" : model_.architectures.front();
    std::string wanted;
    for (const End& end : ends) {
      if (named.ends_with(end.of_class)) wanted = end.head;
    }
    if (has(wanted)) out_.job.head = wanted;
    if (out_.job.head != "causal" && out_.job.head != wanted) {
      assume("head", out_.job.head, "the first of the family's; the model's file names none");
    }
    if (!named.empty() && out_.job.head != wanted) {
      out_.warnings.push_back("the model's file names " + named + "; planned is the model with a " +
                              out_.job.head + " head");
    }
    if (!model_.quantization.empty()) {
      out_.warnings.push_back("the model's file has a quantization_config (" + model_.quantization +
                              "), which is not planned: weights are taken as unquantized");
    }
  }

  void task() {
    if (spec_.task.value == spec::Task::qlora || spec_.task.value == spec::Task::inference) {
      not_yet(spec_.task.where, "task " + word(spec::task_names(), spec_.task.value),
              {"expected one of: full, pretrain, lora"});
    }
    if (spec_.lora && spec_.task.value == spec::Task::lora) lora(*spec_.lora);
  }

  void numbers(std::int64_t ranks) {
    set_precision(spec_.precision.value, out_.job);
    if (const auto batch = spec::resolve_batch(spec_, ranks, faults_)) {
      out_.batch = *batch;
      for (const spec::Assumption& a : batch->assumptions) out_.assumptions.push_back(a);
    }
    out_.job.micro_batch = out_.batch.micro;
    out_.job.accumulation = out_.batch.accumulation;
    out_.job.sequence = spec_.sequence.value;
    positions();
  }

  /// Learned positions end; rotary ones run on, as far as a model was not trained for.
  void positions() {
    const std::string tokens = "a sequence of " + format_count(spec_.sequence.value) + " tokens";
    if (const auto longest = lowering_.longest_sequence()) {
      if (*longest < spec_.sequence.value) {
        faults_.error(spec_.sequence.where.known() ? spec_.sequence.where : spec_.model.where,
                      tokens + " does not run: the model has " + format_count(*longest) +
                          " learned positions",
                      {"give --sequence " + std::to_string(*longest) + " or less"});
      }
      return;
    }
    const spec::Node* longest = model_.numbers.child("max_position_embeddings");
    const auto most = longest ? parse_integer(longest->text) : std::nullopt;
    if (most && *most < spec_.sequence.value) {
      out_.warnings.push_back(tokens + " is longer than the model's positions (" +
                              format_count(*most) + ")");
    }
  }

  void optimizer() {
    const bool given = spec_.optimizer.has_value();
    out_.optimizer = given ? spec_.optimizer->value : out_.profile.optimizer;
    const std::string name = word(spec::optimizer_names(), out_.optimizer);
    if (!given) assume("optimizer", name, out_.profile.optimizer_because);
    if (!set_optimizer(out_.optimizer, out_.job)) {
      not_yet(given ? spec_.optimizer->where : Location{}, "optimizer " + name);
    }
    if (out_.profile.clips) out_.job.clip_foreach = true;
    assume("clipping", out_.profile.clips ? "by the norm of all gradients" : "none",
           out_.profile.clip_because);
  }

  void recompute() {
    out_.job.reentrant = out_.profile.reentrant;
    const spec::Recompute& asked = spec_.recompute.value;
    // What is searched is set by the search.
    if (asked.kind == spec::RecomputeKind::none || asked.kind == spec::RecomputeKind::automatic) {
      return;
    }
    if (asked.kind == spec::RecomputeKind::full) {
      out_.job.recompute = program::Recompute::full;
      return;
    }
    const auto policy = recompute_policy(asked.policy);
    if (!policy) {
      std::vector<std::string> known;
      for (const SelectivePolicy& one : selective_policies()) known.push_back(one.name);
      known.insert(known.end(), {"first-N-blocks", "blocks-LIST"});
      std::vector<std::string> notes = suggest(asked.policy, known);
      if (asked.policy == "first-N-blocks") notes = {"N is a number: selective:first-8-blocks"};
      if (asked.policy == "blocks-LIST") notes = {"LIST names blocks: selective:blocks-0-5,8"};
      faults_.error(spec_.recompute.where,
                    "unknown policy " + shardfit::quoted(asked.policy) + " of selective recompute",
                    std::move(notes));
    } else if (!out_.profile.selective) {
      faults_.error(spec_.recompute.where,
                    "framework " + out_.profile.framework + " offers no selective recompute",
                    {"expected none, full or auto"});
    } else if (!offers_policy(out_.profile, policy_word(*policy))) {
      faults_.error(spec_.recompute.where,
                    "framework " + out_.profile.framework + " has no policy " +
                        shardfit::quoted(asked.policy) + " of selective recompute",
                    {"expected one of: " + join(out_.profile.policies)});
    } else if (const std::int64_t layers = blocks_of_model(); policy->blocks > layers) {
      const std::string nearest =
          layers > 1 ? "selective:first-" + std::to_string(layers - 1) + "-blocks, or full"
                     : "full";
      faults_.error(spec_.recompute.where,
                    "no " + std::to_string(policy->blocks) +
                        " blocks to recompute: the model has " + std::to_string(layers),
                    {"the nearest that can be: " + nearest});
    } else if (const std::int64_t units = lowering_.recompute_units(out_.job.head);
               !policy->chosen.empty() && policy->chosen.back() >= units) {
      faults_.error(spec_.recompute.where, "no block " + std::to_string(policy->chosen.back()) +
                                               " to recompute: the model has " +
                                               std::to_string(units) + ", counted from 0");
    } else {
      out_.job.recompute = policy->kind;
      out_.job.recompute_blocks = policy->blocks;
      out_.job.chosen_blocks = policy->chosen;
    }
  }

  std::int64_t blocks_of_model() const {
    const std::int64_t layers = lowering_.pipeline_layers();
    return layers > 0 ? layers : lowering_.recompute_units(out_.job.head);
  }

  void attention() {
    using spec::Attention;
    const Attention asked = spec_.attention.value;
    const DType compute = out_.job.autocast.value_or(out_.job.parameters);
    const bool flash = compute != DType::f32 && out_.job.device.capability_major >= 8;
    if (asked == Attention::eager) {
      out_.job.attention = "eager";
    } else if (asked == Attention::automatic) {
      // PyTorch chooses in sdp_utils.cpp; a mask or a wide head may still lead to another kernel.
      assume("attention-kernel", flash ? "flash" : "efficient",
             "what PyTorch's scaled_dot_product_attention takes first for these numbers");
    } else if (asked != (flash ? Attention::flash : Attention::efficient)) {
      not_yet(spec_.attention.where,
              "attention " + word(spec::attention_names(), asked) + " on this card and precision",
              {"expected auto, eager or " + std::string(flash ? "flash" : "efficient")});
    }
    assume("padding", "none", "every sample has the full length, so no mask is built");
  }

  /// Every setting that is wrong is said: after one the next is read on its own.
  void allocator() {
    if (!spec_.allocator) return;
    const std::string& text = spec_.allocator->value;
    std::size_t from = 0;
    while (from < text.size()) {
      try {
        const auto settings = run::parse_allocator_settings(text.substr(from));
        if (from == 0) out_.allocator = settings;
        return;
      } catch (const run::SettingsError& error) {
        const std::size_t at = from + error.position;
        Location where = spec_.allocator->where;
        where.offset += at;
        where.length = std::max<std::size_t>(1, error.found.size());
        faults_.error(
            where, "'allocator' of the job: found " + error.found + ", expected " + error.expected);
        from = next_setting(text, from, at);
      }
    }
  }

 private:
  /// PyTorch's host code is the same there; the libraries below it are not.
  void on_rocm(const spec::DeviceSpec& device) {
    out_.job.device.rocm = true;
    assume("kernels", "those of capability 9.0",
           device.compute_capability +
               ": what kernels of ROCm need besides is not known, but for the 128 MiB that hipBLAS "
               "has for each handle");
    assume("exchange library", "as NCCL", "no reading of what RCCL takes of a card");
    out_.warnings.push_back(
        "no job was measured on a card of AMD: bytes are those of the same program on CUDA, and "
        "their interval is wider by an assumption (" +
        rocm_accuracy({}).source + ")");
  }

  void assume(std::string key, std::string value, std::string because) {
    out_.assumptions.push_back({std::move(key), std::move(value), std::move(because)});
  }

  /// Behind the first comma at or after `at` that stands in no brackets, counted from `from`.
  static std::size_t next_setting(const std::string& text, std::size_t from, std::size_t at) {
    int depth = 0;
    for (std::size_t i = from; i < text.size(); ++i) {
      if (text[i] == '[') ++depth;
      if (text[i] == ']') --depth;
      if (text[i] == ',' && depth <= 0 && i >= at) return i + 1;
    }
    return text.size();
  }

  void not_yet(Location where, const std::string& what, std::vector<std::string> notes = {}) {
    if (!where.known()) where = option_.cluster.where;
    faults_.error(std::move(where), what + " is not modelled yet", std::move(notes));
  }

  static std::string last_name(const std::string& path) {
    return path.substr(path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1);
  }

  /// Last names of the model's linear modules, each once; without the one that gives logits.
  std::vector<std::string> linear_names() {
    std::vector<std::string> names;
    for (const auto& linear : lowering_.linears(out_.job.head)) {
      const std::string name = last_name(linear.path);
      if (!linear.output && std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
    return names;
  }

  /// "all-linear" stands for every linear module but the output layer (peft,
  /// tuners_utils.py, _maybe_include_all_linear_layers); a name that is none of them is a fault.
  std::vector<std::string> targets(const spec::Setting<std::vector<std::string>>& asked) {
    if (asked.value == std::vector<std::string>{"all-linear"}) return linear_names();
    const auto linears = lowering_.linears(out_.job.head);
    for (const std::string& target : asked.value) {
      const bool found = std::any_of(linears.begin(), linears.end(), [&](const auto& linear) {
        return program::names_end_of(target, linear.path);
      });
      if (!found) {
        std::vector<std::string> notes = suggest(target, linear_names());
        notes.push_back("all-linear stands for all of them");
        faults_.error(
            asked.where,
            "'lora-targets' of the job: no linear module is called " + shardfit::quoted(target),
            std::move(notes));
      }
    }
    return asked.value;
  }

  void lora(const spec::Lora& asked) {
    program::LoraJob lora;
    lora.rank = asked.rank.value;
    lora.dropout = asked.dropout.value;
    if (asked.targets) {
      lora.targets = targets(*asked.targets);
    } else {
      lora.targets = default_adapter_targets(model_.model_type);
      if (lora.targets.empty()) {
        faults_.error(
            spec_.task.where,
            "PEFT has no default targets for model type " + shardfit::quoted(model_.model_type),
            {"give --lora-targets, some of: " + join(linear_names()), "or all-linear"});
      }
      assume("lora-targets", join(lora.targets, ","), "not given; PEFT's for this model type");
    }
    const bool half = is_half(out_.job.parameters);
    lora.fp32_adapters = asked.dtype.value == spec::AdapterDtype::fp32;
    const DType wanted = asked.dtype.value == spec::AdapterDtype::bf16 ? DType::bf16 : DType::f16;
    if (!lora.fp32_adapters && (!half || wanted != out_.job.parameters)) {
      not_yet(asked.dtype.where, "adapters of another dtype than the model's or fp32");
    }
    out_.job.lora = std::move(lora);
  }

  const OptionSpec& option_;
  const JobSpec& spec_;
  const program::Lowering& lowering_;
  const spec::ModelSpec& model_;
  RankJob& out_;
  Diagnostics& faults_;
};

}  // namespace

std::span<const SelectivePolicy> selective_policies() {
  using program::Recompute;
  // By how much they recompute, least first; not all of them can be compared.
  static const std::vector<SelectivePolicy> policies{
      {"save-attention-matmul", Recompute::save_attention_matmul, 0, {}},
      {"save-attention-matmul-half", Recompute::save_attention_matmul_half, 0, {}},
      {"every-second-block", Recompute::every_second, 0, {}},
      {"save-attention", Recompute::save_attention, 0, {}}};
  return policies;
}

std::optional<SelectivePolicy> recompute_policy(const std::string& name) {
  for (const SelectivePolicy& policy : selective_policies()) {
    if (policy.name == name) return policy;
  }
  constexpr std::string_view list = "blocks-";
  if (name.starts_with(list)) {
    auto chosen = read_blocks(std::string_view(name).substr(list.size()));
    if (!chosen) return {};
    return SelectivePolicy{name, program::Recompute::chosen_blocks, 0, *std::move(chosen)};
  }
  constexpr std::string_view before = "first-", after = "-blocks";
  if (!name.starts_with(before) || !name.ends_with(after)) return {};
  if (name.size() < before.size() + after.size()) return {};
  const std::size_t digits = name.size() - before.size() - after.size();
  const auto blocks = parse_integer(name.substr(before.size(), digits));
  if (!blocks || *blocks < 1) return {};
  return SelectivePolicy{name, program::Recompute::first_blocks, *blocks, {}};
}

bool set_optimizer(spec::Optimizer optimizer, TrainingJob& job) {
  using spec::Optimizer;
  job.implementation = Implementation::foreach;
  switch (optimizer) {
    case Optimizer::adamw_fused:
      job.implementation = Implementation::fused;
      break;
    case Optimizer::adamw_loop:
      job.implementation = Implementation::for_loop;
      break;
    case Optimizer::adamw_foreach:
      break;
    case Optimizer::sgd:
      job.optimizer = "sgd";
      return true;
    case Optimizer::sgd_momentum:
      job.optimizer = "sgd-momentum";
      return true;
    case Optimizer::adafactor:
      // transformers brings its own (Trainer, optim="adafactor")
      job.optimizer = job.framework == "hf-trainer" ? "adafactor-transformers" : "adafactor";
      return true;
    case Optimizer::adagrad:
      job.optimizer = "adagrad";
      return true;
    default:
      return false;
  }
  job.optimizer = "adamw";
  return true;
}

void set_precision(spec::Precision precision, TrainingJob& job) {
  using spec::Precision;
  job.parameters = precision == Precision::bf16 ? DType::bf16 : DType::f32;
  job.autocast.reset();
  if (precision == Precision::bf16_mixed) job.autocast = DType::bf16;
  if (precision == Precision::fp16_mixed) job.autocast = DType::f16;
  job.grad_scaler = precision == Precision::fp16_mixed;
}

std::optional<RankJob> rank_job(const OptionSpec& option, std::int64_t ranks,
                                const program::Lowering& lowering, Diagnostics& faults) {
  RankJob out;
  out.assumptions = option.job.assumptions;
  const std::size_t before = faults.size();
  Mapping mapping(option, lowering, out, faults);
  mapping.framework();
  mapping.device();
  mapping.model();
  mapping.numbers(ranks);
  mapping.task();
  mapping.optimizer();
  mapping.recompute();
  mapping.attention();
  if (option.job.experts) set_experts(*option.job.experts, lowering, out.job, faults);
  mapping.allocator();
  if (out.profile.framework == "torchtitan") titan_words(option, out, faults);
  if (faults.size() > before) return {};
  return out;
}

}  // namespace shardfit::search
