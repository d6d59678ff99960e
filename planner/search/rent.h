#pragma once
// How long a step takes and what the rent comes to: a step, an epoch, 3, 7 and 30 days.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/price_spec.h"

namespace shardfit::search {

/// A steady step of an option.
struct Timing {
  double step_seconds = 0;
  double low_seconds = 0, high_seconds = 0;  // its interval
  std::int64_t exchange_bytes = 0;   // that one GPU sends and receives in a step, as buffers
  double exchange_seconds = 0;       // links busy
  double exposed_seconds = 0;        // of these, while no GPU computes
  std::vector<double> busy_seconds;  // by GPU: computing
};

struct Money {
  double low = 0, high = 0;
};

/// Rent of all GPUs of an option, in the price file's currency.
struct Rent {
  std::string currency, date;
  Money hour;
  struct Work {
    Money cost;
    double hours = 0;               // rented, set-up included
    double samples = 0, steps = 0;  // completed by all runs together; 0 where the speed is unknown
    std::optional<double> epochs;
  };
  std::optional<Money> step;
  std::optional<Work> epoch;  // where samples of an epoch are given
  struct Window {
    int days = 0;
    Work work;
  };
  std::vector<Window> windows;  // 3, 7, 30 days
};

struct RentJob {
  std::string device;  // short name
  std::int64_t gpus = 1;
  std::int64_t samples_per_step = 1;             // of all runs together
  std::optional<std::int64_t> samples_an_epoch;  // of the data set
  std::optional<double> step_seconds;
};

/// Nothing where the file has no price for the device.
std::optional<Rent> rent_of(const spec::PriceSpec& prices, const RentJob& job);

}  // namespace shardfit::search
