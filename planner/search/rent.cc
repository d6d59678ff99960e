#include "search/rent.h"

#include <algorithm>
#include <cmath>

namespace shardfit::search {
namespace {

constexpr double hour = 3600;

Money times(const Money& money, double factor) { return {money.low * factor, money.high * factor}; }

}  // namespace

std::optional<Rent> rent_of(const spec::PriceSpec& prices, const RentJob& job) {
  const auto found = prices.gpu_hour.find(job.device);
  if (found == prices.gpu_hour.end()) return {};
  const auto gpus = static_cast<double>(job.gpus);
  Rent rent;
  rent.currency = prices.currency;
  rent.date = prices.date;
  rent.hour = {found->second.low * gpus * (1 + prices.extra.low),
               found->second.high * gpus * (1 + prices.extra.high)};
  const auto per_step = static_cast<double>(job.samples_per_step);
  if (job.step_seconds) rent.step = times(rent.hour, *job.step_seconds / hour);
  if (job.step_seconds && job.samples_an_epoch) {
    Rent::Work work;
    work.samples = static_cast<double>(*job.samples_an_epoch);
    work.steps = std::ceil(work.samples / per_step);
    work.epochs = 1;
    work.hours = prices.setup_hours + work.steps * *job.step_seconds / hour;
    work.cost = times(rent.hour, work.hours);
    rent.epoch = work;
  }
  for (const int days : {3, 7, 30}) {
    Rent::Window window;
    window.days = days;
    window.work.hours = 24.0 * days;
    window.work.cost = times(rent.hour, window.work.hours);
    if (job.step_seconds) {
      const double training = std::max(0.0, window.work.hours - prices.setup_hours) * hour;
      window.work.steps = std::floor(training / *job.step_seconds);
      window.work.samples = window.work.steps * per_step;
      if (job.samples_an_epoch) {
        window.work.epochs = window.work.samples / static_cast<double>(*job.samples_an_epoch);
      }
    }
    rent.windows.push_back(window);
  }
  return rent;
}

}  // namespace shardfit::search
