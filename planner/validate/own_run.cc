#include "validate/own_run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "spec/reader.h"

namespace shardfit::validate {
namespace {

using spec::MapView;
using spec::Node;
using spec::UnknownKeys;

std::optional<std::int64_t> bytes_of(MapView& map, const char* key) {
  const auto found = map.integer(key);
  return found ? std::optional(found->value) : std::nullopt;
}

/// The first of several keys that is there.
std::optional<std::int64_t> first_of(MapView& map, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (const auto found = bytes_of(map, key)) return found;
  }
  return {};
}

void read_phases(MapView& map, OwnRank& rank, Diagnostics& faults) {
  const Node* phases = map.map("phases");
  if (!phases) return;
  for (const Node& node : phases->children) {
    MapView phase(node, "phase '" + node.key + "'", faults, UnknownKeys::kept);
    rank.phases.push_back({node.key, bytes_of(phase, "allocated_bytes"),
                           bytes_of(phase, "reserved_bytes"), bytes_of(phase, "device_bytes")});
  }
}

OwnRank read_rank(const Node& node, int number, const std::string& path, Diagnostics& faults) {
  MapView map(node, "a rank of the run", faults, UnknownKeys::kept);
  OwnRank rank;
  rank.source = path;
  rank.rank = number;
  if (const auto given = map.integer("rank", {0, 65'535}))
    rank.rank = static_cast<int>(given->value);
  const auto read = [&](MapView& of) {
    const auto take = [](std::optional<std::int64_t>& into, std::optional<std::int64_t> found) {
      if (found) into = found;
    };
    take(rank.allocated, first_of(of, {"max_memory_allocated", "allocated_bytes.all.peak"}));
    take(rank.reserved, first_of(of, {"max_memory_reserved", "reserved_bytes.all.peak"}));
  };
  if (const Node* stats = map.map("memory_stats")) {
    MapView of(*stats, "'memory_stats'", faults, UnknownKeys::kept);
    read(of);
  }
  read(map);
  rank.device = bytes_of(map, "device_bytes");
  read_phases(map, rank, faults);
  if (const auto failure = map.string("failure")) rank.failure = failure->value;
  if (const Node* steps = map.list("step_seconds")) {
    for (const Node& step : steps->children) {
      if (const auto seconds = spec::as_real(step, "a step's seconds", {0, 1e9}, faults)) {
        rank.step_seconds.push_back(*seconds);
      }
    }
  }
  if (!rank.allocated && !rank.reserved && rank.failure.empty()) {
    faults.error(node.where,
                 "the run of rank " + std::to_string(rank.rank) + " says nothing of memory",
                 {"expected max_memory_allocated and max_memory_reserved, or the keys of "
                  "torch.cuda.memory_stats(), such as allocated_bytes.all.peak"});
  }
  return rank;
}

/// What the trial script says of its whole run; notes for every rank.
std::vector<std::string> read_trial(const Node& root, const std::string& option,
                                    Diagnostics& faults) {
  std::vector<std::string> notes;
  MapView map(root, "the run", faults, UnknownKeys::kept);
  const auto kind = map.string("kind");
  if (!kind || kind->value != "shardfit-trial") return notes;
  if (const auto version = map.integer("version"); version && version->value != 1) {
    faults.error(version->where, "the trial is of version " + std::to_string(version->value),
                 {"expected 1; run calibrate/trial/trial.py of this release"});
  }
  const auto ran = map.string("option");
  if (ran && !option.empty() && ran->value != option) {
    faults.error(ran->where, "this is a run of option " + shardfit::quoted(ran->value) +
                                 ", not of " + shardfit::quoted(option));
  }
  if (const auto stand_in = map.boolean("stand_in"); stand_in && stand_in->value) {
    notes.push_back("on a runtime that runs no kernels: no device bytes and no times");
  }
  return notes;
}

std::vector<OwnRank> read_json(const std::string& path, int rank, const std::string& option) {
  Diagnostics faults;
  const Node root = spec::read_file(path, faults);
  std::vector<std::string> notes;
  if (root.kind == spec::Kind::map) notes = read_trial(root, option, faults);
  const Node* list = root.kind == spec::Kind::list ? &root : nullptr;
  if (root.kind == spec::Kind::map) {
    if (const Node* ranks = root.child("ranks")) list = ranks;
  }
  std::vector<OwnRank> found;
  if (list && list->kind == spec::Kind::list) {
    if (list->children.empty()) faults.error(list->where, "the run is of no rank");
    for (const Node& node : list->children) found.push_back(read_rank(node, rank++, path, faults));
  } else {
    found.push_back(read_rank(root, rank, path, faults));
  }
  faults.throw_if_any();
  for (OwnRank& own : found) own.notes.insert(own.notes.end(), notes.begin(), notes.end());
  return found;
}

/// Pickles of protocol 2 and later begin with 0x80.
bool is_pickle(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return in.get() == 0x80;
}

}  // namespace

std::vector<OwnRank> read_own_run(const std::string& path, int rank, const std::string& option) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (is_pickle(path) || extension == ".pickle" || extension == ".pkl") {
    return read_snapshot(path, rank);
  }
  return read_json(path, rank, option);
}

}  // namespace shardfit::validate
