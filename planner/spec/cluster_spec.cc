#include "spec/cluster_spec.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>

#include "base/format.h"
#include "spec/reader.h"

namespace shardfit::spec {
namespace {

const std::array<std::string, 3> confidence_names{"measured", "assumed", "unknown"};
const std::array<std::string, 7> rate_names{"fp4", "fp8", "bf16", "fp16", "tf32", "fp32", "int8"};

/// Letters and digits in lower case: one spelling for "H100 SXM", "h100-sxm" and "H100_SXM".
std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '-' || c == '_' || c == ' ') continue;
    out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

/// Reads the numbers of one device file, which all have the same shape.
class DeviceReader {
 public:
  DeviceReader(std::string source, std::string date, Diagnostics& faults)
      : source_(std::move(source)), date_(std::move(date)), faults_(faults) {}

  /// The number under `key`: {value, source, date, note, method, samples, spread, driver}.
  template <class T, class Convert>
  std::optional<Sourced<T>> number(MapView& parent, const std::string& key, Convert convert,
                                   std::vector<Bytes>* seen = nullptr) {
    const Node* node = parent.map(key);
    if (!node) return {};
    MapView map(*node, shardfit::quoted(key) + " of " + parent.what(), faults_);
    Sourced<T> number;
    number.where = node->where;
    bool found = false;
    if (const Node* value = map.require("value")) {
      const auto converted = convert(*value, "'value' of " + map.what(), faults_);
      found = converted.has_value();
      number.value = converted.value_or(T{});
    }
    number.source = text(map, "source", source_);
    number.date = text(map, "date", number.source == source_ ? date_ : "");
    number.note = text(map, "note", "");
    // What a calibration says of its measurement; shown by --explain through the note and source.
    for (const char* how : {"method", "spread", "driver", "clocks"}) map.string(how);
    map.integer("samples", {1});
    if (seen) read_seen(map, *seen);
    map.finish();
    if (!found) return {};
    return number;
  }

  std::string text(MapView& map, const char* key, std::string fallback) {
    auto found = map.string(key);
    return found ? std::move(found->value) : std::move(fallback);
  }

 private:
  void read_seen(MapView& map, std::vector<Bytes>& seen) {
    const Node* list = map.list("seen");
    if (!list) return;
    for (const Node& node : list->children) {
      const auto bytes = as_bytes(node, "an element of 'seen' of " + map.what(), faults_);
      if (bytes) seen.push_back(*bytes);
    }
  }

