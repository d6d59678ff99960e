#include "cli/graph_command.h"

#include <rapidjson/ostreamwrapper.h>
#include <rapidjson/prettywriter.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <ostream>

#include "base/format.h"
#include "base/units.h"
#include "cli/graph_json.h"
#include "program/training.h"
#include "spec/job_spec.h"
#include "spec/model_spec.h"

namespace shardfit::cli {
namespace {

using graph::Layer;
using graph::LayerGroup;
using graph::ModelGraph;

constexpr std::size_t screen_width = 80;
constexpr std::int64_t usual_sequence = 2048;

/// One of `words`; the first where nothing is given.
std::string word_of(const std::optional<spec::Node>& given, std::span<const std::string> words,
                    const char* what, Diagnostics& faults) {
  if (!given) return words.front();
  if (std::find(words.begin(), words.end(), given->text) != words.end()) return given->text;
  faults.error(given->where, std::string("unknown ") + what + " " + quoted(given->text),
               suggest(given->text, {words.begin(), words.end()}));
  return words.front();
}

/// The family's first head, or the one asked for.
std::string head_of(const std::optional<spec::Node>& asked, const spec::FamilySpec& family,
                    Diagnostics& faults) {
  std::vector<std::string> heads;
  for (const auto& [name, type] : family.heads) heads.push_back(name);
  if (heads.empty()) return "";
  return word_of(asked, heads, "head of this family", faults);
}

program::TrainingJob job_of(const GraphOptions& options, const program::Lowering& lowering) {
  Diagnostics faults;
  program::TrainingJob job;
  job.optimizer = "sgd";
  const auto whole = [&](const std::optional<spec::Node>& node, const char* what,
                         std::int64_t fallback) {
    if (!node) return fallback;
    return spec::as_integer(*node, what, {1, std::int64_t{1} << 40}, faults).value_or(fallback);
  };
  job.micro_batch = whole(options.micro_batch, "micro-batch", 1);
  job.head = head_of(options.head, lowering.family(), faults);
  const auto longest = lowering.longest_sequence();
  job.sequence = whole(options.sequence, "sequence",
                       std::min(usual_sequence, longest.value_or(usual_sequence)));
  if (longest && job.sequence > *longest) {
    faults.error(options.sequence->where, "a sequence of " + format_count(job.sequence) +
                                              " tokens does not run: the model has " +
                                              format_count(*longest) + " learned positions");
  }
  const std::string precision =
      word_of(options.precision, spec::precision_names(), "precision", faults);
  const bool mixed = precision.ends_with("-mixed");
  job.parameters = precision == "bf16" ? DType::bf16 : DType::f32;
  if (mixed) job.autocast = precision.starts_with("fp16") ? DType::f16 : DType::bf16;
  static const std::vector<std::string> attentions = {"auto", "eager"};
  if (word_of(options.attention, attentions, "attention", faults) == "eager") {
    job.attention = "eager";
  }
  faults.throw_if_any();
  return job;
}

std::string precision_text(const program::TrainingJob& job) {
  if (!job.autocast) return std::string(dtype_name(job.parameters)) + " throughout";
  return std::string(dtype_name(job.parameters)) + " parameters under " +
         dtype_name(*job.autocast) + " autocast";
}

std::string flops_text(double flops) {
  if (flops == 0) return "0";
  std::string text = format_flops(Flops(flops));
  const std::size_t unit = text.find("FLOP");
  return unit == std::string::npos ? text : text.substr(0, unit);
}

/// Rows of a name and numbers, kept as one text: a graph may have 10^5 of them.
class Table {
 public:
  explicit Table(std::size_t columns) : widths_(columns, 0) {}

  /// The name of the next row; a cell for each column must follow.
  void row(std::string_view name) {
    put(name);
    longest_ = std::max(longest_, name.size());
    column_ = 0;
  }
  void cell(std::string_view text) {
    put(text);
    std::size_t& width = widths_[column_++];
    width = std::max(width, text.size());
  }
  void count(std::int64_t number) { cell(format_count(number)); }

