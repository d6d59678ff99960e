#include "spec/job_spec.h"

#include <algorithm>
#include <filesystem>

#include "base/comma_list.h"
#include "base/divisors.h"
#include "base/format.h"
#include "spec/reader.h"
#include "spec/words_to_come.h"

namespace shardfit::spec {
namespace {

// Bounds far above anything trained, so that no product of them leaves 63 bits unnoticed.
constexpr std::int64_t most_samples = 1'000'000'000;
constexpr std::int64_t most_epoch = 1'000'000'000'000;
constexpr std::int64_t most_passes = 1'000'000;
/// Bytes a second of a link to a host: no slot is slower or faster by far.
constexpr double least_link = 1e6, most_link = 1e13;
constexpr std::int64_t most_tokens = 100'000'000;
constexpr std::int64_t most_rank = 65'536;

/// Reads the keys of one job and keeps track of what it assumes.
class JobReader {
 public:
  JobReader(const Node& keys, JobSpec& job, Diagnostics& faults)
      : map_(keys, "the job", faults), job_(job), faults_(faults) {}

  void read() {
    if (const auto model = map_.string("model")) {
      job_.model = {model->value, model->where, ""};
    } else if (map_.find("model") == nullptr) {
      faults_.error(map_.where(), "no model is given",
                    {"give --model, or the key 'model' in a plan file"});
    }
    job_.task = choice<Task>("task", task_names());
    job_.framework = choice<Framework>("framework", framework_names());
    job_.framework_version = text("framework-version");
    job_.precision = choice<Precision>("precision", precision_names());
    job_.optimizer = optional_choice<Optimizer>("optimizer", optimizer_names());
    read_micro_batch();
    job_.accumulation = integer("accumulation", {1, most_passes});
    job_.global_batch = integer("global-batch", {1, most_samples});
    job_.sequence = integer_or("sequence", {1, most_tokens}, 2048,
                               "not given; a common length for fine-tuning");
    job_.samples = integer("samples", {1, most_epoch});
    read_recompute();
    job_.attention = choice<Attention>("attention", attention_names());
    job_.experts = text("experts");
    job_.allocator = text("allocator");
    read_lora();
    job_.parallel = choice<Parallel>("parallel", parallel_names());
    job_.peer_access = switched("peer-access");
    job_.stray_contexts = switched("stray-contexts");
    job_.host_links = host_links();
    Degrees& degrees = job_.degrees;
    degrees.dp = integer("dp", {1, most_gpus});
    degrees.fsdp = integer("fsdp", {1, most_gpus});
    degrees.tp = integer("tp", {1, most_gpus});
    degrees.pp = integer("pp", {1, most_gpus});
    degrees.cp = integer("cp", {1, most_gpus});
    degrees.ep = integer("ep", {1, most_gpus});
    job_.schedule = optional_choice<Schedule>("schedule", schedule_names());
    job_.stage_layers = stage_layers();
    job_.sequence_parallel = switched("sequence-parallel");
    map_.finish();
  }

 private:
  static constexpr const char* the_default = "not given; the default";

  void assume(std::string key, std::string value, std::string because) {
    job_.assumptions.push_back({std::move(key), std::move(value), std::move(because)});
  }

  std::optional<Setting<std::int64_t>> integer(const char* key, IntegerRange range) {
    const auto found = map_.integer(key, range);
    if (!found) return {};
    return Setting<std::int64_t>{found->value, found->where, ""};
  }

  Setting<std::int64_t> integer_or(const char* key, IntegerRange range, std::int64_t fallback,
                                   const char* because) {
    if (auto found = integer(key, range)) return *std::move(found);
    assume(key, std::to_string(fallback), because);
    return {fallback, {}, because};
  }

  Setting<double> real_or(const char* key, RealRange range, double fallback, const char* because) {
    if (const auto found = map_.real(key, range)) return {found->value, found->where, ""};
    assume(key, format_exact(fallback), because);
    return {fallback, {}, because};
  }

  std::optional<Setting<std::string>> text(const char* key) {
    auto found = map_.string(key);
    if (!found) return {};
    return Setting<std::string>{std::move(found->value), std::move(found->where), ""};
  }

