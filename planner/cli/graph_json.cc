#include "cli/graph_json.h"

#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <array>
#include <charconv>
#include <cstring>
#include <ostream>
#include <span>
#include <string_view>

namespace shardfit::cli {
namespace {

using graph::Layer;
using graph::ModelGraph;
using graph::Operator;
using graph::TensorEdge;
using graph::Work;

/// Text that is handed on in large pieces.
class Text {
 public:
  explicit Text(std::ostream& out) : out_(out) {}
  ~Text() { flush(); }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  Text& operator<<(std::string_view text) {
    if (text.size() > piece_.size() - size_) {
      flush();
      if (text.size() > piece_.size()) {
        out_.write(text.data(), static_cast<std::streamsize>(text.size()));
        return *this;
      }
    }
    std::memcpy(piece_.data() + size_, text.data(), text.size());
    size_ += text.size();
    return *this;
  }
  Text& operator<<(std::int64_t number) {
    constexpr std::size_t longest = 20;
    if (piece_.size() - size_ < longest) flush();
    char* const at = piece_.data() + size_;
    size_ += static_cast<std::size_t>(std::to_chars(at, at + longest, number).ptr - at);
    return *this;
  }

 private:
  void flush() {
    out_.write(piece_.data(), static_cast<std::streamsize>(size_));
    size_ = 0;
  }

  std::ostream& out_;
  std::array<char, std::size_t{1} << 16> piece_;
  std::size_t size_ = 0;
};

class GraphWriter {
 public:
  explicit GraphWriter(std::ostream& out) : text_(out) {}

  void write(const GraphDocument& document, const ModelGraph& graph) {
    text_ << "{\n  \"version\": 1,\n  \"model\": ";
    string(document.model);
    text_ << ",\n  \"family\": ";
    string(document.family);
    text_ << ",\n  \"micro_batch\": " << document.micro_batch;
    text_ << ",\n  \"sequence\": " << document.sequence;
    text_ << ",\n  \"precision\": ";
    string(document.precision);
    text_ << ",\n  \"layers\": ";
    list(graph.layers, "    ", "  ", [this](const Layer& l) { layer(l, "\n      ", "\n    }"); });
    text_ << ",\n  \"total\": ";
    layer(graph.total, "\n    ", "\n  }");
    text_ << ",\n  \"operators\": ";
    list(graph.operators, "    ", "  ", [&](const Operator& op) { one(graph, op); });
    text_ << "\n}";
  }

 private:
  /// Each on a line of its own; `inner` and `outer` indent them and the end.
  template <class List, class Write>
  void list(const List& all, std::string_view inner, std::string_view outer, const Write& write) {
    if (all.empty()) {
      text_ << "[]";
      return;
    }
    std::string_view before = "[\n";
    for (const auto& each : all) {
      text_ << before << inner;
      write(each);
      before = ",\n";
    }
    text_ << "\n" << outer << "]";
  }
  void string(std::string_view text) {
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < ' ' || c == '"' || c == '\\') return escaped(text);
    }
    text_ << "\"" << text << "\"";
  }
  void escaped(std::string_view text) {
    rapidjson::StringBuffer buffer;
    rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
    writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
    text_ << std::string_view(buffer.GetString(), buffer.GetSize());
  }
  /// A sum of whole numbers, exact up to 2^53.
  void whole(double number) {
    if (number < 9007199254740992.0) {
      text_ << static_cast<std::int64_t>(number);
      return;
    }
    rapidjson::StringBuffer buffer;
    rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
    writer.Double(number);
    text_ << std::string_view(buffer.GetString(), buffer.GetSize());
  }
  /// `line` begins a line.
  void work(const Work& forward, const Work& backward, std::string_view line) {
    text_ << "," << line << "\"forward_flops\": ";
    whole(forward.flops);
    text_ << "," << line << "\"forward_bytes\": ";
    whole(forward.bytes);
    text_ << "," << line << "\"backward_flops\": ";
    whole(backward.flops);
    text_ << "," << line << "\"backward_bytes\": ";
    whole(backward.bytes);
  }
  void layer(const Layer& l, std::string_view line, std::string_view end) {
    text_ << "{" << line << "\"name\": ";
    string(l.name);
    text_ << "," << line << "\"parameters\": " << l.parameters;
    text_ << "," << line << "\"parameter_bytes\": " << l.parameter_bytes;
    text_ << "," << line << "\"saved_bytes\": " << l.saved_bytes;
    text_ << "," << line << "\"weight_copy_bytes\": " << l.weight_copy_bytes;
    text_ << "," << line << "\"operators\": " << l.operators;
    work(l.forward, l.backward, line);
    text_ << end;
  }
  void one(const ModelGraph& graph, const Operator& op) {
    text_ << "{\n      \"kind\": ";
    string(op.kind);
    text_ << ",\n      \"module\": ";
    string(graph.modules[op.module]);
    text_ << ",\n      \"layer\": ";
    string(graph.layers[op.layer].name);
    text_ << ",\n      \"saved_bytes\": " << op.saved_bytes;
    work(op.forward, op.backward, "\n      ");
    const auto write = [&](std::uint32_t tensor) { edge(graph.tensors[tensor], tensor); };
    text_ << ",\n      \"inputs\": ";
    list(graph.inputs_of(op), "        ", "      ", write);
    text_ << ",\n      \"outputs\": ";
    list(graph.outputs_of(op), "        ", "      ", write);
    text_ << "\n    }";
  }
  void edge(const TensorEdge& tensor, std::uint32_t number) {
    text_ << "{\n          \"tensor\": " << std::int64_t{number};
    if (!tensor.name.empty()) {
      text_ << ",\n          \"parameter\": ";
      string(tensor.name);
    }
    text_ << ",\n          \"dtype\": \"" << dtype_name(tensor.dtype)
          << "\",\n          \"shape\": ";
    const std::span sizes(tensor.shape.size.data(), static_cast<std::size_t>(tensor.shape.rank));
    list(sizes, "            ", "          ", [this](std::int64_t size) { text_ << size; });
    text_ << "\n        }";
  }

  Text text_;
};

}  // namespace

void write_graph_json(const GraphDocument& document, const ModelGraph& graph, std::ostream& out) {
  GraphWriter(out).write(document, graph);
}

}  // namespace shardfit::cli
