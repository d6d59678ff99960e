#pragma once
// Adapters in place of linear modules (peft/tuners/lora).

#include "model/machine.h"

namespace shardfit::program {

struct LoraJob;

/// `target` is `path` or ends it at a dot: PEFT's rule for names in a list.
bool names_end_of(const std::string& target, const std::string& path);

/// Freezes the model and wraps each target: modules named in `targets` become the framework's
/// lora_linear (or lora_linear_dora), those in `modules_to_save` get a trainable copy.
void apply_lora(const LoraJob& job, model::Machine& machine, const model::Module& root);

/// PreTrainedModel.enable_input_require_grads: the embeddings' output is made to want a gradient,
/// so that recomputed blocks behind frozen embeddings have one to pass on.
void require_input_gradients(model::Machine& machine);

}  // namespace shardfit::program