  template <class E>
  std::optional<Setting<E>> optional_choice(const char* key, std::span<const std::string> names) {
    if (!may_be(key, names)) return {};
    const auto found = map_.choice(key, names);
    if (!found) return {};
    return Setting<E>{static_cast<E>(found->value), found->where, ""};
  }

  /// Of an unknown word the fault names those that can be given, not those to come.
  bool may_be(const char* key, std::span<const std::string> names) {
    const Node* node = map_.find(key);
    const std::vector<std::string> later = words_to_come(key);
    if (!node || later.empty() || (node->kind != Kind::string && !node->untyped)) return true;
    if (std::find(names.begin(), names.end(), node->text) != names.end()) return true;
    std::vector<std::string> now(names.begin(), names.end());
    std::erase_if(now, [&](const std::string& word) {
      return std::find(later.begin(), later.end(), word) != later.end();
    });
    faults_.error(
        node->where,
        "'" + std::string(key) + "' of the job: unknown value " + shardfit::quoted(node->text),
        suggest(node->text, now));
    return false;
  }

  /// The first of `names` where the key is absent.
  template <class E>
  Setting<E> choice(const char* key, std::span<const std::string> names) {
    if (auto found = optional_choice<E>(key, names)) return *std::move(found);
    assume(key, names.front(), the_default);
    return {E{}, {}, the_default};
  }

  /// A word, or true and false as YAML and JSON have them.
  std::optional<Setting<bool>> switched(const char* key) {
    static const std::vector<std::string> words{"yes", "no", "true", "false"};
    const Node* node = map_.find(key);
    const bool boolean = node && node->kind == Kind::boolean && !node->untyped;
    if (const auto found = boolean ? map_.boolean(key) : std::nullopt) {
      return Setting<bool>{found->value, found->where, ""};
    }
    const auto found = boolean ? std::nullopt : map_.choice(key, words);
    if (!found) return {};
    return Setting<bool>{found->value % 2 == 0, found->where, ""};
  }

  void read_micro_batch() {
    const Node* node = map_.find("micro-batch");
    if (node && node->text == "auto") {
      job_.any_micro_batch = node->where;
    } else {
      job_.micro_batch = integer("micro-batch", {1, most_samples});
    }
  }

  void read_recompute() {
    const auto found = text("recompute");
    if (!found) {
      assume("recompute", "none", the_default);
      job_.recompute.because = the_default;
      return;
    }
    constexpr std::string_view selective = "selective:";
    Recompute recompute;
    const std::string& value = found->value;
    if (value == "full") {
      recompute.kind = RecomputeKind::full;
    } else if (value == "auto") {
      recompute.kind = RecomputeKind::automatic;
    } else if (value.starts_with(selective) && value.size() > selective.size()) {
      recompute = {RecomputeKind::selective, value.substr(selective.size())};
    } else if (value != "none") {
      const std::vector<std::string> known{"none", "full", "selective:POLICY", "auto"};
      faults_.error(found->where,
                    "'recompute' of the job: unknown value " + shardfit::quoted(value),
                    suggest(value, known));
    }
    job_.recompute = {std::move(recompute), found->where, ""};
  }

  void read_lora() {
    constexpr const char* as_peft = "not given; PEFT's LoraConfig has it so";
    if (job_.task.value != Task::lora && job_.task.value != Task::qlora) {
      for (const char* key :
           {"lora-rank", "lora-alpha", "lora-dropout", "lora-targets", "lora-dtype"}) {
        if (const Node* node = map_.find(key)) {
          faults_.error(node->key_where,
                        shardfit::quoted(key) + " is given, but the task is " +
                            task_names()[static_cast<std::size_t>(job_.task.value)],
                        {"give task lora, or leave it out"});
        }
      }
      return;
    }
    Lora lora;
    lora.rank = integer_or("lora-rank", {1, most_rank}, 8, as_peft);
    lora.alpha = real_or("lora-alpha", {0, 1e6}, 8, as_peft);
    lora.dropout = real_or("lora-dropout", {0, 0.999}, 0, as_peft);
    lora.targets = targets();
    if (auto dtype = optional_choice<AdapterDtype>("lora-dtype", adapter_dtype_names())) {
      lora.dtype = *std::move(dtype);
    } else {
      constexpr const char* because =
          "not given; PEFT keeps adapters in float32 "
          "(autocast_adapter_dtype)";
      lora.dtype = {AdapterDtype::fp32, {}, because};
      assume("lora-dtype", "fp32", because);
    }
    job_.lora = std::move(lora);
  }

