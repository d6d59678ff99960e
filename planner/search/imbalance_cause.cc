#include "search/imbalance_cause.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "search/experts.h"

namespace shardfit::search {
namespace {

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }

/// Where in a stage of Megatron-core's program a module stands.
enum Place : std::uint8_t { embedding, layers, head, elsewhere };
constexpr int places = 4;

constexpr std::string_view layer_prefix = "decoder.layers.";

/// Without "chunk1." of a stage with several chunks.
std::string_view in_chunk(std::string_view path) {
  if (!path.starts_with("chunk")) return path;
  const std::size_t dot = path.find('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

Place place_of(std::string_view path) {
  path = in_chunk(path);
  if (path.starts_with(layer_prefix)) return layers;
  if (path.starts_with("embedding")) return embedding;
  if (path.starts_with("output_layer")) return head;
  return elsewhere;
}

/// What a stage holds at its peak.
struct Held {
  std::array<double, places> parameters{}, activations{};
  double all_parameters = 0;
  double with_parameters = 0;  // gradients, states, what the optimizer's step takes for each
  double temporaries = 0;      // others
  /// Parameters of a place with their part of what goes with all of them.
  double of(Place place) const {
    const double share = all_parameters > 0 ? with_parameters / all_parameters : 0;
    return parameters[place] * (1 + share);
  }
  /// Of the loss, which stands in no module of the model, with the logits.
  double of_loss() const { return activations[head] + activations[elsewhere]; }
};

Held held_by(const Gpu& gpu) {
  Held held;
  const Program& program = *gpu.program;
  for (const run::LiveStorage& live : gpu.peak.live) {
    const StorageInfo& storage = program.storages[live.storage];
    const auto bytes = static_cast<double>(live.block_bytes);
    const Place place = place_of(program.modules[storage.module]);
    switch (storage.category) {
      case Category::parameter:
        held.parameters[place] += bytes;
        held.all_parameters += bytes;
        break;
      case Category::gradient:
      case Category::optimizer_state:
        held.with_parameters += bytes;
        break;
      case Category::activation:
        // What a stage receives from the one before is an input of its layers.
        held.activations[std::strcmp(storage.kind, "receive") == 0 ? layers : place] += bytes;
        break;
      case Category::temporary:
        (std::strcmp(storage.kind, "optimizer") == 0 ? held.with_parameters : held.temporaries) +=
            bytes;
        break;
      default:
        break;
    }
  }
  return held;
}

std::int64_t in_flight(const Option& option, const Gpu& gpu) {
  const program::MegatronJob& job = *option.job.job.megatron;
  program::PipelineShape shape;
  shape.schedule = job.virtual_stages > 1 ? program::PipelineSchedule::interleaved : job.schedule;
  shape.stages = job.pipeline;
  shape.stage = stage_of(option, gpu);
  shape.micro_batches = option.job.batch.accumulation;
  shape.chunks = job.virtual_stages;
  return program::passes_in_flight(shape);
}

std::string schedule_word(const Option& option) {
  const program::MegatronJob& job = *option.job.job.megatron;
  if (job.virtual_stages > 1) return "interleaved-1f1b";
  return job.schedule == program::PipelineSchedule::gpipe ? "gpipe" : "1f1b";
}

struct Part {
  double bytes;
  std::string text;
};

/// Parts that matter beside the largest.
constexpr double worth_saying = 0.05;

/// The largest first.
std::string join_parts(std::vector<Part> parts, std::size_t most) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.bytes > b.bytes; });
  std::vector<std::string> texts;
  for (const Part& part : parts) {
    const bool small = part.bytes <= 0 || part.bytes < worth_saying * parts.front().bytes;
    if (!small && texts.size() < most) {
      texts.push_back(part.text + ": " + size(static_cast<std::int64_t>(part.bytes)));
    }
  }
  return join(texts);
}

std::int64_t of(const Gpu& gpu, Category category) {
  return gpu.peak.allocated_by[static_cast<std::size_t>(category)];
}

std::string more_of_categories(const Gpu& more, const Gpu& less) {
  std::vector<Part> parts;
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    parts.push_back({static_cast<double>(of(more, category) - of(less, category)),
                     std::string("more ") + category_name(category)});
  }
  return join_parts(std::move(parts), 2);
}

/// "10 layers instead of 6, as stage-layers says".
std::string layers_text(const Option& option, std::int64_t own, std::int64_t other) {
  const bool given = option.spec->job.stage_layers && option.spec->job.stage_layers->where.known();
  return std::to_string(own) + (own == 1 ? " layer" : " layers") + " instead of " +
         std::to_string(other) + (given ? ", as stage-layers says" : "");
}

