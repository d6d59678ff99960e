// The steady step of each GPU as text: a row a stream, filled where it is busy.

#include <algorithm>
#include <cmath>
#include <map>

#include "base/format.h"
#include "report/report.h"

namespace shardfit::report {
namespace {

/// Busy seconds of each column.
using Row = std::vector<double>;

void add(Row& row, double start, double end, double column) {
  const auto last = row.size() - 1;
  auto c = static_cast<std::size_t>(std::clamp(start / column, 0.0, static_cast<double>(last)));
  for (; c <= last && static_cast<double>(c) * column < end; ++c) {
    const double from = std::max(start, static_cast<double>(c) * column);
    const double to = std::min(end, static_cast<double>(c + 1) * column);
    row[c] += std::max(0.0, to - from);
  }
}

std::string drawn(const Row& row, double column, bool unicode) {
  static const char* const blocks[] = {" ", "\u2591", "\u2592", "\u2593", "\u2588"};
  static const char* const plain[] = {" ", ".", "-", "+", "#"};
  std::string text;
  for (const double busy : row) {
    const double share = std::clamp(busy / column, 0.0, 1.0);
    auto shade = static_cast<int>(std::lround(share * 4));
    if (shade == 0 && share > 0.01) shade = 1;
    text += unicode ? blocks[shade] : plain[shade];
  }
  return text;
}

}  // namespace

std::string timeline_picture(const search::Option& option, const TableStyle& style, int columns) {
  const std::vector<run::RankProgram> programs = search::rank_programs(option);
  run::TimeSettings settings;
  settings.events = true;
  const run::TimeResult result = run::run_time(programs, search::machine_for(option), settings);
  const bool alike = programs.size() == 1 && programs.front().ranks.size() > 1;
  using Line = std::pair<std::uint32_t, std::uint8_t>;  // of a program, a stream
  std::map<Line, std::string> names;
  for (const run::TimedEvent& event : result.events) {
    std::string& name = names[{event.program, event.stream}];
    if (!name.empty()) continue;
    const run::RankProgram& program = programs[event.program];
    if (!alike) {
      name = "rank " + std::to_string(program.ranks.front());
      if (program.ranks.size() > 1) name += "-" + std::to_string(program.ranks.back());
      name += " ";
    }
    name += program.program->streams[event.stream];
  }
  std::size_t width = 18;
  for (const auto& [line, name] : names) width = std::max(width, name.size());
  columns -= static_cast<int>(width) - 18;
  const double column = result.step_seconds / columns;
  std::map<Line, Row> rows;
  for (const run::TimedEvent& event : result.events) {
    Row& row = rows[{event.program, event.stream}];
    row.resize(static_cast<std::size_t>(columns), 0.0);
    add(row, event.start, event.end, column);
  }
  const bool short_of = option.timing && result.step_seconds < option.timing->step_seconds / 2;
  const std::string what = short_of ? "the passes that are run of a step, " : "the steady step of ";
  std::string out =
      "\n  " + wrapped(what + format_seconds(Seconds{result.step_seconds}) +
                           (alike ? " of every rank" : "") + ", by stream (shade: busy time)",
                       4, 2);
  for (const auto& [line, row] : rows) {
    const std::string& name = names[line];
    out += "  " + name + std::string(width - name.size(), ' ') + "|" +
           drawn(row, column, style.unicode) + "|\n";
  }
  return out;
}

}  // namespace shardfit::report
