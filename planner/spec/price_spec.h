#pragma once
// A person's price file: what a GPU of a kind costs an hour, low to high, with the date it was
// read. No price is taken for granted.

#include <map>
#include <optional>
#include <string>

#include "base/diagnostic.h"
#include "spec/cluster_spec.h"

namespace shardfit::spec {

struct PriceRange {
  double low = 0, high = 0;
  Location where;
};

struct PriceSpec {
  std::string currency;
  std::string date;                            // YYYY-MM-DD
  std::string source;                          // "" where the file gives none
  std::map<std::string, PriceRange> gpu_hour;  // by short name of the device
  PriceRange extra;        // on top, as a share of the rent: storage, traffic; 0.3 is 30 %
  double setup_hours = 0;  // rented before the first step
};

/// Reads a price file; names of devices may be aliases. Faults go to `faults`.
PriceSpec read_prices(const std::string& path, DeviceCatalog& devices, Diagnostics& faults);

}  // namespace shardfit::spec
