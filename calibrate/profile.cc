#include "calibrate/profile.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <stdexcept>

#include "base/diagnostic.h"
#include "base/format.h"
#include "calibrate/fit.h"
#include "spec/data_directory.h"
#include "spec/reader.h"
#include "tensor/program.h"

namespace shardfit::calibrate {
namespace {

using spec::Kind;
using spec::Node;

Node scalar(Kind kind, std::string text) {
  Node node;
  node.kind = kind;
  node.text = std::move(text);
  return node;
}
Node text(std::string words) { return scalar(Kind::string, std::move(words)); }
Node number(double value) {
  std::string digits = format_exact(value);
  // A whole number is one in YAML too.
  return scalar(digits.find_first_of(".e") == std::string::npos ? Kind::integer : Kind::real,
                digits);
}
Node number(std::int64_t value) { return scalar(Kind::integer, std::to_string(value)); }
Node boolean(bool value) { return scalar(Kind::boolean, value ? "true" : "false"); }
Node quantity(double value, const char* unit) { return text(format_exact(value) + " " + unit); }

/// The child of a map, made where it is not there; `node` becomes a map.
Node& child(Node& node, const std::string& key) {
  node.kind = Kind::map;
  for (Node& found : node.children) {
    if (found.key == key) return found;
  }
  node.children.emplace_back();
  node.children.back().key = key;
  return node.children.back();
}
void set(Node& node, const std::string& key, Node value) {
  Node& place = child(node, key);
  value.key = key;
  place = std::move(value);
}

class Writer {
 public:
  Writer(const Findings& findings, const Node* base, const std::string& name, std::string date)
      : findings_(findings),
        facts_(findings.machine.devices[static_cast<std::size_t>(findings.device)]),
        date_(std::move(date)) {
    if (base) root_ = *base;
    root_.kind = Kind::map;
    source_ = "shardfit-calibrate on " + facts_.name;
    const std::string software = software_words(findings.machine);
    if (!software.empty()) source_ += ", " + software;
    source_ += ", " + date_;
    set(root_, "name", text(name));
    if (!base) {
      set(root_, "gpu", text(facts_.name));
      set(root_, "source", text(source_));
      set(root_, "date", text(date_));
    }
    set(root_, "compute_capability", text(facts_.compute_capability));
    set(root_, "confidence", text("measured"));
  }

  Node write() {
    memory();
    link();
    products();
    speed();
    lines();
    return std::move(root_);
  }

 private:
  const Reading* find(const std::string& benchmark, const std::string& name) const {
    return findings_.find(benchmark, name);
  }

  /// {value, source, date, method, samples, spread, driver, clocks} as device files have it.
  Node measured(Node value, const Reading& reading) const {
    Node node;
    set(node, "value", std::move(value));
    set(node, "source", text(source_));
    set(node, "date", text(date_));
    set(node, "method", text(reading.benchmark + ": " + reading.method));
    if (reading.value.samples > 0) set(node, "samples", number(reading.value.samples));
    if (reading.value.spread > 0) set(node, "spread", text(format_percent(reading.value.spread)));
    if (!findings_.machine.driver.empty()) set(node, "driver", text(findings_.machine.driver));
    if (!findings_.machine.clocks.empty()) set(node, "clocks", text(findings_.machine.clocks));
    return node;
  }

  Node& own() {
    Node& node = child(root_, "measured");
    if (node.children.empty()) set(node, "source", text(source_));
    return node;
  }

  void memory() {
    if (const Reading* r = find("context", "multiprocessors")) {
      set(root_, "multiprocessors",
          measured(number(static_cast<std::int64_t>(std::llround(r->value.median))), *r));
    }
    if (const Reading* r = find("context", "usable")) {
      set(child(root_, "memory"), "usable", measured(quantity(r->value.median, "B"), *r));
    }
    if (const Reading* r = find("context", "context of this process")) {
      set(own(), "context", quantity(r->value.median, "B"));
    }
    if (const Reading* r = find("blas-handle", "second handle and product")) {
      set(own(), "blas_handle", quantity(std::max(r->value.median, 0.0), "B"));
    }
    exchange();
    if (const Reading* r = find("device-copy", "copy bandwidth")) {
      Node& memory = child(root_, "memory");
      if (!memory.child("bandwidth")) {
        set(memory, "bandwidth", measured(quantity(r->value.median, "B/s"), *r));
      }
    }
  }

