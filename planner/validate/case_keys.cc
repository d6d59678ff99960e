#include "validate/case_keys.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace shardfit::validate {
namespace {

using spec::Kind;
using spec::Node;
using Words = std::vector<std::string_view>;

bool listed(const Words& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Nothing is asked for.
bool off(const Node& value) {
  if (value.kind == Kind::null) return true;
  if (value.kind == Kind::list || value.kind == Kind::map) return value.children.empty();
  return value.text == "false" || value.text == "none";
}

/// The first key of `map` that is neither known nor off.
std::string first_unread(const Node& map, const Words& known, const std::string& prefix) {
  for (const Node& child : map.children) {
    if (listed(known, child.key) || off(child)) continue;
    return "key '" + prefix + child.key + "'";
  }
  return "";
}

/// Of a case: what is read by cases.cc, and what only names or describes it.
const Words& keys() {
  static const Words words{"id",
                           "group",
                           "source",
                           "completeness",
                           "task",
                           "model",
                           "profile",
                           "program",
                           "model_overrides",
                           "framework_version",
                           "head",
                           "precision",
                           "optimizer",
                           "recompute",
                           "reentrant",
                           "lora",
                           "adapter",
                           "quantization",
                           "parallel",
                           "rank",
                           "no_sync",
                           "device",
                           "clip",
                           "grad_scaler",
                           "zero_grad",
                           "autocast_cache",
                           "batch",
                           "attention",
                           "attention_mask",
                           "dropout",
                           "loss",
                           "experts",
                           "expert_shares",
                           "activation_offload",
                           "steps",
                           "environment",
                           "use_cache",
                           "compile",
                           "flags",
                           "eager_twin",
                           "measured",
                           "build",
                           "eval",
                           "cudnn_sdp",
                           "differs"};
  return words;
}

struct Part {
  const char* name;
  Words known;
};
const std::vector<Part>& parts() {
  static const std::vector<Part> list{
      {"batch",
       {"micro", "accumulation", "sequence", "decoder_sequence", "text_tokens", "image_size",
        "image_tokens", "latent", "frames", "samples", "lookups_per_bag"}},
      {"optimizer",
       {"name", "implementation", "hf_optim", "chosen_by_default", "zero_redundancy",
        "parameters_as_bucket_view"}},
      {"lora", {"rank", "alpha", "dropout", "dtype", "targets", "modules_to_save", "dora"}},
  };
  return list;
}

}  // namespace

std::string unread_key(const Node& a_case) {
  std::string found = first_unread(a_case, keys(), "");
  for (const Part& part : parts()) {
    const Node* map = a_case.child(part.name);
    if (found.empty() && map && map->kind == Kind::map) {
      found = first_unread(*map, part.known, std::string(part.name) + ".");
    }
  }
  return found;
}

}  // namespace shardfit::validate
