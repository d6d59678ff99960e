#pragma once
// A model's numbers as globals of the language: read from its file, worked out, checked.

#include <deque>

#include "model/code.h"
#include "spec/model_spec.h"

namespace shardfit::model {

/// Sets every dimension of the family: from the model's file, else from its default (which may use
/// earlier dimensions and `model_type`). Throws InputError naming what is missing or out of range:
/// whole numbers must lie in 0 .. 2^40, so that a hidden size of 10^18 is refused here.
void set_dimensions(const spec::FamilySpec& family, const spec::ModelSpec& model,
                    Globals& globals);

}  // namespace shardfit::model