  /// A list, or one text with commas.
  std::optional<Setting<std::vector<std::string>>> targets() {
    const Node* node = map_.find("lora-targets");
    if (!node) return {};
    Setting<std::vector<std::string>> targets{{}, node->where, ""};
    const std::string what = "'lora-targets' of the job";
    if (node->kind == Kind::list) {
      for (const Node& child : node->children) {
        if (auto name = as_string(child, "an element of " + what, faults_)) {
          targets.value.push_back(*std::move(name));
        }
      }
    } else if (const auto names = as_string(*node, what, faults_)) {
      for (const std::string_view name : comma_list(*names)) {
        targets.value.emplace_back(name);
        if (name.empty()) {
          faults_.error(node->where, what + ": a name is empty in " + shardfit::quoted(*names));
        }
      }
    }
    return targets;
  }

  /// The items of a list, or of one text with commas, each with its place.
  template <class Take>
  static void each_item(const Node& node, const Take& take) {
    if (node.kind == Kind::list) {
      for (const Node& child : node.children) take(child.text, child.where);
      return;
    }
    for (const std::string_view item : comma_list(node.text)) take(std::string(item), node.where);
  }

  /// "7,9,8,8".
  std::optional<Setting<std::vector<std::int64_t>>> stage_layers() {
    const Node* node = map_.find("stage-layers");
    if (!node) return {};
    Setting<std::vector<std::int64_t>> layers{{}, node->where, ""};
    each_item(*node, [&](const std::string& text, const Location& where) {
      const auto number = parse_integer(text);
      if (number && *number >= 1 && *number <= most_rank) {
        layers.value.push_back(*number);
      } else {
        faults_.error(where,
                      "'stage-layers' of the job: expected one layer a stage or more, found " +
                          shardfit::quoted(text));
      }
    });
    return layers;
  }

  /// "55GB/s,14GB/s".
  std::optional<Setting<std::vector<BytesPerSecond>>> host_links() {
    const Node* node = map_.find("host-links");
    if (!node) return {};
    Setting<std::vector<BytesPerSecond>> links{{}, node->where, ""};
    bool all = true;
    each_item(*node, [&](const std::string& text, const Location& where) {
      const auto rate = parse_bytes_per_second(text);
      if (rate.value && rate.value->value() >= least_link && rate.value->value() <= most_link) {
        links.value.push_back(*rate.value);
        return;
      }
      all = false;
      if (rate.value && rate.value->value() > 0) {
        faults_.error(
            where, "'host-links' of the job: " + shardfit::quoted(text) + " is no rate of a link",
            {"expected from 1 MB/s to 10 TB/s"});
      } else {
        faults_.error(where, "'host-links' of the job: expected a rate such as 55 GB/s, found " +
                                 shardfit::quoted(text));
      }
    });
    if (!all) return {};  // their number is no second fault
    return links;
  }

