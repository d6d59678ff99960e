// graph.txt of github.com/msr-fiddle/pipedream profiles. A node line is
//   ID -- description -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
//   parameter_size=bytes[ -- stage_id=n]
// and an edge line TAB source -- destination. Descriptions may hold " -- ", commas and brackets, so
// the fields are found from the end.

#include <unordered_map>

#include "partition/instances/graph_checks.h"
#include "partition/instances/instances.h"
#include "partition/instances/text_lines.h"

namespace shardfit::partition {
namespace {

/// One number, or the sum of a list "[a; b; c]".
double read_amount(const SourcePtr& source, Piece text, const char* name) {
  auto one = [&](Piece p) {
    p = trimmed(p);
    std::optional<double> value = parse_number(p.text);
    if (!value || *value < 0)
      fail_at(source, p,
              "found " + quoted(p.text) + " as " + name + ", expected a number of at least 0");
    return *value;
  };
  if (text.text.empty() || text.text.front() != '[') return one(text);
  if (text.text.back() != ']') fail_at(source, text, "a list does not end in ']'");
  double sum = 0;
  for (Piece item : split({text.text.substr(1, text.text.size() - 2), text.offset + 1}, ";"))
    sum += one(item);
  return sum;
}

void read_fields(const SourcePtr& source, Piece text, ProfileInstance::Node* node) {
  static constexpr const char* names[] = {"forward_compute_time", "backward_compute_time",
                                          "activation_size", "parameter_size"};
  double* values[] = {&node->forward_ms, &node->backward_ms, &node->activation_bytes,
                      &node->parameter_bytes};
  std::vector<Piece> fields = split(text, ", ");
  if (fields.size() != 4)
    fail_at(source, text, "found " + std::to_string(fields.size()) + " fields, expected 4",
            {"expected forward_compute_time=..., backward_compute_time=..., activation_size=..., "
             "parameter_size=..."});
  for (int i = 0; i < 4; ++i) {
    Piece f = trimmed(fields[i]);
    std::string key = std::string(names[i]) + "=";
    if (f.text.substr(0, key.size()) != key)
      fail_at(source, f, "found " + quoted(f.text) + ", expected " + names[i] + "=...");
    f.text.remove_prefix(key.size());
    f.offset += key.size();
    *values[i] = read_amount(source, f, names[i]);
  }
}

ProfileInstance::Node read_node(const SourcePtr& source, Piece line) {
  std::vector<Piece> parts = split(line, " -- ");
  if (parts.size() < 3)
    fail_at(source, line, "found a line that is neither a node nor an edge",
            {"expected ID -- description -- fields, or TAB source -- destination"});
  ProfileInstance::Node node;
  Piece last = trimmed(parts.back());
  constexpr std::string_view stage = "stage_id=";
  if (last.text.substr(0, stage.size()) == stage) {
    std::optional<std::int64_t> n = parse_whole(last.text.substr(stage.size()));
    if (!n || *n < 0 || *n > 4096)
      fail_at(source, last, "found " + quoted(last.text) + ", expected stage_id=a whole number");
    node.stage = static_cast<int>(*n);
    parts.pop_back();
    if (parts.size() < 3) fail_at(source, line, "a node has no fields");
  }
  Piece id = trimmed(parts.front());
  if (id.text.empty()) fail_at(source, line, "a node has no id");
  node.id = std::string(id.text);
  std::size_t begin = parts[1].offset - line.offset;
  std::size_t end = parts[parts.size() - 1].offset - line.offset - 4;
  node.description = std::string(line.text.substr(begin, end - begin));
  read_fields(source, parts.back(), &node);
  return node;
}

}  // namespace

ProfileInstance without_inputs(const ProfileInstance& profile) {
  const int n = static_cast<int>(profile.nodes.size());
  std::vector<char> has_in(n, 0), has_out(n, 0), drop(n, 0);
  for (const ProfileInstance::Edge& e : profile.edges)
    has_out[e.source] = has_in[e.destination] = 1;
  for (int v = 0; v < n; ++v) {
    const std::string& text = profile.nodes[v].description;
    drop[v] = (!has_in[v] && text.rfind("Input", 0) == 0) ||
              (!has_out[v] && text.rfind("__getitem__", 0) == 0);
  }
  ProfileInstance out;
  std::vector<int> number(n, -1);
  for (int v = 0; v < n; ++v) {
    if (drop[v]) continue;
    number[v] = static_cast<int>(out.nodes.size());
    out.nodes.push_back(profile.nodes[v]);
  }
  for (const ProfileInstance::Edge& e : profile.edges)
    if (!drop[e.source] && !drop[e.destination])
      out.edges.push_back({number[e.source], number[e.destination]});
  return out;
}

ProfileInstance read_profile(const SourcePtr& source) {
  ProfileInstance out;
  std::unordered_map<std::string_view, int> index;
  std::vector<Piece> node_lines, edge_lines;
  for (Piece line : lines_of(source->text)) {
    if (trimmed(line).text.empty()) continue;
    (line.text.front() == '\t' ? edge_lines : node_lines).push_back(line);
  }
  if (node_lines.empty()) fail_at(source, {source->text.substr(0, 0), 0}, "the graph has no nodes");
  for (Piece line : node_lines) {
    out.nodes.push_back(read_node(source, line));
    Piece id = trimmed(split(line, " -- ").front());
    if (!index.emplace(id.text, static_cast<int>(index.size())).second)
      fail_at(source, id, "node " + quoted(id.text) + " is given twice");
  }
  std::vector<std::pair<int, int>> arcs;
  for (Piece line : edge_lines) {
    std::vector<Piece> ends = split(line, " -- ");
    if (ends.size() != 2) fail_at(source, line, "found an edge line without source -- destination");
    int at[2];
    for (int i = 0; i < 2; ++i) {
      Piece id = trimmed(ends[i]);
      auto it = index.find(id.text);
      if (it == index.end()) fail_at(source, id, quoted(id.text) + " names no node");
      at[i] = it->second;
    }
    if (at[0] == at[1]) fail_at(source, line, "an edge joins a node to itself");
    out.edges.push_back({at[0], at[1]});
    arcs.emplace_back(at[0], at[1]);
  }
  int on_cycle = find_cycle(static_cast<int>(out.nodes.size()), arcs);
  if (on_cycle >= 0)
    fail_at(source, node_lines[on_cycle], "the graph has a cycle through this node");
  return out;
}

}  // namespace shardfit::partition
