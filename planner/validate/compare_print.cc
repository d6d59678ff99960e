#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>

#include "validate/compare.h"

namespace shardfit::validate {
namespace {

std::string quoted_json(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string seconds_text(double seconds) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", seconds);
  return text;
}

/// A name in a column of `width`; a longer one has a line of its own.
std::string in_column(const std::string& name, std::size_t width) {
  if (name.size() > width) return name + "\n" + std::string(width, ' ');
  return name + std::string(width - name.size(), ' ');
}

constexpr std::size_t name_width = 30;

/// Steps, one a line.
void print_steps(const std::vector<CaseResult>& results, std::ostream& out) {
  bool first = true;
  for (const CaseResult& r : results) {
    for (const Row& row : r.rows) {
      if (row.counter != "step_seconds") continue;
      if (first) out << "\nstep_seconds                     measured  predicted\n";
      first = false;
      char line[160];
      std::snprintf(line, sizeof line, " %8.4f s %8.4f s %+7.1f%%\n", row.measured_seconds,
                    row.predicted_seconds, 100 * row.relative_error());
      out << in_column(row.id, name_width) << line;
    }
  }
}

/// Errors of one set of rows.
struct Figures {
  std::int64_t readings = 0, equal = 0, half = 0, one = 0, two = 0, four = 0;
  double worst = 0;

  void add(const Row& row) {
    const double error = std::fabs(row.relative_error());
    ++readings;
    equal += row.measured == row.predicted;
    half += error <= 0.005;
    one += error <= 0.01;
    two += error <= 0.02;
    four += error <= 0.04;
    if (error > std::fabs(worst)) worst = row.relative_error();
  }
};

std::string line(const std::string& name, const Figures& f) {
  const auto percent = [&](std::int64_t n) {
    return f.readings == 0 ? 0.0 : 100.0 * static_cast<double>(n) / static_cast<double>(f.readings);
  };
  char text[160];
  std::snprintf(text, sizeof text, " %6lld %6.1f%% %6.1f%% %6.1f%% %6.1f%% %+7.2f%%",
                static_cast<long long>(f.readings), percent(f.equal), percent(f.half),
                percent(f.one), percent(f.two), 100 * f.worst);
  return in_column(name, name_width) + text;
}

void print_set(const std::vector<CaseResult>& results, std::ostream& out, const char* title,
               std::string CaseResult::*name) {
  for (const char* counter : {"allocated_bytes", "reserved_bytes"}) {
    std::map<std::string, Figures> sets;
    Figures all;
    for (const CaseResult& r : results) {
      for (const Row& row : r.rows) {
        if (row.counter != counter) continue;
        sets[r.*name].add(row);
        all.add(row);
      }
    }
    if (all.readings == 0) continue;
    out << "\n" << counter << " by " << title << "\n";
    char head[160];
    std::snprintf(head, sizeof head, "%-30s %6s %7s %7s %7s %7s %8s\n", title, "read", "equal",
                  "0.5%", "1%", "2%", "worst");
    out << head;
    for (const auto& [key, figures] : sets) out << line(key, figures) << "\n";
    out << line("all", all) << "\n";
  }
}

}  // namespace

void print_json(const std::vector<CaseResult>& results, std::ostream& out) {
  for (const CaseResult& r : results) {
    if (!r.skipped.empty()) {
      out << "{\"id\": " << quoted_json(r.id) << ", \"group\": " << quoted_json(r.group)
          << ", \"skipped\": " << quoted_json(r.skipped) << "}\n";
    }
    for (const Row& row : r.rows) {
      char error[40];
      std::snprintf(error, sizeof error, "%.9g", row.relative_error());
      std::string measured = std::to_string(row.measured);
      std::string predicted = std::to_string(row.predicted);
      if (row.counter == "step_seconds") {
        measured = seconds_text(row.measured_seconds);
        predicted = seconds_text(row.predicted_seconds);
      }
      out << "{\"id\": " << quoted_json(r.id) << ", \"group\": " << quoted_json(r.group)
          << ", \"counter\": \"" << row.counter << "\", \"phase\": \"" << row.phase
          << "\", \"measured\": " << measured << ", \"predicted\": " << predicted
          << ", \"relative_error\": " << error << "}\n";
    }
  }
}

void print_table(const std::vector<CaseResult>& results, std::ostream& out) {
  std::int64_t skipped = 0;
  std::map<std::string, std::int64_t> reasons;
  for (const CaseResult& r : results) {
    if (r.skipped.empty()) continue;
    ++skipped;
    ++reasons[r.skipped];
  }
  out << results.size() << " cases, " << skipped << " skipped (a skipped case counts as missed)\n";
  for (const auto& [reason, count] : reasons) out << "  " << count << "  " << reason << "\n";
  print_set(results, out, "group", &CaseResult::group);
  print_set(results, out, "family", &CaseResult::family);
  print_steps(results, out);
  for (const CaseResult& r : results) {
    if (!r.skipped.empty() || (!r.ends_out_of_memory && r.outcome_right)) continue;
    out << (r.outcome_right ? "right outcome: " : "WRONG outcome: ") << r.id << ": "
        << r.predicted_outcome << "\n";
  }
}

}  // namespace shardfit::validate