/// Why a pipeline's stage holds more than another.
std::string cause_in_pipeline(const Option& option, const Gpu& more, const Gpu& less) {
  const Held own = held_by(more), other = held_by(less);
  const std::int64_t own_layers = layers_of(more), other_layers = layers_of(less);
  const std::int64_t passes = in_flight(option, more), other_passes = in_flight(option, less);
  std::vector<Part> parts;
  double activations = own.activations[layers] - other.activations[layers];
  if (own_layers > other_layers) {
    const double of_layers =  // at the passes that the other has in flight, where it holds any
        other.activations[layers] * static_cast<double>(own_layers - other_layers) /
        static_cast<double>(std::max<std::int64_t>(1, other_layers));
    parts.push_back({own.of(layers) - other.of(layers) + of_layers,
                     layers_text(option, own_layers, other_layers)});
    activations -= of_layers;
  }
  const std::string schedule = "the schedule (" + schedule_word(option) + ") holds " +
                               std::to_string(passes) + " passes in flight there";
  if (passes > other_passes) {
    parts.push_back(
        {activations, schedule + ", " + std::to_string(other_passes) + " here, in activations"});
  }
  const char* with = " with its gradients and states";
  parts.push_back({own.of(embedding) - other.of(embedding), std::string("the embedding") + with});
  parts.push_back({own.of(head) - other.of(head), std::string("the head") + with});
  const std::string logits =
      passes > 1 ? schedule + ", each with logits and loss" : "logits and loss";
  parts.push_back({own.of_loss() - other.of_loss(), logits});
  parts.push_back({own.temporaries - other.temporaries, "temporaries of a pass"});
  const std::string text = join_parts(std::move(parts), 3);
  return text.empty() ? more_of_categories(more, less) : text;
}

/// Ranks of ZeroRedundancyOptimizer get whole parameters.
std::string cause_in_dealt_states(const Gpu& gpu) {
  std::int64_t largest = 0;
  std::string name;
  const Program& program = *gpu.program;
  for (const run::LiveStorage& live : gpu.peak.live) {
    const StorageInfo& storage = program.storages[live.storage];
    if (storage.category != Category::parameter || live.block_bytes <= largest) continue;
    largest = live.block_bytes;
    name = program.modules[storage.module];
  }
  return "ZeroRedundancyOptimizer deals out whole parameters, the largest first: " + name +
         " alone has " + size(largest) + ", and its states go to one rank";
}

/// DataParallel's loop runs on one GPU.
std::string cause_in_loop(const Gpu& more, const Gpu& less) {
  double outputs = 0;
  for (const run::LiveStorage& live : more.peak.live) {
    const StorageInfo& storage = more.program->storages[live.storage];
    if (std::strcmp(storage.kind, program::gathered_outputs) == 0) {
      outputs += static_cast<double>(live.block_bytes);
    }
  }
  const auto more_of = [&](std::initializer_list<Category> categories) {
    double bytes = 0;
    for (const Category category : categories) {
      bytes += static_cast<double>(of(more, category) - of(less, category));
    }
    return bytes;
  };
  std::vector<Part> parts{
      {more_of({Category::optimizer_state}), "it alone has the optimizer's states"},
      {more_of({Category::gradient, Category::communication}),
       "gradients of all GPUs are added up there"},
      {more_of({Category::parameter}), "it keeps the model, the others have it for a pass"},
      {outputs, "DataParallel gathers the outputs of all GPUs there"}};
  const std::string text = join_parts(std::move(parts), 3);
  return text.empty() ? more_of_categories(more, less) : text;
}

}  // namespace

std::int64_t stage_of(const Option& option, const Gpu& gpu) {
  const auto& job = option.job.job.megatron;
  return job ? gpu.rank / (job->tensor * job->data) : 0;
}

std::int64_t layers_of(const Gpu& gpu) {
  std::set<std::string_view> found;
  for (const std::string& path : gpu.program->modules) {
    const std::string_view inner = in_chunk(path);
    if (!inner.starts_with(layer_prefix)) continue;
    const std::size_t end = inner.find('.', layer_prefix.size());
    const std::size_t chunk = path.size() - inner.size();
    const std::size_t all = end == std::string_view::npos ? path.size() : chunk + end;
    found.insert(std::string_view(path).substr(0, all));
  }
  return static_cast<std::int64_t>(found.size());
}

std::string cause_of_memory(const Option& option, const Gpu& more, const Gpu& less) {
  if (option.split.pipeline > 1) return cause_in_pipeline(option, more, less);
  if (option.parallel == spec::Parallel::data_parallel) return cause_in_loop(more, less);
  if (const std::string experts = cause_in_experts(option, more, less); !experts.empty()) {
    return experts + "; " + more_of_categories(more, less);
  }
  const bool dealt = option.parallel == spec::Parallel::zero1 && !option.job.job.megatron &&
                     of(more, Category::optimizer_state) > of(less, Category::optimizer_state);
  return dealt ? cause_in_dealt_states(more) : more_of_categories(more, less);
}

std::string cause_of_time(const Option& option, const Gpu& more, const Gpu& less) {
  if (option.parallel == spec::Parallel::data_parallel) {
    return "DataParallel's loop, with the optimizer's step, runs on it alone";
  }
  if (option.split.pipeline < 2) return cause_in_experts(option, more, less);
  std::vector<std::string> texts;
  const std::int64_t own = layers_of(more), other = layers_of(less);
  if (own > other) texts.push_back(layers_text(option, own, other));
  const auto holds = [](const Gpu& gpu, Place place) {
    const auto& modules = gpu.program->modules;
    return std::any_of(modules.begin(), modules.end(),
                       [&](const std::string& path) { return place_of(path) == place; });
  };
  if (holds(more, head) && !holds(less, head)) {
    texts.emplace_back("the head and the loss beside the stage's layers");
  }
  return join(texts, ", and ");
}

}  // namespace shardfit::search
