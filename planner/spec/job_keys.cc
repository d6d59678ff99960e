// The words of a job: one table for the command line, plan.yaml and help.

#include <algorithm>
#include <filesystem>

#include "spec/data_directory.h"
#include "spec/job_spec.h"
#include "spec/words_to_come.h"

namespace shardfit::spec {
namespace {

using Words = std::vector<std::string>;

std::string listed(std::span<const std::string> words) { return join(words); }

/// The words that work, then those that do not yet.
std::string listed(std::span<const std::string> words, const Words& later) {
  Words now, not_yet;
  for (const std::string& word : words) {
    const bool waits = std::find(later.begin(), later.end(), word) != later.end();
    (waits ? not_yet : now).push_back(word);
  }
  return join(now) + (not_yet.empty() ? "" : " (not yet: " + join(not_yet) + ")");
}

/// Frameworks without a profile in model_specs/frameworks.
Words frameworks_to_come() {
  std::error_code error;
  Words later;
  for (const std::string& name : framework_names()) {
    const std::string file = data_directory() + "/frameworks/" + name + ".yaml";
    if (!std::filesystem::exists(file, error)) later.push_back(name);
  }
  return later;
}

}  // namespace

std::vector<std::string> words_to_come(std::string_view key) {
  if (key == "task") return {"qlora", "inference"};
  if (key == "framework") return frameworks_to_come();
  if (key == "optimizer") return {"adamw8bit", "paged-adamw8bit"};
  if (key == "attention") return {"cudnn", "math", "flash2", "flash3"};
  if (key == "schedule") return {"zero-bubble", "zbv"};
  return {};
}

std::span<const std::string> task_names() {
  static const Words words{"full", "pretrain", "lora", "qlora", "inference"};
  return words;
}
std::span<const std::string> framework_names() {
  static const Words words{"hf-trainer", "plain-pytorch", "torchtitan", "torchtune", "litgpt",
                           "trl",        "deepspeed",     "megatron",   "prime-rl"};
  return words;
}
std::span<const std::string> precision_names() {
  static const Words words{"bf16-mixed", "bf16", "fp16-mixed", "fp32"};
  return words;
}
std::span<const std::string> optimizer_names() {
  static const Words words{"adamw-fused",  "adamw-foreach",   "adamw-loop",
                           "adamw8bit",    "paged-adamw8bit", "sgd",
                           "sgd-momentum", "adafactor",       "adagrad"};
  return words;
}
std::span<const std::string> attention_names() {
  static const Words words{"auto", "flash", "efficient", "cudnn",
                           "math", "eager", "flash2",    "flash3"};
  return words;
}
std::span<const std::string> parallel_names() {
  static const Words words{"auto",  "none",  "ddp",    "zero1",    "zero2",         "zero3",
                           "fsdp1", "fsdp2", "tensor", "pipeline", "data-parallel", "independent"};
  return words;
}
std::span<const std::string> schedule_names() {
  static const Words words{"1f1b", "gpipe", "interleaved-1f1b", "zero-bubble", "zbv"};
  return words;
}
std::span<const std::string> hypothesis_names() {
  static const Words words{"larger-batch", "shorter-step", "make-possible"};
  return words;
}
std::span<const std::string> objective_names() {
  static const Words words{"step", "throughput", "memory"};
  return words;
}
std::span<const std::string> adapter_dtype_names() {
  static const Words words{"fp32", "bf16", "fp16"};
  return words;
}

std::span<const JobKey> job_keys() {
  static const std::vector<JobKey> keys{
      {"model", "MODEL", "Model and task",
       "a config.json, a file of model_specs or its name, a graph YAML of your own"},
      {"task", "TASK", "Model and task",
       listed(task_names(), words_to_come("task")) + "; default full"},
      {"framework", "NAME", "Model and task",
       "which program keeps what alive: " + listed(framework_names(), words_to_come("framework")) +
           "; default hf-trainer"},
      {"framework-version", "VERSION", "Model and task",
       "default the newest modelled, which the report names"},
      {"precision", "NAME", "Model and task",
       listed(precision_names()) +
           "; default bf16-mixed: fp32 parameters, bf16 compute. bf16: everything stored in bf16"},
      {"optimizer", "NAME", "Model and task",
       listed(optimizer_names(), words_to_come("optimizer")) + "; default the framework's"},
      {"micro-batch", "N", "Batch",
       "samples a pass; any two of these three imply the third, what is not implied is 1; auto: "
       "searched, the global batch kept"},
      {"accumulation", "N", "Batch", "passes a step"},
      {"global-batch", "N", "Batch", "samples a step, over all ranks"},
      {"sequence", "TOKENS", "Batch", "tokens a sample; default 2048"},
      {"samples", "N", "Batch", "samples of an epoch, for its time and rent"},
      {"recompute", "KIND", "Memory and kernels",
       "none, full, selective:POLICY (activation checkpointing), auto: searched; default none"},
      {"attention", "KERNEL", "Memory and kernels",
       listed(attention_names(), words_to_come("attention")) +
           "; default auto: what the framework's release dispatches, which flash or efficient must "
           "be on the card"},
      {"experts", "KERNEL", "Memory and kernels",
       "how routed experts run: grouped_mm, batched_mm, eager[:ROUTING] (a loop over experts; "
       "ROUTING: balanced, worst, or the share of each, S,S,...); default grouped_mm"},
      {"allocator", "SETTINGS", "Memory and kernels",
       "PyTorch's settings string, e.g. expandable_segments:True"},
      {"lora-rank", "N", "LoRA", "default 8, as PEFT's LoraConfig"},
      {"lora-alpha", "X", "LoRA", "default 8, as PEFT's LoraConfig"},
      {"lora-dropout", "P", "LoRA", "default 0, as PEFT's LoraConfig"},
      {"lora-targets", "NAMES", "LoRA",
       "modules, comma-separated; default those PEFT picks for the model type"},
      {"lora-dtype", "DTYPE", "LoRA",
       listed(adapter_dtype_names()) + "; default fp32, as PEFT's autocast_adapter_dtype"},
      {"on", "[COUNTx]DEVICE", "Where", "an option to compare; repeat it: --on h200 --on 2xb200",
       true},
      {"parallel", "KIND", "Where",
       listed(parallel_names()) +
           "; default auto: every one that applies is tried, but those that a framework's file has "
           "on request (fsdp1 of hf-trainer, data-parallel)"},
      {"peer-access", "yes|no", "Where",
       "GPUs reach each other's memory; no: through the host; default as the device's file says"},
      {"host-links", "RATE,RATE,...", "Where",
       "of each GPU to the host, beside peer-access no: a card in a slower slot; default the "
       "device's file"},
      {"stray-contexts", "yes|no", "Where",
       "processes of the other ranks hold a context on GPU 0 too, because they used it before "
       "set_device; default no"},
      {"dp", "N", "Where", "data parallel degree; the product of degrees is the number of GPUs"},
      {"fsdp", "N", "Where", "sharded data parallel degree"},
      {"tp", "N", "Where", "tensor parallel degree"},
      {"pp", "N", "Where", "pipeline parallel degree"},
      {"cp", "N", "Where", "context parallel degree"},
      {"ep", "N", "Where", "expert parallel degree, taken out of the ranks that are there"},
      {"schedule", "NAME", "Where",
       listed(schedule_names(), words_to_come("schedule")) +
           "; default 1f1b; interleaved-1f1b: two chunks a stage"},
      {"stage-layers", "N,N,...", "Where", "layers of each pipeline stage; default equally many"},
      {"sequence-parallel", "yes|no", "Where",
       "beside tp: what is not split by heads is split by tokens; default no"},
      {"device-profile", "FILE", "Where",
       "a device YAML, as calibrate writes it, that replaces or adds a device", true},
      {"hypothesis", "NAME", "Decision",
       listed(hypothesis_names()) + ": what the larger option is meant to bring"},
      {"prices", "FILE", "Decision", "your price file; no price is taken for granted"},
      {"objective", "NAME", "Decision",
       listed(objective_names()) +
           ": what a search over strategies, micro-batches and recompute makes best; default step"},
      {"budget", "SECONDS", "Decision",
       "CPU time for a search; then the best so far with its gap; default: to the end"},
      {"imbalance", "SHARE", "Decision",
       "from how much more on one GPU's need or work is named beside another's; default 0.1, a "
       "tenth"},
  };
  return keys;
}

}  // namespace shardfit::spec