  void print(std::ostream& out) const {
    std::size_t numbers = 0;
    for (const std::size_t width : widths_) numbers += width + 1;
    const std::size_t room = numbers < screen_width ? screen_width - numbers : 0;
    const std::size_t name_width = std::min(longest_, room);
    std::string lines;
    const char* next = text_.data();
    const auto take = [&next](std::uint32_t length) {
      const std::string_view cell(next, length);
      next += length;
      return cell;
    };
    for (std::size_t at = 0; at < lengths_.size();) {
      print_name(take(lengths_[at++]), name_width, lines);
      for (const std::size_t width : widths_) {
        const std::string_view cell = take(lengths_[at++]);
        lines.append(width - cell.size() + 1, ' ').append(cell);
      }
      lines += '\n';
      if (lines.size() < piece && at < lengths_.size()) continue;
      out.write(lines.data(), static_cast<std::streamsize>(lines.size()));
      lines.clear();
    }
  }

 private:
  static constexpr std::size_t piece = std::size_t{1} << 16;

  void put(std::string_view cell) {
    text_ += cell;
    lengths_.push_back(static_cast<std::uint32_t>(cell.size()));
  }
  /// A name that leaves no room for its numbers on one line puts them on the next.
  static void print_name(std::string_view name, std::size_t width, std::string& lines) {
    lines += name;
    if (name.size() > width) lines += '\n';
    lines.append(name.size() > width ? width : width - name.size(), ' ');
  }

  std::vector<std::size_t> widths_;     // of the cells
  std::size_t longest_ = 0;             // name
  std::size_t column_ = 0;              // of the next cell
  std::string text_;                    // names and cells, row by row
  std::vector<std::uint32_t> lengths_;  // of each in the text
};

/// What a row shows of a layer, and its cells.
struct LayerRow {
  std::int64_t parameters = -1, parameter_bytes = 0, saved_bytes = 0;
  double flops = 0;
  std::int64_t operators = 0;
  std::array<std::string, 5> cells;

  bool shows(const Layer& layer) const {
    return parameters == layer.parameters && parameter_bytes == layer.parameter_bytes &&
           saved_bytes == layer.saved_bytes && flops == layer.forward.flops &&
           operators == layer.operators;
  }
};

/// Rows of layers. Many have the numbers of one not long before, whose cells are taken again.
class LayerRows {
 public:
  explicit LayerRows(Table& table) : table_(table) {}

  void add(std::string_view name, const Layer& layer) {
    const auto mixed = static_cast<std::uint64_t>(layer.parameters ^ layer.saved_bytes << 7 ^
                                                  layer.operators << 40);
    LayerRow& row = kept_[mixed * 0x9E3779B97F4A7C15 >> 58];
    if (!row.shows(layer)) {
      row = {layer.parameters,
             layer.parameter_bytes,
             layer.saved_bytes,
             layer.forward.flops,
             layer.operators,
             {format_count(layer.parameters), format_count(layer.parameter_bytes),
              format_count(layer.saved_bytes), flops_text(layer.forward.flops),
              format_count(layer.operators)}};
    }
    table_.row(name);
    for (const std::string& cell : row.cells) table_.cell(cell);
  }

