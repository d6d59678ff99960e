#pragma once
// The arguments as a source, so that a fault in one is shown as a fault in a file is.

#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostic.h"
#include "spec/node.h"

namespace shardfit::cli {

class CommandLine {
 public:
  explicit CommandLine(std::vector<std::string> arguments);

  const std::vector<std::string>& arguments() const { return arguments_; }
  /// The place of argument i.
  Location where(std::size_t i) const;
  /// The values given for an option ("on" for --on X and --on=X), in order, as untyped words.
  std::vector<spec::Node> values(std::string_view option) const;
  /// The job keys given, as a map; repeatable ones are lists.
  spec::Node job() const;

 private:
  std::vector<std::string> arguments_;
  SourcePtr source_;
  std::vector<std::size_t> offsets_;
};

}  // namespace shardfit::cli
