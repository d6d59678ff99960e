#include "cli/compare_command.h"

#include <rapidjson/prettywriter.h>
#include <rapidjson/stringbuffer.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "base/diagnostic.h"
#include "base/format.h"
#include "cli/cli.h"
#include "validate/own_run.h"
#include "validate/planned.h"

namespace shardfit::cli {
namespace {

using Measured = std::optional<std::int64_t>;
using validate::OwnRank;
using validate::PlannedGpu;

/// One number of both.
struct Row {
  std::string name;
  std::int64_t predicted = 0;
  Measured measured;
  double tolerance = 0;  // 0: not judged
  double off() const {
    if (!measured) return 0;
    if (predicted == 0) return *measured == 0 ? 0 : HUGE_VAL;
    return static_cast<double>(*measured - predicted) / static_cast<double>(predicted);
  }
  bool right() const { return tolerance == 0 || !measured || std::fabs(off()) <= tolerance; }
};

struct RankComparison {
  const PlannedGpu* gpu = nullptr;
  OwnRank own;
  std::vector<Row> levels;
  std::vector<Row> phases;      // allocated, then reserved of each
  std::vector<Row> categories;  // requested bytes at the peak
  bool right() const {
    return own.failure.empty() &&
           std::all_of(levels.begin(), levels.end(), [](const Row& row) { return row.right(); });
  }
};

RankComparison compare(const PlannedGpu& gpu, OwnRank own) {
  RankComparison c;
  c.gpu = &gpu;
  c.levels = {{"allocated", gpu.allocated, own.allocated, validate::allocated_tolerance},
              {"reserved", gpu.reserved, own.reserved, validate::reserved_tolerance},
              {"device", gpu.device, own.device, validate::device_tolerance}};
  for (const validate::PlannedPhase& phase : gpu.phases) {
    const auto found =
        std::find_if(own.phases.begin(), own.phases.end(),
                     [&](const validate::OwnPhase& p) { return p.name == phase.name; });
    if (found == own.phases.end()) continue;
    c.phases.push_back({phase.name + " allocated", phase.allocated, found->allocated});
    c.phases.push_back({phase.name + " reserved", phase.reserved, found->reserved});
  }
  if (own.requested_by && gpu.requested_by) {
    for (int k = 0; k < category_count; ++k) {
      const auto at = static_cast<std::size_t>(k);
      c.categories.push_back({category_name(static_cast<Category>(k)), (*gpu.requested_by)[at],
                              (*own.requested_by)[at]});
    }
    c.categories.push_back({"unlabelled", 0, own.unlabelled});
  }
  c.own = std::move(own);
  return c;
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

void print_rows(const std::vector<Row>& rows, std::ostream& out) {
  for (const Row& row : rows) {
    out << "    " << padded(row.name, 36) << padded(format_bytes(Bytes(row.predicted)), 12);
    if (row.measured) {
      out << padded(format_bytes(Bytes(*row.measured)), 12);
      if (std::isfinite(row.off()) && row.predicted > 0) {
        out << (row.off() >= 0 ? "+" : "") << format_percent(row.off());
      }
      if (!row.right()) out << "  OFF";
    } else {
      out << "-";
    }
    out << "\n";
  }
}

void print(const RankComparison& c, const std::optional<double>& planned_step, std::ostream& out) {
  out << "  rank " << c.gpu->rank << ": " << c.own.source << "\n    " << padded("", 36)
      << padded("predicted", 12) << "measured\n";
  print_rows(c.levels, out);
  if (!c.phases.empty()) out << "\n";
  print_rows(c.phases, out);
  if (!c.categories.empty()) out << "\n    requested bytes at the peak\n";
  print_rows(c.categories, out);
  if (!c.own.step_seconds.empty()) {
    out << "    last step " << format_seconds(Seconds(c.own.step_seconds.back()));
    if (planned_step) out << ", predicted " << format_seconds(Seconds(*planned_step));
    out << "\n";
  }
  if (!c.own.failure.empty()) out << "    FAILED: " << c.own.failure << "\n";
  for (const std::string& note : c.own.notes) out << "    note: " << note << "\n";
}

using Writer = rapidjson::PrettyWriter<rapidjson::StringBuffer>;

void write_rows(Writer& json, const char* key, const std::vector<Row>& rows) {
  json.Key(key);
  json.StartArray();
  for (const Row& row : rows) {
    json.StartObject();
    json.Key("name");
    json.String(row.name.c_str());
    json.Key("predicted_bytes");
    json.Int64(row.predicted);
    json.Key("measured_bytes");
    if (row.measured) {
      json.Int64(*row.measured);
    } else {
      json.Null();
    }
    json.Key("right");
    json.Bool(row.right());
    json.EndObject();
  }
  json.EndArray();
}

std::string json_of(const std::vector<RankComparison>& ranks, const validate::PlannedOption& option,
                    bool right) {
  rapidjson::StringBuffer buffer;
  Writer json(buffer);
  json.SetIndent(' ', 2);
  json.StartObject();
  json.Key("option");
  json.String(option.name.c_str());
  json.Key("right");
  json.Bool(right);
  json.Key("predicted_step_seconds");
  if (option.step_seconds) {
    json.Double(*option.step_seconds);
  } else {
    json.Null();
  }
  json.Key("ranks");
  json.StartArray();
  for (const RankComparison& c : ranks) {
    json.StartObject();
    json.Key("rank");
    json.Int(c.gpu->rank);
    json.Key("source");
    json.String(c.own.source.c_str());
    json.Key("failure");
    json.String(c.own.failure.c_str());
    json.Key("notes");
    json.StartArray();
    for (const std::string& note : c.own.notes) json.String(note.c_str());
    json.EndArray();
    json.Key("step_seconds");
    json.StartArray();
    for (const double seconds : c.own.step_seconds) json.Double(seconds);
    json.EndArray();
    write_rows(json, "levels", c.levels);
    write_rows(json, "phases", c.phases);
    write_rows(json, "categories", c.categories);
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
  return std::string(buffer.GetString()) + "\n";
}

}  // namespace

int compare_command(const CompareOptions& options, std::ostream& out) {
  const validate::PlannedOption option =
      validate::read_planned_option(options.plan, options.option);
  std::vector<RankComparison> ranks;
  for (const std::string& file : options.files) {
    for (OwnRank& own : validate::read_own_run(file, static_cast<int>(ranks.size()), option.name)) {
      const auto gpu = std::find_if(option.gpus.begin(), option.gpus.end(),
                                    [&](const PlannedGpu& g) { return g.rank == own.rank; });
      if (gpu == option.gpus.end()) {
        throw InputError(whole_file(file), "it is of rank " + std::to_string(own.rank) +
                                               "; option " + quoted(option.name) + " has " +
                                               std::to_string(option.gpus.size()) + " ranks");
      }
      const auto before = std::find_if(ranks.begin(), ranks.end(), [&](const RankComparison& c) {
        return c.gpu->rank == own.rank;
      });
      if (before != ranks.end()) {
        throw InputError(
            whole_file(file),
            "it is of rank " + std::to_string(own.rank) + ", as is " + before->own.source,
            {"expected one run a rank"});
      }
      ranks.push_back(compare(*gpu, std::move(own)));
    }
  }
  const bool right =
      std::all_of(ranks.begin(), ranks.end(), [](const RankComparison& c) { return c.right(); });
  if (options.json) {
    out << json_of(ranks, option, right);
  } else {
    out << "option " << option.name << "\n";
    for (const RankComparison& c : ranks) print(c, option.step_seconds, out);
    if (ranks.size() < option.gpus.size()) {
      out << "of " << option.gpus.size() << " ranks, " << ranks.size() << " compared\n";
    }
    out << (right ? "within" : "OFF: beyond") << " 0.5 % of allocated, 2 % of reserved and device "
        << "bytes\n";
  }
  return right ? fits : does_not_fit;
}

}  // namespace shardfit::cli
