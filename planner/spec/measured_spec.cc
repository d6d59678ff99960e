#include "spec/measured_spec.h"

#include "spec/reader.h"

namespace shardfit::spec {
namespace {

constexpr RealRange share{0, 1e3};

template <class Row, class Read>
std::vector<Row> rows_of(MapView& map, const char* key, Diagnostics& faults, Read read) {
  std::vector<Row> rows;
  const Node* list = map.list(key);
  if (!list) return rows;
  for (const Node& node : list->children) {
    MapView row(node, "a row of '" + std::string(key) + "'", faults);
    rows.push_back(read(row));
    row.finish();
  }
  return rows;
}

}  // namespace

MeasuredSpec read_measured(const Node& node, Diagnostics& faults) {
  MeasuredSpec measured;
  MapView map(node, "'measured'", faults);
  measured.source = map.require_string("source").value;
  if (const auto context = map.bytes("context")) measured.context = context->value;
  if (const auto launch = map.seconds("launch")) measured.launch = launch->value;
  if (const auto handle = map.bytes("blas_handle")) measured.blas_handle = handle->value;
  measured.exchange = rows_of<MeasuredExchange>(map, "exchange", faults, [](MapView& row) {
    MeasuredExchange exchange;
    exchange.ranks = row.require_integer("ranks", {1}).value;
    exchange.communicator = row.require_bytes("communicator").value;
    exchange.rings = row.require_bytes("rings").value;
    exchange.pairs = row.require_bytes("pairs").value;
    return exchange;
  });
  measured.lines = rows_of<MeasuredLine>(map, "lines", faults, [](MapView& row) {
    MeasuredLine line;
    line.name = row.require_string("name").value;
    line.latency = row.require_seconds("latency").value;
    if (const auto rate = row.bytes_per_second("bandwidth")) line.bandwidth = rate->value;
    line.residual = row.require_real("residual").value;
    line.points = row.require_integer("points").value;
    return line;
  });
  measured.products = rows_of<MeasuredProducts>(map, "products", faults, [](MapView& row) {
    MeasuredProducts products;
    products.rate = row.require_string("rate").value;
    products.shape = row.require_string("shape").value;
    products.share = row.require_real("share", share).value;
    products.low = row.require_real("low", share).value;
    products.high = row.require_real("high", share).value;
    products.shapes = row.require_integer("shapes", {1}).value;
    return products;
  });
  measured.times = rows_of<ProductSeen>(map, "times", faults, [](MapView& row) {
    ProductSeen seen;
    seen.rate = row.require_string("rate").value;
    seen.m = row.require_integer("m", {1}).value;
    seen.n = row.require_integer("n", {1}).value;
    seen.k = row.require_integer("k", {1}).value;
    seen.time = row.require_seconds("time").value;
    return seen;
  });
  measured.attention = rows_of<AttentionSeen>(map, "attention", faults, [](MapView& row) {
    AttentionSeen seen;
    seen.name = row.require_string("name").value;
    seen.time = row.require_seconds("time").value;
    seen.method = row.require_string("method").value;
    return seen;
  });
  map.finish();
  return measured;
}

}  // namespace shardfit::spec