  /// What NCCL takes, of the communicator of all devices.
  void exchange() {
    const std::string of = "communicator of ";
    for (const Reading& made : findings_.readings) {
      if (made.benchmark != "communicator" || !made.name.starts_with(of)) continue;
      const auto first = [&](CollectiveKind kind) {
        const Reading* r = find("communicator", std::string("first ") + collective_name(kind));
        return r ? std::max(r->value.median, 0.0) : 0.0;
      };
      Node row;
      set(row, "ranks", number(std::int64_t{std::stoll(made.name.substr(of.size()))}));
      set(row, "communicator", quantity(std::max(made.value.median, 0.0), "B"));
      set(row, "rings",
          quantity(first(CollectiveKind::all_reduce) + first(CollectiveKind::all_gather) +
                       first(CollectiveKind::reduce_scatter),
                   "B"));
      set(row, "pairs",
          quantity(first(CollectiveKind::all_to_all) + first(CollectiveKind::send), "B"));
      Node rows;
      rows.kind = Kind::list;
      rows.children.push_back(std::move(row));
      set(own(), "exchange", std::move(rows));
      return;
    }
  }

  /// Peer access as it is; the slowest direction of it, where the file says nothing.
  void link() {
    const Reading* slowest = nullptr;
    for (const Reading& r : findings_.readings) {
      if (r.benchmark != "peer-copy" || !r.name.ends_with("peer access bandwidth")) continue;
      if (!slowest || r.value.median < slowest->value.median) slowest = &r;
    }
    const bool tried = std::any_of(findings_.readings.begin(), findings_.readings.end(),
                                   [](const Reading& r) { return r.benchmark == "peer-copy"; });
    if (!tried) return;
    Node& link = child(root_, "link");
    set(link, "peer_access", boolean(slowest != nullptr));
    if (slowest && !link.child("per_pair")) {
      set(link, "per_pair", measured(quantity(slowest->value.median, "B/s"), *slowest));
    }
  }

  /// The data sheet's rate of a dtype, 0 where there is none.
  double peak(const std::string& rate) const {
    const Node* rates = root_.child("peak_rates");
    const Node* row = rates ? rates->child(rate) : nullptr;
    const Node* value = row ? row->child("value") : nullptr;
    const auto parsed = value ? parse_flops_per_second(value->text) : Parsed<FlopsPerSecond>{};
    return parsed.value ? parsed.value->value() : 0;
  }

  void products() {
    std::map<std::string, std::vector<ProductTime>> by_rate;
    std::map<std::string, const Reading*> best;
    for (const Reading& r : findings_.readings) {
      const bool product = r.benchmark == "gemm" || r.benchmark == "gemm-fp8";
      if (!product || r.work <= 0 || r.value.median <= 0) continue;
      ProductTime time;
      const std::string rate = r.name.substr(0, r.name.find(' '));
      if (std::sscanf(r.name.c_str() + rate.size(), " %lfx%lfx%lf", &time.m, &time.n, &time.k) !=
          3) {
        continue;
      }
      time.seconds = r.value.median;
      by_rate[rate].push_back(time);
      const Reading*& top = best[rate];
      if (!top || r.work / r.value.median > top->work / top->value.median) top = &r;
    }
    Node rows, seen;
    rows.kind = seen.kind = Kind::list;
    for (const auto& [rate, times] : by_rate) {
      const Reading& top = *best[rate];
      if (peak(rate) <= 0) {  // no data sheet: the best that was seen stands for the peak
        set(child(root_, "peak_rates"), rate,
            measured(quantity(top.work / top.value.median, "FLOP/s"), top));
      }
      for (const Efficiency& row : fit_efficiency(times, peak(rate)))
        add_products(rows, rate, row, top);
      for (const ProductTime& time : times) {
        Node one;
        set(one, "rate", text(rate));
        set(one, "m", number(time.m));
        set(one, "n", number(time.n));
        set(one, "k", number(time.k));
        set(one, "time", quantity(time.seconds, "s"));
        seen.children.push_back(std::move(one));
      }
    }
    if (!rows.children.empty()) set(own(), "products", std::move(rows));
    if (!seen.children.empty()) set(own(), "times", std::move(seen));
  }

  void add_products(Node& rows, const std::string& rate, const Efficiency& row,
                    const Reading& top) {
    Node node;
    set(node, "rate", text(rate));
    set(node, "shape", text(shape_class_name(row.shape)));
    set(node, "share", number(row.median));
    set(node, "low", number(row.low));
    set(node, "high", number(row.high));
    set(node, "shapes", number(std::int64_t{row.shapes}));
    rows.children.push_back(std::move(node));
    if (rate == "bf16" && row.shape == ShapeClass::large && row.median <= 1) {
      set(root_, "achieved_matmul_share_bf16", measured(number(row.median), top));
    }
  }

