#pragma once
// The parameter groups that transformers' Trainer gives its optimizer.

#include <vector>

#include "model/machine.h"

namespace shardfit::program {

/// Trainable parameters with weight decay, then those without: a layer norm's own and those whose
/// name says bias or norm (transformers src/transformers/trainer.py, create_optimizer and
/// get_decay_parameter_names). An optimizer steps one group after the other.
std::vector<std::vector<tensor::Tensor>> decay_groups(
    const std::vector<model::Parameter>& parameters);

}  // namespace shardfit::program