  MapView map_;
  JobSpec& job_;
  Diagnostics& faults_;
};

/// The fault of three batch numbers that do not go together.
void contradict(const JobSpec& job, std::int64_t ranks, Diagnostics& faults) {
  std::vector<std::string> notes;
  const auto note = [&](const char* key, const std::optional<Setting<std::int64_t>>& setting) {
    if (!setting) return;
    notes.push_back(std::string(key) + " " + std::to_string(setting->value) +
                    (setting->where.known() ? " at " + setting->where.text() : ""));
  };
  note("micro-batch", job.micro_batch);
  note("accumulation", job.accumulation);
  note("global-batch", job.global_batch);
  notes.push_back("data-parallel ranks: " + std::to_string(ranks));
  faults.error(job.global_batch->where,
               "the global batch is not micro-batch x accumulation x ranks, in whole numbers",
               std::move(notes));
}

}  // namespace

JobSpec read_job(const Node& keys, Diagnostics& faults) {
  JobSpec job;
  JobReader(keys, job, faults).read();
  return job;
}

std::optional<Batch> resolve_batch(const JobSpec& job, std::int64_t ranks, Diagnostics& faults) {
  constexpr const char* because = "not given, nor implied by the other two";
  Batch batch;
  const auto assume_one = [&](const char* key) {
    batch.assumptions.push_back({key, "1", because});
    return std::int64_t{1};
  };
  if (!job.global_batch) {
    batch.micro = job.micro_batch ? job.micro_batch->value : assume_one("micro-batch");
    batch.accumulation = job.accumulation ? job.accumulation->value : assume_one("accumulation");
    batch.global = checked_multiply(checked_multiply(batch.micro, batch.accumulation), ranks);
    return batch;
  }
  batch.global = job.global_batch->value;
  if (!job.micro_batch && job.accumulation) {
    batch.accumulation = job.accumulation->value;
    batch.micro = batch.global / checked_multiply(batch.accumulation, ranks);
  } else {
    batch.micro = job.micro_batch ? job.micro_batch->value : assume_one("micro-batch");
    batch.accumulation = job.accumulation ? job.accumulation->value
                                          : batch.global / checked_multiply(batch.micro, ranks);
  }
  if (checked_multiply(checked_multiply(batch.micro, batch.accumulation), ranks) != batch.global) {
    contradict(job, ranks, faults);
    return {};
  }
  return batch;
}

std::optional<Split> resolve_split(const JobSpec& job, Parallel parallel, std::int64_t gpus,
                                   Diagnostics& faults) {
  const Degrees& given = job.degrees;
  const auto degree = [](const std::optional<Setting<std::int64_t>>& setting) {
    return setting ? setting->value : std::int64_t{1};
  };
  Split split{checked_multiply(degree(given.dp), degree(given.fsdp)), degree(given.tp),
              degree(given.pp), degree(given.cp)};
  const auto product = [&] {
    return checked_multiply(checked_multiply(split.data, split.tensor),
                            checked_multiply(split.pipeline, split.context));
  };
  // A degree that nobody gave takes what the others leave, if they leave it whole.
  const auto take_rest = [&](std::int64_t& part) {
    if (gpus % product() == 0) part *= gpus / product();
  };
  if (parallel == Parallel::tensor && !given.tp) take_rest(split.tensor);
  if (parallel == Parallel::pipeline && !given.pp) take_rest(split.pipeline);
  if (!given.dp && !given.fsdp) take_rest(split.data);
  for (const auto* setting : {&given.dp, &given.fsdp, &given.tp, &given.pp, &given.cp}) {
    if (!*setting || product() == gpus) continue;
    const std::int64_t wanted = (*setting)->value;
    faults.error((*setting)->where,
                 "the product of the degrees is " + std::to_string(product()) +
                     ", the number of GPUs " + std::to_string(gpus),
                 {"the nearest that divides the number of GPUs: " +
                  std::to_string(nearest_divisor(gpus, wanted))});
    return {};
  }
  return split;
}

std::optional<std::int64_t> data_parallel_ranks(const JobSpec& job, Parallel parallel,
                                                std::int64_t gpus, Diagnostics& faults) {
  const auto split = resolve_split(job, parallel, gpus, faults);
  if (!split) return {};
  const bool alone = parallel == Parallel::none || parallel == Parallel::independent;
  return alone ? 1 : split->data;
}

std::string resolve_beside(const Setting<std::string>& path) {
  namespace fs = std::filesystem;
  if (!path.where.known() || fs::path(path.value).is_absolute()) return path.value;
  const fs::path beside = fs::path(std::string(path.where.file())).parent_path() / path.value;
  std::error_code missing;
  return fs::exists(beside, missing) ? beside.string() : path.value;
}

}  // namespace shardfit::spec
