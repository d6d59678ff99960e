#include "report/report.h"

#include <unistd.h>
#include <cmath>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/format.h"

namespace shardfit::report {
namespace {

/// "model.layers.12.mlp" as "model.layers.*.mlp".
std::string folded(const std::string& path) {
  std::string out;
  std::size_t from = 0;
  while (from <= path.size() && !path.empty()) {
    const std::size_t to = std::min(path.find('.', from), path.size());
    const std::string part = path.substr(from, to - from);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    if (!out.empty()) out += '.';
    out += number ? "*" : part;
    if (to == path.size()) break;
    from = to + 1;
  }
  return out;
}

bool says_utf8(const char* name) {
  const char* value = std::getenv(name);
  if (!value) return false;
  const std::string text = value;
  return text.find("UTF-8") != std::string::npos || text.find("utf8") != std::string::npos;
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value && *value;
}

/// One column of the picture: how full row `row` of `rows` is, in eighths.
int eighths(std::int64_t value, std::int64_t most, int row, int rows) {
  const double filled = most == 0 ? 0 : static_cast<double>(value) / static_cast<double>(most);
  const double part = filled * rows - row;
  return static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * 8));
}

/// Columns on a terminal: codes for colours take none, characters of several bytes one.
std::size_t width_of(const std::string& text) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033') {
      while (i < text.size() && text[i] != 'm') ++i;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U) {
      ++width;
    }
  }
  return width;
}

template <class E>
std::string word(std::span<const std::string> names, E value) {
  return names[static_cast<std::size_t>(value)];
}

/// Below the picture: a letter a column for its phase, and what the letters mean.
std::string phase_lines(const std::vector<std::string>& phases) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz";
  std::vector<std::string> names;
  std::string axis, legend;
  for (const std::string& phase : phases) {
    auto found = std::find(names.begin(), names.end(), phase);
    if (found == names.end()) {
      names.push_back(phase);
      found = names.end() - 1;
      const char letter = letters[(names.size() - 1) % letters.size()];
      legend += (legend.empty() ? "" : ", ") + (letter + (" " + phase));
    }
    axis += letters[static_cast<std::size_t>(found - names.begin()) % letters.size()];
  }
  return std::string(12, ' ') + axis + "\n  " + wrapped(legend, 4, 2);
}

}  // namespace

TableStyle style_of_terminal() {
  TableStyle style;
  const char* terminal = std::getenv("TERM");
  const bool dumb = !terminal || std::string(terminal) == "dumb";
  style.colour = isatty(STDOUT_FILENO) && !is_set("NO_COLOR") && !dumb;
  if (is_set("LC_ALL")) {
    style.unicode = says_utf8("LC_ALL");
  } else {
    style.unicode = says_utf8("LC_CTYPE") || (!is_set("LC_CTYPE") && says_utf8("LANG"));
  }
  return style;
}

std::string wrapped(const std::string& text, std::size_t indent, std::size_t from) {
  std::string out;
  std::size_t column = from;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::size_t width = width_of(text.substr(at, end - at));
    if (column > 0 && column + 1 + width > page_width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (at > 0) {
      out += ' ';
      ++column;
    }
    out.append(text, at, end - at);
    column += width;
    at = end + 1;
  }
  return out + "\n";
}

std::string right(const std::string& text, std::size_t columns) {
  return text.size() < columns ? std::string(columns - text.size(), ' ') + text : text;
}

std::string left(const std::string& text, std::size_t columns) {
  return text.size() < columns ? text + std::string(columns - text.size(), ' ') : text;
}

std::vector<Group> group_by_kind(const Program& program, const run::Census& census,
                                 Category category) {
  std::map<std::pair<std::string, std::string>, Group> groups;
  for (const run::LiveStorage& live : census.live) {
    const StorageInfo& storage = program.storages[live.storage];
    if (storage.category != category) continue;
    const std::string module = folded(program.modules[storage.module]);
    Group& group = groups[{storage.kind, module}];
    group.kind = storage.kind;
    group.module = module;
    ++group.count;
    group.bytes += live.block_bytes;
  }
  std::vector<Group> sorted;
  for (auto& [key, group] : groups) sorted.push_back(std::move(group));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Group& a, const Group& b) { return a.bytes > b.bytes; });
  return sorted;
}

