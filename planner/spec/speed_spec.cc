#include "spec/speed_spec.h"

#include "spec/reader.h"

namespace shardfit::spec {
namespace {

const std::array<std::string, 3> product_names{"bf16", "fp8", "nvfp4"};
const std::array<std::string, 5> attention_names{"flash2", "flash3", "flash4", "trtllm",
                                                 "trtllm_decode"};
const std::array<std::string, 4> exchange_names{"all_reduce", "all_gather", "reduce_scatter",
                                                "all_to_all"};
/// Shares and ratios: positive, and never so large that a division by them means nothing.
constexpr RealRange share{1e-4, 1e3};

/// Reads optional numbers over the built-in ones.
class Numbers {
 public:
  explicit Numbers(MapView& map) : map_(map) {}
  Numbers& real(const char* key, double& out, RealRange range = share) {
    if (const auto found = map_.real(key, range)) out = found->value;
    return *this;
  }
  Numbers& seconds(const char* key, double& out) {
    if (const auto found = map_.seconds(key)) out = found->value.value();
    return *this;
  }

 private:
  MapView& map_;
};

ProductSpeed read_product(const Node& node, const std::string& what, Diagnostics& faults) {
  ProductSpeed s;
  MapView map(node, what, faults);
  Numbers numbers(map);
  numbers.seconds("launch", s.launch_seconds).real("peak_share", s.peak_share);
  numbers.seconds("tile", s.tile_seconds).real("wave_loss", s.wave_loss);
  numbers.real("sustained_share", s.sustained_share).seconds("power", s.power_seconds);
  numbers.real("memory_share", s.memory_share).real("cache_ratio", s.cache_ratio);
  numbers.seconds("split", s.split_seconds).real("sharpness", s.sharpness, {1, 100});
  numbers.real("prepared_bytes", s.prepared_bytes, {0, 100});
  numbers.seconds("prepared_row", s.prepared_row_seconds);
  if (const auto bytes = map.bytes("cache")) {
    s.cache_bytes = static_cast<double>(bytes->value.count());
  }
  if (const Node* list = map.list("tile_shares")) {
    if (list->children.size() != s.tile_shares.size()) {
      faults.error(list->where, "'tile_shares' of " + map.what() + " has " +
                                    std::to_string(list->children.size()) + " numbers, not " +
                                    std::to_string(s.tile_shares.size()));
    } else {
      for (std::size_t i = 0; i < s.tile_shares.size(); ++i) {
        const auto one = as_real(list->children[i], "a tile's share", share, faults);
        s.tile_shares[i] = one.value_or(s.tile_shares[i]);
      }
    }
  }
  map.finish();
  return s;
}

AttentionSpeed read_attention(const Node& node, const std::string& what, Diagnostics& faults) {
  AttentionSpeed s;
  MapView map(node, what, faults);
  Numbers numbers(map);
  numbers.seconds("launch", s.launch_seconds).real("peak_share", s.peak_share);
  numbers.real("exponentials", s.exponentials, {1e6, 1e20}).real("overlap", s.overlap, {0, 1});
  numbers.seconds("tile", s.tile_seconds).real("wave_loss", s.wave_loss);
  numbers.real("memory_share", s.memory_share).real("paged_share", s.paged_share);
  numbers.real("sharpness", s.sharpness, {1, 100});
  numbers.real("sustained_share", s.sustained_share).seconds("power", s.power_seconds);
  if (const auto rows = map.integer("tile_rows", {16, 1024})) s.tile_rows = rows->value;
  if (const auto packs = map.boolean("packs")) s.packs = packs->value;
  map.finish();
  return s;
}

CollectiveSpeed read_collective(const Node& node, const std::string& what, Diagnostics& faults) {
  CollectiveSpeed s;
  MapView map(node, what, faults);
  Numbers(map).real("few_ranks", s.few_ranks, {0, 100}).real("crowding", s.crowding, {0, 10});
  if (const Node* list = map.require_list("protocols")) {
    if (list->children.size() != s.protocols.size()) {
      faults.error(list->where, "'protocols' of " + map.what() + " has " +
                                    std::to_string(list->children.size()) + " entries, not " +
                                    std::to_string(s.protocols.size()));
    } else {
      for (std::size_t i = 0; i < s.protocols.size(); ++i) {
        MapView one(list->children[i], "a protocol of " + map.what(), faults);
        Numbers(one)
            .seconds("latency", s.protocols[i].latency_seconds)
            .seconds("rank", s.protocols[i].rank_seconds)
            .real("link_share", s.protocols[i].link_share);
        one.finish();
      }
    }
  }
  map.finish();
  return s;
}

/// Entries of a map by name, each read by `read`.
template <class T, class Names, class Read>
void read_named(MapView& parent, const char* key, const Names& names, Read read,
                std::map<std::string, T>& out, Diagnostics& faults) {
  const Node* node = parent.map(key);
  if (!node) return;
  MapView map(*node, "'" + std::string(key) + "' of " + parent.what(), faults);
  for (const std::string& name : names) {
    if (const Node* one = map.map(name)) {
      out.emplace(name, read(*one, "'" + name + "' of " + map.what(), faults));
    }
  }
  map.finish();
}

}  // namespace

SpeedSpec read_speed(const Node& node, Diagnostics& faults) {
  SpeedSpec speed;
  speed.where = node.where;
  MapView map(node, "'speed'", faults);
  if (const auto inherits = map.string("inherits")) speed.inherits = inherits->value;
  if (const auto inherits = map.string("inherits_exchange")) {
    speed.inherits_exchange = inherits->value;
  }
  if (const auto source = map.string("source")) speed.source = source->value;
  Numbers numbers(map);
  numbers.real("interval", speed.interval, {0, 10}).real("memory_share", speed.memory_share);
  numbers.seconds("kernel", speed.kernel_seconds);
  read_named(map, "products", product_names, read_product, speed.products, faults);
  read_named(map, "attention", attention_names, read_attention, speed.attention, faults);
  read_named(map, "collectives", exchange_names, read_collective, speed.collectives, faults);
  map.finish();
  return speed;
}

}  // namespace shardfit::spec
