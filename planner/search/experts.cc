#include "search/experts.h"

#include <algorithm>
#include <cmath>

#include "base/comma_list.h"
#include "base/format.h"

namespace shardfit::search {
namespace {

/// Some module of the family has the experts whose kernel transformers chooses
/// (model_specs/library/experts.yaml) as a child.
bool has_experts(const spec::FamilySpec& family) {
  return std::any_of(family.classes.begin(), family.classes.end(), [](const auto& one) {
    return std::any_of(one.children.begin(), one.children.end(), [](const auto& child) {
      return child.make.kind == spec::ExprKind::call && child.make.text == "experts";
    });
  });
}

/// Routed experts of a model by its file; 0 where it names none.
std::int64_t experts_of(const spec::ModelSpec& model) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    const spec::Node* number = model.numbers.child(key);
    const auto count = number ? parse_integer(number->text) : std::nullopt;
    if (count && *count > 0) return *count;
  }
  return 0;
}

/// The numbers of "0.5,0.25,0.25"; nothing where one is none.
std::optional<std::vector<double>> shares_of(const std::string& text) {
  std::vector<double> shares;
  for (const std::string_view word : comma_list(text)) {
    const auto share = parse_real(word);
    if (!share || !std::isfinite(*share) || *share < 0) return {};
    shares.push_back(*share);
  }
  return shares;
}

}  // namespace

void set_experts(const spec::Setting<std::string>& asked, const program::Lowering& lowering,
                 program::TrainingJob& job, Diagnostics& faults) {
  if (!has_experts(lowering.family())) {
    faults.error(asked.where,
                 "'experts' is given, but this program of the model has no routed experts whose "
                 "kernel can be chosen",
                 {"leave it out"});
    return;
  }
  const std::size_t colon = asked.value.find(':');
  job.experts = asked.value.substr(0, colon);
  const std::vector<std::string> kernels{"grouped_mm", "batched_mm", "eager"};
  const bool known = std::find(kernels.begin(), kernels.end(), job.experts) != kernels.end();
  if (!known || (colon != std::string::npos && job.experts != "eager")) {
    faults.error(
        asked.where,
        "'experts' of the job: expected grouped_mm, batched_mm or eager[:ROUTING], found " +
            shardfit::quoted(asked.value),
        suggest(job.experts, kernels));
    return;
  }
  if (colon == std::string::npos) return;
  job.routing = asked.value.substr(colon + 1);
  if (job.routing == "balanced" || job.routing == "worst") return;
  const auto shares = shares_of(job.routing);
  const std::int64_t count = experts_of(lowering.model());
  const bool any =
      shares && std::any_of(shares->begin(), shares->end(), [](double s) { return s > 0; });
  if (!any || (count > 0 && static_cast<std::int64_t>(shares->size()) != count)) {
    const std::string each = count > 0 ? std::to_string(count) + " experts" : "experts";
    faults.error(
        asked.where,
        "'experts' of the job: a routing is balanced, worst, or a share from 0 on for each "
        "of the model's " +
            each + ", not all 0; found " + shardfit::quoted(job.routing));
    return;
  }
  job.expert_shares = *shares;
  job.routing = "shares";
}

}  // namespace shardfit::search
