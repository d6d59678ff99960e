#pragma once
// Which ways to share a job an option tries, and each as a job that can be lowered.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "search/plan.h"

namespace shardfit::search {

/// Models and their lowerings, read once however many options name them.
class Lowerings {
 public:
  /// The option's model. Throws InputError.
  const spec::ModelSpec& model(const spec::OptionSpec& option);
  /// Of the option's model in its framework. Throws InputError.
  const std::shared_ptr<const program::Lowering>& share(const spec::OptionSpec& option);
  const program::Lowering& find(const spec::OptionSpec& option) { return *share(option); }

 private:
  std::map<std::string, spec::ModelSpec> models_;
  std::map<std::string, std::shared_ptr<const program::Lowering>> lowerings_;
};

/// A way that is possible: the job of any rank, and what lowers it.
struct Way {
  spec::Parallel parallel = spec::Parallel::none;
  RankJob job;
  std::shared_ptr<const program::Lowering> lowering;
};

/// One option before anything is lowered.
struct Ready {
  const spec::OptionSpec* option = nullptr;
  std::vector<Way> possible;            // simplest first, independent runs last
  std::vector<Alternative> impossible;  // each with why
};

/// The ways of an option. Where none is possible the faults of the first are said: the others
/// mostly repeat them.
Ready prepare(const spec::OptionSpec& option, Lowerings& lowerings, Diagnostics& faults);

/// Faults for settings of pipelines and tensor ranks where no way of any option has such.
void refuse_unused(const std::vector<Ready>& options, Diagnostics& faults);
/// Warnings for the same where another way was tried but is not taken.
void warn_of_unused(Option& option);

/// The option's framework as a word.
const std::string& framework_of(const spec::OptionSpec& option);

}  // namespace shardfit::search
