#include "search/stage_cut.h"

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "partition/layer_cut.h"
#include "run/memory_clock.h"

namespace shardfit::search {
namespace {

constexpr std::string_view layer_prefix = "decoder.layers.";
constexpr double infinite = std::numeric_limits<double>::infinity();

bool in_layer(const Program& program, std::uint32_t module) {
  return program.modules[module].starts_with(layer_prefix);
}

std::int64_t layers_in(const Program& program) {
  std::int64_t layers = 0;
  for (const std::string& path : program.modules) {
    if (!path.starts_with(layer_prefix)) continue;
    layers = std::max<std::int64_t>(layers, std::stoll(path.substr(layer_prefix.size())) + 1);
  }
  return layers;
}

/// The instruction at which most bytes are asked for.
std::int64_t peak_of(const Program& program) {
  run::RequestedPeak most;
  for (const run::RequestedPeak& peak : run::requested_peaks(program)) {
    if (peak.bytes > most.bytes && peak.instruction >= 0) most = peak;
  }
  return most.instruction;
}

/// Bytes at the peak that belong to one of a stage's layers: its parameters with their share of
/// gradients and states, and the activations of all passes in flight.
double bytes_a_layer(const Program& program, std::int64_t layers) {
  std::vector<char> live(program.storages.size());
  const std::int64_t peak = peak_of(program);
  for (std::int64_t i = 0; i <= peak; ++i) {
    const Instruction& instruction = program.instructions[static_cast<std::size_t>(i)];
    if (instruction.action == Action::allocate) live[instruction.id] = true;
    if (instruction.action == Action::release) live[instruction.id] = false;
  }
  double parameters = 0, all_parameters = 0, with_parameters = 0, activations = 0;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (!live[i]) continue;
    const StorageInfo& storage = program.storages[i];
    const auto bytes = static_cast<double>(storage.bytes);
    const bool own = in_layer(program, storage.module);
    if (storage.category == Category::parameter) all_parameters += bytes;
    if (storage.category == Category::parameter && own) parameters += bytes;
    if (storage.category == Category::activation && own) activations += bytes;
    const bool with =
        storage.category == Category::gradient || storage.category == Category::optimizer_state;
    if (with) with_parameters += bytes;
  }
  const double share = with_parameters / std::max(1.0, all_parameters);
  return (parameters * (1 + share) + activations) / static_cast<double>(layers);
}

double all_bytes(const Gpu& gpu) {
  const Judgement& judged = gpu.judgement;
  return static_cast<double>(judged.needed > 0 ? judged.needed : judged.high);
}

}  // namespace

StageLoads stage_loads(const Option& option) {
  const program::MegatronJob& job = *option.job.job.megatron;
  const auto stages = static_cast<std::size_t>(job.pipeline);
  StageLoads loads;
  loads.layers.resize(stages);
  loads.bytes.resize(stages);
  loads.layer_bytes.resize(stages);
  std::vector<double> seconds(stages);
  for (std::size_t i = 0; i < option.gpus.size(); ++i) {
    const Gpu& gpu = option.gpus[i];
    const auto stage = static_cast<std::size_t>(gpu.rank / (job.tensor * job.data));
    if (loads.layers[stage] == 0) loads.layers[stage] = layers_in(*gpu.program);
    const bool same = i > 0 && option.gpus[i - 1].program == gpu.program;
    loads.bytes[stage] = std::max(loads.bytes[stage], all_bytes(gpu));
    if (!same) {
      loads.layer_bytes[stage] =
          std::max(loads.layer_bytes[stage], bytes_a_layer(*gpu.program, loads.layers[stage]));
    }
    if (option.timing) {
      seconds[stage] = std::max(seconds[stage], option.timing->busy_seconds[i]);
    }
  }
  if (!option.timing) return loads;
  // Of the stage that has little else beside its layers.
  double least = infinite;
  for (std::size_t s = 0; s < stages; ++s) {
    least = std::min(least, seconds[s] / static_cast<double>(loads.layers[s]));
  }
  loads.seconds = std::move(seconds);
  loads.layer_seconds.assign(stages, least);
  return loads;
}

std::optional<StageCut> best_cut(const StageLoads& loads, CutAim aim, double below_bytes) {
  std::int64_t layers = 0;
  for (const std::int64_t own : loads.layers) layers += own;
  const auto load = [&](int stage, int from, int to) -> partition::StageLoad {
    const auto s = static_cast<std::size_t>(stage);
    const auto more = static_cast<double>(to - from - loads.layers[s]);
    const double bytes = loads.bytes[s] + more * loads.layer_bytes[s];
    const double seconds =
        loads.seconds.empty() ? 0 : loads.seconds[s] + more * loads.layer_seconds[s];
    if (aim == CutAim::smallest) return {bytes, seconds};
    return bytes >= below_bytes ? partition::StageLoad{infinite, infinite}
                                : partition::StageLoad{seconds, bytes};
  };
  const auto cut =
      partition::cut_layers(static_cast<int>(layers), static_cast<int>(loads.layers.size()), load);
  if (!cut) return {};
  return StageCut{{cut->layers.begin(), cut->layers.end()},
                  aim == CutAim::smallest ? cut->most_first : cut->most_second};
}

std::vector<std::int64_t> even_cut(std::int64_t layers, std::int64_t stages) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(stages), layers / stages);
  // The first stage has the embedding and most passes in flight, the last one the head.
  for (std::int64_t left = layers % stages, at = 1; left > 0; --left, ++at) {
    ++out[static_cast<std::size_t>(at % stages)];
  }
  return out;
}

std::vector<std::int64_t> nearest_cut(std::vector<std::int64_t> given, std::int64_t layers,
                                      std::int64_t stages) {
  if (static_cast<std::int64_t>(given.size()) != stages || layers < stages) {
    return even_cut(layers, stages);
  }
  std::int64_t sum = 0;
  for (std::int64_t& own : given) sum += own = std::clamp<std::int64_t>(own, 1, layers);
  for (; sum < layers; ++sum) ++*std::min_element(given.begin(), given.end());
  for (; sum > layers; --sum) --*std::max_element(given.begin(), given.end());
  return given;
}

std::string cut_words(const std::vector<std::int64_t>& layers) {
  std::vector<std::string> texts;
  for (const std::int64_t n : layers) texts.push_back(std::to_string(n));
  return join(texts, ",");
}

std::string layout_words(const std::vector<std::int64_t>& layers) {
  std::string text = "E";
  for (std::size_t s = 0; s < layers.size(); ++s) {
    text += (s > 0 ? "|t*" : "t*") + std::to_string(layers[s]);
  }
  return text + "L";
}

}  // namespace shardfit::search
