// The steady step of an option: all ranks' programs played together against the time clock.

#include <algorithm>

#include "run/time_clock.h"
#include "search/plan.h"

namespace shardfit::search {

std::vector<run::RankProgram> rank_programs(const Option& option) {
  std::vector<run::RankProgram> programs;
  for (const Gpu& gpu : option.gpus) {
    auto same = std::find_if(programs.begin(), programs.end(), [&](const run::RankProgram& one) {
      return one.program == gpu.program.get();
    });
    if (same == programs.end()) same = programs.insert(same, {gpu.program.get(), {}});
    same->ranks.push_back(gpu.rank);
    if (option.parallel == spec::Parallel::independent) break;
  }
  return programs;
}

run::Machine machine_for(const Option& option) {
  spec::ClusterSpec cluster = option.spec->cluster;
  if (option.parallel == spec::Parallel::independent) cluster.count = 1;  // nothing is exchanged
  return run::machine_of(cluster);
}

std::optional<Timing> time_of(const Option& option, std::string& missing) {
  const run::Machine machine = machine_for(option);
  missing = machine.missing;
  if (!missing.empty()) return {};
  const std::vector<run::RankProgram> programs = rank_programs(option);
  const run::TimeResult result = run::run_time(programs, machine);
  const run::RankTime& exchange = result.busiest_exchange();
  Timing timing;
  timing.step_seconds = result.step_seconds;
  timing.low_seconds = result.low_seconds;
  timing.high_seconds = result.high_seconds;
  timing.exchange_bytes = static_cast<std::int64_t>(exchange.exchange_bytes);
  timing.exchange_seconds = exchange.exchange_seconds;
  timing.exposed_seconds = exchange.exposed_seconds;
  for (const Gpu& gpu : option.gpus) {
    const auto own = std::find_if(result.ranks.begin(), result.ranks.end(), [&](const auto& rank) {
      return std::find(rank.ranks.begin(), rank.ranks.end(), gpu.rank) != rank.ranks.end();
    });
    timing.busy_seconds.push_back(own == result.ranks.end() ? 0 : own->compute_seconds);
  }
  return timing;
}

}  // namespace shardfit::search