std::string memory_picture(const search::Option& option, const TableStyle& style, int rows,
                           int columns) {
  static const char* const blocks[] = {" ",      "\u2581", "\u2582", "\u2583", "\u2584",
                                       "\u2585", "\u2586", "\u2587", "\u2588"};
  const search::Gpu& gpu = option.worst_gpu();
  const run::Curve curve =
      memory_curve(*gpu.program, gpu.judgement.unlimited, option.job.job.steps, columns);
  std::int64_t most = 0;
  for (const std::int64_t value : curve.allocated) most = std::max(most, value);
  std::string out;
  for (int row = rows - 1; row >= 0; --row) {
    std::string line;
    for (const std::int64_t value : curve.allocated) {
      const int fill = eighths(value, most, row, rows);
      line += style.unicode ? blocks[fill] : fill >= 4 ? "#" : " ";
    }
    const bool first = row == rows - 1;
    std::string label = first ? format_bytes(Bytes(most)) : row == 0 ? "0" : "";
    label.insert(0, label.size() < 9 ? 9 - label.size() : 0, ' ');
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += "  " + label + " |" + line + "\n";
  }
  return out + phase_lines(curve.phase);
}

std::vector<std::pair<const char*, std::int64_t>> degrees_of(spec::Parallel parallel,
                                                             const spec::Split& split) {
  using spec::Parallel;
  const bool splits_states = parallel == Parallel::zero2 || parallel == Parallel::zero3 ||
                             parallel == Parallel::fsdp1 || parallel == Parallel::fsdp2;
  return {{"dp", splits_states ? 1 : split.data},
          {"fsdp", splits_states ? split.data : 1},
          {"tp", split.tensor},
          {"pp", split.pipeline},
          {"cp", split.context},
          {"ep", split.expert}};
}

std::vector<JobWord> job_words(const search::Option& option) {
  const spec::JobSpec& job = option.spec->job;
  const spec::Recompute& recompute = job.recompute.value;
  constexpr const char* kinds[] = {"none", "full", "selective:"};
  std::vector<JobWord> words{
      {"model", job.model.value},
      {"task", word(spec::task_names(), job.task.value)},
      {"framework", option.job.profile.framework},
      {"framework_version", option.job.profile.version},
      {"precision", word(spec::precision_names(), job.precision.value)},
      {"optimizer", word(spec::optimizer_names(), option.job.optimizer)},
      {"micro_batch", std::to_string(option.job.batch.micro), true},
      {"accumulation", std::to_string(option.job.batch.accumulation), true},
      {"global_batch", std::to_string(option.job.batch.global), true},
      {"sequence", std::to_string(job.sequence.value), true},
      {"recompute", kinds[static_cast<int>(recompute.kind)] + recompute.policy},
      {"attention", word(spec::attention_names(), job.attention.value)},
  };
  if (job.samples) words.push_back({"samples", std::to_string(job.samples->value), true});
  if (job.experts) words.push_back({"experts", job.experts->value});
  if (job.allocator) words.push_back({"allocator", job.allocator->value});
  if (job.lora) {
    words.push_back({"lora_rank", std::to_string(job.lora->rank.value), true});
    words.push_back({"lora_alpha", format_exact(job.lora->alpha.value), true});
    words.push_back({"lora_dropout", format_exact(job.lora->dropout.value), true});
    words.push_back({"lora_dtype", word(spec::adapter_dtype_names(), job.lora->dtype.value)});
    if (option.job.job.lora) {
      words.push_back({"lora_targets", join(option.job.job.lora->targets, ",")});
    }
  }
  return words;
}

}  // namespace shardfit::report
