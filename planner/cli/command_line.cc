#include "cli/command_line.h"

#include "spec/job_spec.h"

namespace shardfit::cli {

CommandLine::CommandLine(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
  std::string text;
  for (const std::string& argument : arguments_) {
    if (!text.empty()) text += ' ';
    const bool plain =
        !argument.empty() && argument.find_first_of(" \t\n\"'\\$`&|;<>()*?#") == std::string::npos;
    if (!plain) text += '\'';
    offsets_.push_back(text.size());
    text += argument;
    if (!plain) text += '\'';
  }
  source_ = std::make_shared<const Source>(Source{"command line", std::move(text)});
}

Location CommandLine::where(std::size_t i) const {
  return {source_, offsets_.at(i), arguments_.at(i).size()};
}

std::vector<spec::Node> CommandLine::values(std::string_view option) const {
  const std::string flag = "--" + std::string(option);
  std::vector<spec::Node> found;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const std::string& argument = arguments_[i];
    const bool joined = argument.starts_with(flag + "=");
    if (!joined && (argument != flag || i + 1 == arguments_.size())) continue;
    Location key_where = where(i);
    Location value_where = joined ? key_where : where(i + 1);
    if (joined) {
      value_where.offset += flag.size() + 1;
      value_where.length -= flag.size() + 1;
      key_where.length = flag.size();
    }
    spec::Node node = spec::word(joined ? argument.substr(flag.size() + 1) : arguments_[i + 1],
                                 std::move(value_where));
    node.key = option;
    node.key_where = std::move(key_where);
    found.push_back(std::move(node));
    if (!joined) ++i;
  }
  return found;
}

spec::Node CommandLine::job() const {
  spec::Node map;
  map.kind = spec::Kind::map;
  map.where = {source_, 0, source_->text.size()};
  for (const spec::JobKey& key : spec::job_keys()) {
    std::vector<spec::Node> found = values(key.name);
    if (found.empty()) continue;
    if (!key.repeatable) {
      map.children.push_back(std::move(found.back()));
      continue;
    }
    spec::Node list;
    list.kind = spec::Kind::list;
    list.key = key.name;
    list.key_where = found.front().key_where;
    list.where = found.front().where;
    list.children = std::move(found);
    map.children.push_back(std::move(list));
  }
  return map;
}

}  // namespace shardfit::cli
