#pragma once
// Adapters in place of linear modules (peft/tuners/lora).

#include "model/machine.h"

namespace shardfit::program {

struct LoraJob;

/// Freezes the model and wraps each target: modules named in `targets` become the framework's
/// lora_linear (or lora_linear_dora), those in `modules_to_save` get a trainable copy.
void apply_lora(const LoraJob& job, model::Machine& machine, const model::Module& root);

}  // namespace shardfit::program
