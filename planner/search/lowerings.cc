// Models and what lowers them, each once for all options and ways.

#include "search/ways.h"

namespace shardfit::search {

const spec::ModelSpec& Lowerings::model(const spec::OptionSpec& option) {
  const std::string path = spec::resolve_beside(option.job.model);
  const auto found = models_.find(path);
  if (found != models_.end()) return found->second;
  return models_.emplace(path, spec::read_model(path, option.job.model.where)).first->second;
}

const std::shared_ptr<const program::Lowering>& Lowerings::share(const spec::OptionSpec& option) {
  const std::string path = spec::resolve_beside(option.job.model);
  auto& found = lowerings_[path + "\n" + framework_of(option)];
  if (!found) {
    found = std::make_shared<const program::Lowering>(model(option), framework_of(option));
  }
  return found;
}

}  // namespace shardfit::search
