#pragma once
// Which number of a model's file a fault of its family's expressions comes from.

#include <optional>
#include <string>

#include "spec/family_spec.h"
#include "spec/model_spec.h"

namespace shardfit::model {

/// What the model's file gives for a dimension, under one of the keys it may stand under; else
/// null.
const spec::Node* find_number(const spec::Node& numbers, const spec::DimensionSpec& dimension);

/// The first number given in the model's file that `expression` uses, also through defaults of
/// dimensions; null where there is none.
const spec::Node* number_in(const spec::Expr& expression, const spec::FamilySpec& family,
                            const spec::ModelSpec& model);

/// The same for an expression of which only the place and the message of its fault are known: a
/// dimension named on that line, or a text of the model's file that the message quotes.
const spec::Node* number_behind(const Location& expression, const std::string& message,
                                const spec::FamilySpec& family, const spec::ModelSpec& model);

/// The first size that every model of the family has to give and that the model's file gives as 0;
/// else null.
const spec::Node* missing_size(const spec::FamilySpec& family, const spec::ModelSpec& model);

/// The largest whole number of the model's file where it is larger than any model's; else null.
const spec::Node* absurd_number(const spec::ModelSpec& model);

}  // namespace shardfit::model
