#include "spec/price_spec.h"

#include <chrono>

#include "base/format.h"
#include "spec/reader.h"

namespace shardfit::spec {
namespace {

constexpr double most_price = 1e6;

/// "2.5" or "[1.99, 5]".
std::optional<PriceRange> read_range(const Node& node, const std::string& what, double most,
                                     Diagnostics& faults) {
  PriceRange range;
  range.where = node.where;
  if (node.kind != Kind::list) {
    const auto value = as_real(node, what, {0, most}, faults);
    if (!value) return {};
    range.low = range.high = *value;
    return range;
  }
  if (node.children.size() != 2) {
    faults.error(node.where, what + ": found a list of " + std::to_string(node.children.size()) +
                                 ", expected one number or [low, high]");
    return {};
  }
  const auto low = as_real(node.children[0], what, {0, most}, faults);
  const auto high = as_real(node.children[1], what, {0, most}, faults);
  if (!low || !high) return {};
  if (*low > *high) {
    faults.error(node.where, what + ": the low end " + format_exact(*low) +
                                 " is above the high end " + format_exact(*high));
    return {};
  }
  range.low = *low;
  range.high = *high;
  return range;
}

/// A day of the calendar.
bool is_date(const std::string& text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  for (const std::size_t i : {0U, 1U, 2U, 3U, 5U, 6U, 8U, 9U}) {
    if (text[i] < '0' || text[i] > '9') return false;
  }
  const auto number = [&](std::size_t from, std::size_t length) {
    return std::stoi(text.substr(from, length));
  };
  const std::chrono::year_month_day day{std::chrono::year(number(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(number(8, 2)))};
  return day.ok();
}

}  // namespace

PriceSpec read_prices(const std::string& path, DeviceCatalog& devices, Diagnostics& faults) {
  const Node root = read_file(path, faults);
  MapView map(root, "the price file", faults);
  PriceSpec prices;
  prices.currency = map.require_string("currency").value;
  const auto date = map.require_string("date");
  prices.date = date.value;
  if (!prices.date.empty() && !is_date(prices.date)) {
    faults.error(date.where, "'date' of the price file: found " + shardfit::quoted(prices.date),
                 {"expected a day of the calendar, on which the prices were read, as YYYY-MM-DD"});
  }
  if (const auto source = map.string("source")) prices.source = source->value;
  if (const Node* list = map.require_map("gpu_hour")) {
    for (const Node& node : list->children) {
      const DeviceSpec* device = devices.find(node.key, faults);
      if (!device) {
        faults.error(node.key_where, "'gpu_hour': unknown device " + shardfit::quoted(node.key),
                     suggest(node.key, devices.names()));
        continue;
      }
      if (const auto found = prices.gpu_hour.find(device->name); found != prices.gpu_hour.end()) {
        faults.error(node.key_where, "'gpu_hour': a second price for " + device->name,
                     {"the first is at " + found->second.where.text()});
        continue;
      }
      const auto range = read_range(node, "'" + node.key + "' of 'gpu_hour'", most_price, faults);
      if (range) prices.gpu_hour[device->name] = *range;
    }
  }
  if (const Node* extra = map.find("extra")) {
    if (const auto range = read_range(*extra, "'extra' of the price file", 10, faults)) {
      prices.extra = *range;
    }
  }
  if (const auto hours = map.real("setup_hours", {0, 1000})) prices.setup_hours = hours->value;
  map.finish();
  return prices;
}

}  // namespace shardfit::spec
