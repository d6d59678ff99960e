// Price files, and what a rent comes to.

#include "search/rent.h"

#include <doctest/doctest.h>

#include "spec/data_directory.h"
#include "support.h"

using namespace shardfit;

namespace {

const std::string prices_file = SHARDFIT_SOURCE_DIR "/tests/data/prices/two.yaml";

spec::PriceSpec read(const std::string& path) {
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  spec::PriceSpec prices = spec::read_prices(path, devices, faults);
  faults.throw_if_any();
  return prices;
}

}  // namespace

TEST_CASE("a rent is hours x GPUs x price, extras and set-up included") {
  search::RentJob job;
  job.device = "h200";
  job.gpus = 2;
  job.samples_per_step = 8;
  job.samples_an_epoch = 1001;
  job.step_seconds = 1.8;
  const auto rent = search::rent_of(read(prices_file), job);
  REQUIRE(rent);
  CHECK(rent->hour.low == 4);
  CHECK(rent->hour.high == 9);  // 2 x 3, and half of it on top
  CHECK(rent->step->low == doctest::Approx(4 * 1.8 / 3600));
  CHECK(rent->epoch->steps == 126);  // the last one is not full
  CHECK(rent->epoch->hours == doctest::Approx(1 + 126 * 1.8 / 3600));
  REQUIRE(rent->windows.size() == 3);
  CHECK(rent->windows[0].days == 3);
  CHECK(rent->windows[0].work.cost.low == 4 * 72);
  CHECK(rent->windows[0].work.steps == 71 * 2000);  // an hour goes to setting up
  CHECK(rent->windows[0].work.samples == 71 * 2000 * 8);
  CHECK(*rent->windows[0].work.epochs == doctest::Approx(71 * 2000 * 8 / 1001.0));
  CHECK(rent->windows[2].days == 30);
}

TEST_CASE("without a speed there is a rent of days and none of steps") {
  search::RentJob job;
  job.device = "b200";
  const auto rent = search::rent_of(read(prices_file), job);
  REQUIRE(rent);
  CHECK(!rent->step);
  CHECK(!rent->epoch);
  CHECK(rent->windows[1].work.cost.low == 4 * 7 * 24);
  CHECK(rent->windows[1].work.steps == 0);
  job.device = "a100-80";
  CHECK(!search::rent_of(read(prices_file), job));
}

TEST_CASE("faults of a price file are all said, with their places") {
  const test::TemporaryFile file(
      "currency: USD\ndate: last week\ngpu_hour:\n  h200: [3, 2]\n  h2000: 1\n  b200: [1, 2, 3]\n"
      "  B200: -1\nsetup: 2\n",
      "prices.yaml");
  const std::string text = test::errors_of([&] { read(file.path); });
  for (const char* part :
       {":2:7: error: 'date' of the price file: found 'last week'", "the low end 3 is above",
        "unknown device 'h2000'", "found a list of 3", "unknown key 'setup'"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
}
