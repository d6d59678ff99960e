#pragma once
// A person's own graph as a family of models: its operators as modules of one network, run as
// torch.fx writes a graph's forward: in order, each value dropped after its last reader
// (torch/fx/graph.py, delete_unused_values).

#include "spec/model_spec.h"

namespace shardfit::model {

/// Reads the family of any model. Of a graph the sizes of weights that follow from shapes are found
/// by running its operators once, without values, for a batch of 2. Throws InputError with every
/// operator that does not go together with what it reads.
std::shared_ptr<const spec::FamilySpec> read_family_of(
    const spec::ModelSpec& model, const std::vector<std::string>& frameworks,
    const std::vector<std::string>& implementations = {});

}  // namespace shardfit::model
