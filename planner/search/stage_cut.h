#pragma once
// Layers moved between the stages of a pipeline, from what each layer holds and computes in its
// programs.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/plan.h"

namespace shardfit::search {

/// What a pipeline's stages hold and compute now, and what a layer more or less changes of that.
struct StageLoads {
  std::vector<std::int64_t> layers;
  std::vector<double> seconds, layer_seconds;  // of a step; empty where the speed is not known
  std::vector<double> bytes, layer_bytes;      // at the peak
};

/// Of an option with a pipeline of one chunk a stage, every rank judged. Bytes are those needed
/// where these are known, else the highest allocated ones.
StageLoads stage_loads(const Option& option);

/// "shortest": the busiest stage works least, and nobody holds `below_bytes`; "smallest":
/// the fullest stage holds least.
enum class CutAim { shortest, smallest };

struct StageCut {
  std::vector<std::int64_t> layers;
  double most_bytes = 0;  // of a stage, by the loads
};

/// The exact best cut for these loads, each taken to change evenly with the layers; nothing where
/// none keeps below the bytes.
std::optional<StageCut> best_cut(const StageLoads& loads, CutAim aim, double below_bytes);

/// As many layers a stage as there are, the middle ones first where they do not divide.
std::vector<std::int64_t> even_cut(std::int64_t layers, std::int64_t stages);

/// The cut of all layers that is nearest to one that was given: an equal one for other stages.
std::vector<std::int64_t> nearest_cut(std::vector<std::int64_t> given, std::int64_t layers,
                                      std::int64_t stages);

/// "6,9,9,8".
std::string cut_words(const std::vector<std::int64_t>& layers);
/// "E|t*6|t*9L": as Megatron's pipeline_model_parallel_layout takes it; E embedding, t a layer, L
/// head and loss (megatron/core/transformer/pipeline_parallel_layer_layout.py).
std::string layout_words(const std::vector<std::int64_t>& layers);

}  // namespace shardfit::search