  std::string source_;
  std::string date_;
  Diagnostics& faults_;
};

std::optional<double> as_share(const Node& node, std::string_view what, Diagnostics& faults) {
  return as_real(node, what, {0, 1}, faults);
}

std::optional<std::int64_t> as_count(const Node& node, std::string_view what, Diagnostics& faults) {
  return as_integer(node, what, {1, 100'000}, faults);
}

void read_memory(MapView& device, DeviceReader& reader, DeviceSpec& spec, Diagnostics& faults) {
  const Node* node = device.require_map("memory");
  if (!node) return;
  MapView map(*node, "'memory' of " + device.what(), faults);
  spec.marketed = reader.number<Bytes>(map, "marketed", as_bytes);
  spec.total = reader.number<Bytes>(map, "total", as_bytes);
  spec.usable = reader.number<Bytes>(map, "usable", as_bytes, &spec.usable_seen);
  spec.bandwidth = reader.number<BytesPerSecond>(map, "bandwidth", as_bytes_per_second);
  map.finish();
  if (spec.usable && spec.total && spec.usable->value > spec.total->value) {
    faults.error(spec.usable->where,
                 "the runtime reports more memory (" + format_bytes_exact(spec.usable->value) +
                     ") than the driver (" + format_bytes_exact(spec.total->value) + ")");
  }
}

void read_rates(MapView& device, DeviceReader& reader, DeviceSpec& spec, Diagnostics& faults) {
  if (const Node* node = device.map("peak_rates")) {
    MapView map(*node, "'peak_rates' of " + device.what(), faults);
    for (const std::string& name : rate_names) {
      auto rate = reader.number<FlopsPerSecond>(map, name, as_flops_per_second);
      if (rate) spec.peak_rates.emplace(name, *std::move(rate));
    }
    map.finish();
  }
  spec.achieved_matmul_share_bf16 =
      reader.number<double>(device, "achieved_matmul_share_bf16", as_share);
  if (const Node* node = device.map("link")) {
    MapView map(*node, "'link' of " + device.what(), faults);
    spec.link.type = reader.text(map, "type", "");
    spec.link.per_gpu = reader.number<BytesPerSecond>(map, "per_gpu", as_bytes_per_second);
    spec.link.per_pair = reader.number<BytesPerSecond>(map, "per_pair", as_bytes_per_second);
    if (const auto peer = map.boolean("peer_access")) spec.link.peer_access = peer->value;
    map.finish();
  }
}

void read_surroundings(MapView& device, DeviceReader& reader, DeviceSpec& spec,
                       Diagnostics& faults) {
  spec.host_link = reader.text(device, "host_link", "");
  if (const auto watts = device.integer("power_watts", {1, 100'000})) {
    spec.power_watts = watts->value;
  }
  if (const Node* node = device.map("software")) {
    MapView map(*node, "'software' of " + device.what(), faults);
    spec.least_runtime = reader.text(map, "runtime", "");
    spec.least_pytorch = reader.text(map, "pytorch", "");
    map.finish();
  }
  if (const Node* node = device.map("price_seen")) {
    MapView map(*node, "'price_seen' of " + device.what(), faults);
    PriceSeen price;
    if (const auto low = map.real("low_usd_per_hour", {0, 1e6}))
      price.low_usd_per_hour = low->value;
    if (const auto high = map.real("high_usd_per_hour", {0, 1e6})) {
      price.high_usd_per_hour = high->value;
    }
    price.source = map.require_string("source").value;
    map.string("note");
    map.finish();
    spec.price_seen = price;
  }
  device.string("reported_utilisation");
  spec.caveats = reader.text(device, "caveats", "");
}

}  // namespace

DeviceSpec read_device(const Node& root, Diagnostics& faults) {
  DeviceSpec spec;
  spec.where = root.where;
  const Node* name = root.kind == Kind::map ? root.child("name") : nullptr;
  MapView map(root, name ? "device " + shardfit::quoted(name->text) : "the device", faults);
  spec.name = map.require_string("name").value;
  const auto gpu = map.string("gpu");
  spec.gpu = gpu ? gpu->value : spec.name;
  if (const Node* aliases = map.list("aliases")) {
    for (const Node& alias : aliases->children) {
      if (auto text = as_string(alias, "an alias of " + map.what(), faults)) {
        spec.aliases.push_back(*std::move(text));
      }
    }
  }
  spec.compute_capability = map.require_string("compute_capability").value;
  if (const auto confidence = map.choice("confidence", confidence_names)) {
    spec.confidence = static_cast<Confidence>(confidence->value);
  }
  const auto source = map.string("source");
  const auto date = map.string("date");
  DeviceReader reader(source ? source->value : "", date ? date->value : "", faults);
  spec.multiprocessors = reader.number<std::int64_t>(map, "multiprocessors", as_count);
  read_memory(map, reader, spec, faults);
  read_rates(map, reader, spec, faults);
  read_surroundings(map, reader, spec, faults);
  if (const Node* node = map.map("measured")) spec.measured = read_measured(*node, faults);
  if (const Node* speed = map.map("speed")) spec.speed = read_speed(*speed, faults);
  map.finish();
  return spec;
}

DeviceCatalog::DeviceCatalog(std::string folder) : folder_(std::move(folder)) {
  std::error_code missing;  // an absent folder holds no devices
  for (const auto& entry : std::filesystem::directory_iterator(folder_, missing)) {
    if (entry.path().extension() == ".yaml") {
      files_.emplace(entry.path().stem().string(), entry.path().string());
    }
  }
}

void DeviceCatalog::add_profile(const std::string& path, Diagnostics& faults) {
  DeviceSpec spec = read_device(read_file(path, faults), faults);
  inherit_speed(spec, faults);
  std::string name = spec.name;
  if (name.empty()) return;  // its fault is said
  files_.erase(name);
  loaded_.insert_or_assign(std::move(name), std::move(spec));
}

const DeviceSpec* DeviceCatalog::load(const std::string& name, Diagnostics& faults) {
  if (const auto found = loaded_.find(name); found != loaded_.end()) return &found->second;
  const auto file = files_.find(name);
  if (file == files_.end()) return nullptr;
  DeviceSpec spec = read_device(*read_data(file->second, faults), faults);
  if (spec.name != name) {
    faults.error(spec.where, "the file of device " + shardfit::quoted(spec.name) + " is called " +
                                 shardfit::quoted(name + ".yaml"));
  }
  inherit_speed(spec, faults);
  return &loaded_.insert_or_assign(name, std::move(spec)).first->second;
}

/// What the file says itself stands; the rest is that of the devices it names.
void DeviceCatalog::inherit_speed(DeviceSpec& spec, Diagnostics& faults) {
  if (!spec.speed) return;
  SpeedSpec& own = *spec.speed;
  const auto parent = [&](const std::string& name) -> const SpeedSpec* {
    if (name.empty()) return nullptr;
    const DeviceSpec* device = name == spec.name ? nullptr : load(name, faults);
    if (device && device->speed && device->speed->inherits.empty()) return &*device->speed;
    faults.error(own.where, "no device " + shardfit::quoted(name) + " with a 'speed' of its own",
                 suggest(name, names()));
    return nullptr;
  };
  if (const SpeedSpec* exchange = parent(own.inherits_exchange)) {
    own.collectives.insert(exchange->collectives.begin(), exchange->collectives.end());
  }
  if (const SpeedSpec* all = parent(own.inherits)) {
    own.products.insert(all->products.begin(), all->products.end());
    own.attention.insert(all->attention.begin(), all->attention.end());
    own.collectives.insert(all->collectives.begin(), all->collectives.end());
  }
}

const DeviceSpec* DeviceCatalog::find(const std::string& name, Diagnostics& faults) {
  if (const DeviceSpec* device = load(name, faults)) return device;
  const std::string wanted = folded(name);
  for (const std::string& candidate : names()) {
    if (folded(candidate) == wanted) return load(candidate, faults);
  }
  for (const DeviceSpec* device : all(faults)) {
    for (const std::string& alias : device->aliases) {
      if (folded(alias) == wanted) return device;
    }
  }
  return nullptr;
}

std::vector<const DeviceSpec*> DeviceCatalog::all(Diagnostics& faults) {
  std::vector<const DeviceSpec*> devices;
  for (const std::string& name : names()) devices.push_back(load(name, faults));
  return devices;
}

std::vector<std::string> DeviceCatalog::names() const {
  std::vector<std::string> names;
  for (const auto& [name, path] : files_) names.push_back(name);
  for (const auto& [name, spec] : loaded_) {
    if (files_.find(name) == files_.end()) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<ClusterSpec> read_on(const Node& node, DeviceCatalog& devices, Diagnostics& faults) {
  const auto text = as_string(node, "'on'", faults);
  if (!text) return {};
  ClusterSpec cluster;
  cluster.text = *text;
  cluster.where = node.where;
  std::string name = *text;
  const std::size_t digits = text->find_first_not_of("0123456789");
  if (digits != 0 && digits != std::string::npos && (*text)[digits] == 'x') {
    const auto count = parse_integer(text->substr(0, digits));
    name = text->substr(digits + 1);
    if (!count || *count < 1 || *count > most_gpus) {
      faults.error(node.where, "'on': the number of GPUs in " + shardfit::quoted(*text) +
                                   " is not from 1 to " + format_count(most_gpus));
      return {};
    }
    cluster.count = *count;
  }
  const DeviceSpec* device = devices.find(name, faults);
  if (!device) {
    std::vector<std::string> notes{"expected [COUNTx]DEVICE, such as h200 or 2xb200"};
    for (std::string& note : suggest(name, devices.names())) notes.push_back(std::move(note));
    faults.error(node.where, "'on': unknown device " + shardfit::quoted(name), std::move(notes));
    return {};
  }
  cluster.device = *device;
  return cluster;
}

}  // namespace shardfit::spec