  /// Shares of the data sheet's bandwidth, and the shortest kernel.
  void speed() {
    const Node* memory = root_.child("memory");
    const Node* bandwidth = memory ? memory->child("bandwidth") : nullptr;
    const Node* value = bandwidth ? bandwidth->child("value") : nullptr;
    const auto sheet = value ? parse_bytes_per_second(value->text) : Parsed<BytesPerSecond>{};
    const Reading* copy = find("device-copy", "copy bandwidth");
    const Reading* kernel = find("launch", "kernel in a graph");
    if (!(copy && sheet.value) && !kernel) return;
    Node& speed = child(root_, "speed");
    const Node* said = speed.child("source");
    set(speed, "source",
        text((said ? said->text + "; " : "") + "memory_share and kernel: " + source_));
    if (copy && sheet.value) {
      set(speed, "memory_share", number(copy->value.median / sheet.value->value()));
    }
    if (kernel && kernel->value.median > 0) {
      set(speed, "kernel", quantity(kernel->value.median, "s"));
    }
  }

  void lines() {
    if (const Reading* r = find("launch", "launches in a row")) {
      set(own(), "launch", quantity(r->value.median, "s"));
    }
    Node attention;
    attention.kind = Kind::list;
    for (const Reading& r : findings_.readings) {
      if (r.benchmark != "attention" || r.unit != Unit::seconds || r.value.median <= 0) continue;
      Node node;
      set(node, "name", text(r.name));
      set(node, "time", quantity(r.value.median, "s"));
      set(node, "method", text(r.method));
      attention.children.push_back(std::move(node));
    }
    if (!attention.children.empty()) set(own(), "attention", std::move(attention));
    Node rows;
    rows.kind = Kind::list;
    for (const Reading& r : findings_.readings) {
      constexpr std::string_view ending = " latency";
      if (r.value.stopped != "fit" || !r.name.ends_with(ending)) continue;
      const std::string kind = r.name.substr(0, r.name.size() - ending.size());
      const Reading* rate = find(r.benchmark, kind + " bandwidth");
      if (!rate) continue;
      Node node;
      set(node, "name", text(r.benchmark + ", " + kind));
      set(node, "latency", quantity(r.value.median, "s"));
      set(node, "bandwidth", quantity(rate->value.median, "B/s"));
      set(node, "residual", number(rate->value.spread));
      set(node, "points", number(rate->value.samples));
      rows.children.push_back(std::move(node));
    }
    if (!rows.children.empty()) set(own(), "lines", std::move(rows));
  }

  const Findings& findings_;
  const DeviceFacts& facts_;
  std::string date_, source_;
  Node root_;
};

std::string scalar_text(const Node& node) {
  if (node.kind == Kind::null) return "null";
  if (node.kind != Kind::string) return node.text;
  std::string quoted = "'";
  for (const char c : node.text) quoted += c == '\'' ? "''" : std::string(1, c);
  return quoted + "'";
}

bool is_container(const Node& node) {
  return (node.kind == Kind::map || node.kind == Kind::list) && !node.children.empty();
}

void write_yaml(const Node& node, std::size_t indent, std::string& out) {
  const std::string margin(indent, ' ');
  for (const Node& inner : node.children) {
    std::string line = margin + (node.kind == Kind::map ? inner.key + ":" : "-");
    if (!is_container(inner)) {
      if (inner.kind == Kind::map || inner.kind == Kind::list) {
        line += inner.kind == Kind::map ? " {}" : " []";
      } else {
        line += " " + scalar_text(inner);
      }
      out += line + "\n";
      continue;
    }
    out += line + "\n";
    write_yaml(inner, indent + 2, out);
  }
}

}  // namespace

Node device_profile(const Findings& findings, const Node* base, const std::string& name,
                    const std::string& date) {
  if (findings.machine.stand_in) {
    throw std::logic_error("what a stand-in says is no measurement and makes no profile");
  }
  return Writer(findings, base, name, date).write();
}

std::string yaml_text(const Node& node) {
  std::string out;
  write_yaml(node, 0, out);
  return out;
}

std::string catalogue_file(const DeviceFacts& facts) {
  const std::string name = catalogue_name(facts);
  return name.empty() ? "" : spec::data_directory() + "/devices/" + name + ".yaml";
}

void check_profile(const std::string& path, const std::string& name, const Machine& machine,
                   int device) {
  const std::filesystem::path file(path);
  std::error_code none;
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  const bool there = std::filesystem::exists(file, none);
  if (std::filesystem::is_directory(file, none) ||
      access(there ? path.c_str() : folder.c_str(), W_OK) != 0) {
    throw InputError(whole_file(path), "the file cannot be written");
  }
  const DeviceFacts& facts = machine.devices[static_cast<std::size_t>(device)];
  if (machine.stand_in || !name.empty() || !catalogue_file(facts).empty()) return;
  throw InputError(whole_file("command line"), "--profile: the catalogue has no device " +
                                                   facts.name +
                                                   "; give the profile a name with --name");
}

std::string catalogue_name(const DeviceFacts& facts) {
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  const spec::DeviceSpec* device = devices.find(facts.name, faults);
  faults.throw_if_any();
  if (!device || device->compute_capability != facts.compute_capability) return "";
  return device->name;
}

}  // namespace shardfit::calibrate
