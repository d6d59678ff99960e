#pragma once
// `shardfit replay TRACE...`: the caching allocator on recorded traces.

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace shardfit::cli {

struct ReplayOptions {
  /// PYTORCH_CUDA_ALLOC_CONF to replay under instead of the traces' own: expectations are not
  /// compared then, the two replays are.
  std::optional<std::string> settings;
  bool json = false;
};

/// Replays each trace and prints what came out; faults of files go to `err` and the other files are
/// still replayed. 0: every expectation holds (or other settings were asked for); 1: some does not;
/// 2: a file or the settings are bad.
int replay_command(const std::vector<std::string>& files, const ReplayOptions& options,
                   std::ostream& out, std::ostream& err);

}  // namespace shardfit::cli
