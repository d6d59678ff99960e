#include "program/decay_groups.h"

#include <algorithm>
#include <cctype>

namespace shardfit::program {
namespace {

/// `word` ends a name of the dotted path, or is all of one where `whole`.
bool names_end(const std::string& path, const std::string& word, bool whole) {
  for (std::size_t at = path.find(word); at != std::string::npos; at = path.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = !whole || at == 0 || path[at - 1] == '.';
    if (begins && (end == path.size() || path[end] == '.')) return true;
  }
  return false;
}

bool decays(const model::Parameter& parameter) {
  if (parameter.module->type->spec->name == "layer_norm") return false;
  std::string path = parameter.path;
  std::transform(path.begin(), path.end(), path.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* word : {"bias", "layernorm", "rmsnorm"}) {
    if (path.find(word) != std::string::npos) return false;
  }
  return !names_end(path, "norm", true) && !names_end(path, "_norm", false);
}

}  // namespace

std::vector<std::vector<tensor::Tensor>> decay_groups(
    const std::vector<model::Parameter>& parameters) {
  std::vector<std::vector<tensor::Tensor>> groups(2);
  for (const model::Parameter& parameter : parameters) {
    if (!parameter.tensor->leaf_requires_grad) continue;
    groups[decays(parameter) ? 0 : 1].push_back(parameter.tensor);
  }
  return groups;
}

}  // namespace shardfit::program
