#include "search/tables.h"

#include <algorithm>

#include "spec/data_directory.h"
#include "spec/reader.h"

namespace shardfit::search {
namespace {

using spec::MapView;
using spec::Node;

/// Rows of one list of maps, each read by `read(map)`.
template <class Read>
void read_rows(MapView& file, const char* key, Diagnostics& faults, Read read) {
  const Node* rows = file.require_list(key);
  if (!rows) return;
  for (const Node& row : rows->children) {
    MapView map(row, "a row of '" + std::string(key) + "'", faults);
    read(map);
    map.finish();
  }
}

struct ErrorRow {
  std::string framework, task;
  Accuracy accuracy;
};

Accuracy read_accuracy(MapView& map) {
  Accuracy accuracy;
  accuracy.readings = map.require_integer("readings", {1}).value;
  accuracy.low = map.require_real("low", {-100, 0}).value / 100;
  accuracy.high = map.require_real("high", {0, 1000}).value / 100;
  accuracy.source = map.require_string("source").value;
  return accuracy;
}

}  // namespace

Context context_of(const std::string& compute_capability) {
  Diagnostics faults;
  const std::shared_ptr<const Node> kept =
      spec::read_data(spec::data_directory() + "/runtime.yaml", faults);
  const Node& root = *kept;
  MapView file(root, "the runtime's table", faults);
  Context found;
  bool done = false;
  file.require_list("exchange");  // exchange_of reads it
  read_rows(file, "context", faults, [&](MapView& map) {
    const Node* capabilities = map.require_list("capabilities");
    Context row{map.require_bytes("low").value.count(), map.require_bytes("high").value.count(),
                map.require_string("source").value};
    const bool any = !capabilities || capabilities->children.empty();
    const bool named =
        !any && std::any_of(capabilities->children.begin(), capabilities->children.end(),
                            [&](const Node& node) { return node.text == compute_capability; });
    if (done || !(any || named)) return;
    found = std::move(row);
    done = true;
  });
  file.finish();
  faults.throw_if_any();
  return found;
}

Context exchange_of(std::int64_t ranks) {
  Context found;
  if (ranks == 1) return found;
  Diagnostics faults;
  const std::shared_ptr<const Node> kept =
      spec::read_data(spec::data_directory() + "/runtime.yaml", faults);
  const Node& root = *kept;
  MapView file(root, "the runtime's table", faults);
  read_rows(file, "exchange", faults, [&](MapView& map) {
    const auto up_to = map.integer("up_to_ranks", {2});
    Context row{map.require_bytes("low").value.count(), map.require_bytes("high").value.count(),
                map.require_string("source").value};
    if (found.high == 0 && (!up_to || ranks <= up_to->value)) found = std::move(row);
  });
  faults.throw_if_any();
  return found;
}

Context context_of(const spec::DeviceSpec& device) {
  Context context = context_of(device.compute_capability);
  if (device.measured && device.measured->context) {
    const auto& handle = device.measured->blas_handle;
    context.low = (*device.measured->context + handle.value_or(Bytes(0))).count();
    context.high = std::max(context.high, context.low);
    context.source = std::string("at least the bare context") +
                     (handle ? " and the handle of cuBLAS" : "") + " that " +
                     device.measured->source + " found; at most: " + context.source;
  }
  return context;
}

Context exchange_of(const spec::DeviceSpec& device, std::int64_t ranks) {
  if (ranks > 1 && device.measured) {
    for (const spec::MeasuredExchange& row : device.measured->exchange) {
      const std::int64_t low = (row.communicator + row.rings).count();
      // Where nothing was seen to go, the figure is no measurement.
      if (row.ranks != ranks || low <= 0) continue;
      return {low, (Bytes(low) + row.pairs).count(),
              "a communicator of " + std::to_string(ranks) + " ranks with its first exchanges, " +
                  "without and with those of pairs, as " + device.measured->source + " found"};
    }
  }
  return exchange_of(ranks);
}

Accuracy rocm_accuracy(Accuracy on_cuda) {
  Diagnostics faults;
  const Node root = spec::read_file(spec::data_directory() + "/accuracy.yaml", faults);
  if (const Node* node = root.child("rocm")) {
    MapView map(*node, "'rocm'", faults);
    on_cuda.low += map.require_real("low", {-100, 0}).value / 100;
    on_cuda.high += map.require_real("high", {0, 1000}).value / 100;
    const std::string source = map.require_string("source").value;
    on_cuda.source += (on_cuda.source.empty() ? "" : "; ") + source;
    map.finish();
  } else {
    faults.error(root.where, "the table of errors lacks the key 'rocm'");
  }
  faults.throw_if_any();
  return on_cuda;
}

Accuracy accuracy_of(const std::string& framework, const std::string& task) {
  Diagnostics faults;
  const std::shared_ptr<const Node> kept =
      spec::read_data(spec::data_directory() + "/accuracy.yaml", faults);
  const Node& root = *kept;
  MapView file(root, "the table of errors", faults);
  Accuracy stand_in;
  if (const Node* node = file.require_map("stand_in")) {
    MapView map(*node, "'stand_in'", faults);
    stand_in = read_accuracy(map);
    map.finish();
  }
  file.require_map("rocm");  // rocm_accuracy reads it
  std::vector<ErrorRow> rows;
  read_rows(file, "profiles", faults, [&](MapView& map) {
    ErrorRow row;
    row.framework = map.require_string("framework").value;
    row.task = map.require_string("task").value;
    row.accuracy = read_accuracy(map);
    rows.push_back(std::move(row));
  });
  file.finish();
  faults.throw_if_any();
  Accuracy total;
  const auto same = [&](const ErrorRow& row) {
    return row.framework == framework && row.task == task;
  };
  const auto found = std::find_if(rows.begin(), rows.end(), same);
  if (found != rows.end()) {
    total = found->accuracy;
  } else {
    total.measured = false;
    total.source = "no measured cases of this framework and task: the widest of all";
    for (const ErrorRow& row : rows) {
      total.low = std::min(total.low, row.accuracy.low);
      total.high = std::max(total.high, row.accuracy.high);
    }
  }
  total.low += stand_in.low;
  total.high += stand_in.high;
  total.source += "; and the measuring runtime against real cards: " + stand_in.source;
  return total;
}

}  // namespace shardfit::search
