#pragma once
#include <iosfwd>
#include <string>

namespace shardfit::cli {

/// What `shardfit partition` was asked for; empty or 0 where the file's own value holds.
struct PartitionOptions {
  std::string file;
  int gpus = 0;               // 0: as the file says (2 where it says nothing)
  int cpus = -1;              // -1: as the file says
  std::string gpu_bytes;      // "16 GiB", or one a GPU: "80 GiB,40 GiB"
  std::string gpu_speed;      // relative, one a GPU: "1,0.5"
  std::string bandwidth;      // "25 GiB/s", Piper's graphs only
  int microbatches = 0;       // in a batch: Piper's graphs and chains
  int slots = 500;            // memory resolution of chains
  double budget_seconds = 0;  // CPU time; 0: no limit but the search's own
  bool non_contiguous = false;
  bool json = false;
};

/// Partitions a foreign instance (dnn-partitioning or Piper JSON, PipeDream's graph.txt, a rotor
/// chain, minimalloc's CSV) exactly, or as well as its limits allow with the gap that remains.
/// Returns fits or does_not_fit; throws InputError.
int partition_command(const PartitionOptions& options, std::ostream& out, std::ostream& err);

}  // namespace shardfit::cli
