#pragma once
// Words of a job that the interface has and that nothing here models yet.

#include <string>
#include <string_view>
#include <vector>

namespace shardfit::spec {

/// Those of a key of a job ("task", "framework", ...): they are refused with the reason, and no
/// list of what can be given names them. Of "attention" those that no card dispatches here.
std::vector<std::string> words_to_come(std::string_view key);

}  // namespace shardfit::spec
