#include "search/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/comma_list.h"
#include "base/format.h"
#include "model/routing.h"
#include "search/plan.h"

namespace shardfit::search {
namespace {

/// Some module of the family has the experts whose kernel transformers chooses
/// (model_specs/library/experts.yaml) as a child.
bool chooses_kernel(const spec::FamilySpec& family) {
  return std::any_of(family.classes.begin(), family.classes.end(), [](const auto& one) {
    return std::any_of(one.children.begin(), one.children.end(), [](const auto& child) {
      return child.make.kind == spec::ExprKind::call && child.make.text == "experts";
    });
  });
}

/// Megatron-core's own form: one expert after another.
bool is_sequential(const program::Lowering& lowering) {
  return lowering.family().framework == "megatron";
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

bool has_experts(const program::Lowering& lowering) {
  return is_sequential(lowering) ? experts_of(lowering.model()) > 0
                                 : chooses_kernel(lowering.family());
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
  if (!has_experts(lowering)) {
    faults.error(asked.where,
                 "'experts' is given, but this program of the model has no routed experts whose "
                 "kernel can be chosen",
                 {"leave it out"});
    return;
  }
  const std::size_t colon = asked.value.find(':');
  job.experts = asked.value.substr(0, colon);
  std::vector<std::string> kernels{"grouped_mm", "batched_mm", "eager"};
  if (is_sequential(lowering)) kernels = {"eager"};
  const bool known = std::find(kernels.begin(), kernels.end(), job.experts) != kernels.end();
  if (!known || (colon != std::string::npos && job.experts != "eager")) {
    faults.error(asked.where,
                 std::string("'experts' of the job: expected ") +
                     (is_sequential(lowering) ? "" : "grouped_mm, batched_mm or ") +
                     "eager[:ROUTING], found " + shardfit::quoted(asked.value),
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

bool is_mixture(const spec::ModelSpec& model) { return experts_of(model) > 0; }

void assume_experts(const program::Lowering& lowering, RankJob& job) {
  if (!is_sequential(lowering) || experts_of(lowering.model()) == 0) return;
  job.job.experts = "eager";
  job.assumptions.push_back(
      {"dispatcher", "alltoall",
       "moe_token_dispatcher_type; experts run one after another (SequentialMLP), no token is "
       "dropped, no auxiliary loss (moe_aux_loss_coeff 0). Megatron-core's own default, allgather, "
       "is not modelled"});
  if (job.job.routing != "balanced") return;
  job.assumptions.push_back({"routing", "balanced",
                             "each expert gets equally many tokens; --experts eager:worst or a "
                             "share for each says otherwise"});
}

std::string cause_in_experts(const Option& option, const Gpu& more, const Gpu& less) {
  const auto& megatron = option.job.job.megatron;
  if (!option.lowering) return "";  // a change that is simulated: nobody asks why
  const std::int64_t experts = experts_of(option.lowering->model());
  if (!megatron || megatron->expert < 2 || experts % megatron->expert != 0) return "";
  const program::TrainingJob& job = option.job.job;
  if (job.routing == "balanced") return "";
  const spec::Node* each = option.lowering->model().numbers.child("num_experts_per_tok");
  const std::int64_t chosen = each ? parse_integer(each->text).value_or(2) : 2;
  const std::int64_t tokens = job.micro_batch * job.sequence;
  const auto rows = job.routing == "worst"
                        ? model::worst_rows(tokens, chosen, static_cast<std::size_t>(experts))
                        : model::dealt_rows(tokens, chosen, job.expert_shares);
  const auto received = [&](const Gpu& gpu) {
    program::MegatronJob one = *megatron;
    one.rank = gpu.rank;
    const std::int64_t own = experts / one.expert;
    const auto first = rows.begin() + one.expert_rank() * own;
    return std::accumulate(first, first + own, std::int64_t{0}) * one.expert;
  };
  if (received(more) <= received(less)) return "";
  return "uneven experts: of a pass the routing sends " + format_count(received(more)) +
         " rows to its experts, " + format_count(received(less)) + " to those of the other";
}

}  // namespace shardfit::search