 private:
  Table& table_;
  std::array<LayerRow, 64> kept_;
};

/// As published, some buffers too. A person's graph has none of those, and one network only.
std::int64_t parameters_of(const ModelGraph& graph, const program::Lowering& lowering) {
  return lowering.model().graph ? graph.total.parameters : lowering.parameter_count();
}

void print_table(const ModelGraph& graph, const program::Lowering& lowering,
                 const program::TrainingJob& job, std::ostream& out) {
  const spec::ModelSpec& model = lowering.model();
  const std::int64_t count = parameters_of(graph, lowering);
  out << model.name << ", family " << lowering.family().name << ": " << format_count(count)
      << " parameters"
      << (count == graph.total.parameters
              ? ""
              : ", " + format_count(count - graph.total.parameters) + " of them not trained")
      << "\n"
      << "micro-batch " << format_count(job.micro_batch) << ", sequence "
      << format_count(job.sequence) << ", " << precision_text(job) << "\n\n";
  Table table(5);
  table.row("layer");
  for (const char* title : {"parameters", "their bytes", "saved bytes", "flops", "operators"}) {
    table.cell(title);
  }
  LayerRows rows(table);
  bool repeated = false;
  for (const LayerGroup& group : graph::equal_layers(graph)) {
    const Layer& layer = graph.layers[group.first];
    if (group.count == 1 && !layer.name.empty()) {
      rows.add(layer.name, layer);
      continue;
    }
    std::string name = graph::group_name(graph, group);
    if (group.count > 1) {
      name += " x " + std::to_string(group.count);
      repeated = true;
    }
    rows.add(name, layer);
  }
  rows.add("total", graph.total);
  table.print(out);
  // A network with a batch of its own need not read tokens.
  const bool reads_tokens = !lowering.family().own_batch && !model.graph;
  const double parts =
      static_cast<double>(job.micro_batch) * (reads_tokens ? static_cast<double>(job.sequence) : 1);
  out << "\n";
  if (repeated)
    out << "A row 'x n' is n equal layers with the numbers of one; the total has all.\n";
  out << "Saved for backward: " << format_bytes(Bytes(graph.total.saved_bytes)) << ", about "
      << format_count(std::llround(static_cast<double>(graph.total.activation_bytes()) / parts))
      << " bytes a " << (reads_tokens ? "token" : "sample");
  if (graph.total.weight_copy_bytes > 0) {
    out << "\nand " << format_bytes(Bytes(graph.total.weight_copy_bytes)) << " of weight copies";
  }
  out << ".\nFlops of matrix products and attention: forward "
      << format_flops(Flops(graph.total.forward.flops)) << ", backward "
      << format_flops(Flops(graph.total.backward.flops)) << ".\n";
}

/// A network of which the family knows the parameters alone.
bool only_counted(const program::Lowering& lowering) {
  const auto& heads = lowering.family().heads;
  return heads.size() == 1 && heads.front().first == "parameters";
}

/// The parameters of such a network by module of the first level.
void print_count(const program::Lowering& lowering, bool json, std::ostream& out) {
  std::vector<std::pair<std::string, std::int64_t>> parts;
  for (const auto& parameter : lowering.parameters()) {
    const std::string part = parameter.path.substr(0, parameter.path.find('.'));
    if (parts.empty() || parts.back().first != part) parts.emplace_back(part, 0);
    parts.back().second = checked_add(parts.back().second, parameter.shape.count());
  }
  if (json) {
    rapidjson::OStreamWrapper stream(out);
    rapidjson::PrettyWriter<rapidjson::OStreamWrapper> writer(stream);
    writer.SetIndent(' ', 2);
    writer.StartObject();
    writer.Key("version");
    writer.Int(1);
    writer.Key("model");
    writer.String(lowering.model().name.c_str());
    writer.Key("family");
    writer.String(lowering.family().name.c_str());
    writer.Key("parameters");
    writer.Int64(lowering.parameter_count());
    writer.Key("memory_is_modelled");
    writer.Bool(false);
    writer.EndObject();
    out << "\n";
    return;
  }
  out << lowering.model().name << ", family " << lowering.family().name << ": "
      << format_count(lowering.parameter_count()) << " parameters\n\n";
  Table table(1);
  table.row("module");
  table.cell("parameters");
  for (const auto& [part, count] : parts) {
    table.row(part);
    table.count(count);
  }
  table.print(out);
  out << "\nThe memory of this network is not modelled.\n";
}

void print_dot(const ModelGraph& graph, const std::string& path, std::ostream& out) {
  if (path == "-") return graph::write_dot(graph, out);
  std::ofstream file(path);
  graph::write_dot(graph, file);
  file.flush();
  if (!file) throw InputError(whole_file(path), "cannot be written");
}

}  // namespace

int graph_command(const GraphOptions& options, std::ostream& out, std::ostream&) {
  if (options.kinds) {
    if (options.json) {
      throw InputError(whole_file("command line"), "--kinds is text alone, it has no --json",
                       {"leave one of them out"});
    }
    print_kinds(out);
    return 0;
  }
  if (options.model.empty()) {
    throw InputError(whole_file("command line"), "no model is given",
                     {"give a config.json or the name of a model: shardfit graph MODEL"});
  }
  const program::Lowering lowering(spec::read_model(options.model), "plain-pytorch",
                                   options.implementations);
  if (only_counted(lowering)) {
    print_count(lowering, options.json, out);
    return 0;
  }
  const program::TrainingJob job = job_of(options, lowering);
  const ModelGraph graph = lowering.graph(
      job, options.json || options.dot ? graph::Detail::operators : graph::Detail::layers);
  if (options.dot) print_dot(graph, *options.dot, out);
  if (options.json) {
    write_graph_json({lowering.model().name, lowering.family().name, job.micro_batch, job.sequence,
                      precision_text(job)},
                     graph, out);
    out << "\n";
  } else if (!options.dot || *options.dot != "-") {
    print_table(graph, lowering, job, out);
  }
  return 0;
}

}  // namespace shardfit::cli
