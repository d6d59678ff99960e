#pragma once
// What a writer may show of a plan. One writer a file: table.cc, json.cc, explain.cc.

#include <iosfwd>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "search/plan.h"

namespace shardfit::report {

/// A plan, which must outlive the report.
struct Report {
  const search::Plan& plan;
};

struct TableStyle {
  bool colour = false;   // escape codes for verdicts
  bool unicode = false;  // block characters in pictures; else '#'
  bool brief = false;    // the verdict and little else
};

/// What standard output wants: colour on a terminal unless NO_COLOR is set, blocks in a UTF-8
/// locale.
TableStyle style_of_terminal();

/// The table for people, at most 80 columns wide (names of models and layers aside).
void write_table(const Report& report, const TableStyle& style, std::ostream& out);

/// plan.json (docs/plan.schema.json). `explain` are terms whose derivation is added.
void write_json(const Report& report, std::span<const std::string> explain, std::ostream& out);

/// Terms that can be explained.
std::span<const std::string> explain_terms();

/// Faults for the terms that are none.
void check_terms(std::span<const std::string> terms, Diagnostics& faults);

/// The derivation of one term for every option, down to factors and sources. Throws InputError for
/// a term that is none.
std::string explain(const Report& report, const std::string& term);

/// Options side by side, a column each.
void write_comparison(const Report& report, std::ostream& out);

// For the writers.

inline constexpr std::size_t page_width = 80;  // columns
/// Lines of at most page_width columns, broken at spaces, later ones indented; ends in a newline.
/// `from`: columns already written on the first line.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t from = 0);

/// `text` at the right or left of so many columns.
std::string right(const std::string& text, std::size_t columns);
std::string left(const std::string& text, std::size_t columns);

/// One line a row: storages of one kind in modules that differ by their number only.
struct Group {
  std::string kind;    // operator
  std::string module;  // "model.layers.*.mlp"
  std::int64_t count = 0;
  std::int64_t bytes = 0;
};
/// Live storages of one category in groups, largest first.
std::vector<Group> group_by_kind(const Program& program, const run::Census& census,
                                 Category category);

/// Allocated bytes over the steady step as text, `rows` high and `columns` wide, with a letter
/// below each column that says which phase it lies in.
std::string memory_picture(const search::Option& option, const TableStyle& style, int rows,
                           int columns);

/// The streams of each distinct rank over the steady step, `columns` wide. The option must have a
/// timing.
std::string timeline_picture(const search::Option& option, const TableStyle& style, int columns);

/// What a search found, a sentence a line: its extent, the best of each objective, what more memory
/// would bring.
std::vector<std::string> search_lines(const search::SearchResult& result);

/// Degrees of a way to share a job, by their words: "dp", "fsdp", "tp", ...
std::vector<std::pair<const char*, std::int64_t>> degrees_of(spec::Parallel parallel,
                                                             const spec::Split& split);

/// The words of a job, by their keys with underscores; integers as digits.
struct JobWord {
  std::string key, value;
  bool number = false;
};
std::vector<JobWord> job_words(const search::Option& option);

}  // namespace shardfit::report
