#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "partition/partition.h"

namespace shardfit::cli {

/// A number or a word of a part, shown under its name.
struct PartDetail {
  const char* key;
  std::string text;
  bool number;
};

struct PartRow {
  std::string device;            // "GPU 0"
  std::vector<std::string> ids;  // of the file, in its order
  bool numeric_ids = true;
  double load = 0, latency = 0, communication = 0, bytes = 0;
  std::vector<PartDetail> details;
};

/// An answer of any solver, ready to print.
struct PartitionAnswer {
  std::string file, format, task;  // "32 nodes on 2 GPUs"
  std::string objective_name;      // "largest load"
  std::string unit;                // of objective, lower bound and loads
  bool feasible = false, proven = false;
  double objective = 0, lower_bound = 0, gap = 0;  // infinite: nothing found, nothing fits
  double cpu_seconds = 0;                          // after the file was read
  std::string reason;
  std::vector<std::string> notes;
  std::vector<PartRow> parts;
  partition::Certificate certificate;
  std::vector<std::int64_t> offsets;  // of buffers, in the order of the part's ids
};

void print_answer(const PartitionAnswer& answer, std::ostream& out);
void write_answer_json(const PartitionAnswer& answer, std::ostream& out);

}  // namespace shardfit::cli
