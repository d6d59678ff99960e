// What a person meets first: lists of words, faults on a terminal, tables with long names, prices,
// profiles for nothing, a checkout that cannot be written.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/standard_output.h"
#include "plan_document.h"
#include "search/profile.h"
#include "spec/job_spec.h"
#include "spec/words_to_come.h"
#include "text_test.h"
#include "validate/compare.h"

using namespace shardfit;
using test::plan_document;
using test::run_command;

namespace {

const std::string tiny =
    "--model " SHARDFIT_SOURCE_DIR "/tests/data/models/tiny-llama.json --sequence 128 ";

/// Errors of a plan of the tiny model.
std::string errors_of(const std::string& words) {
  return run_command("shardfit plan " + tiny + words).err;
}

bool warns(const std::string& words, const std::string& text) {
  const auto plan = plan_document(tiny + words);
  for (const auto& warning : plan["options"][0]["warnings"].GetArray()) {
    if (std::string(warning.GetString()).find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a list of what can be given names no word that is refused as not modelled") {
  struct Key {
    const char* name;
    std::span<const std::string> words;
  };
  const Key keys[] = {{"task", spec::task_names()},
                      {"framework", spec::framework_names()},
                      {"optimizer", spec::optimizer_names()},
                      {"schedule", spec::schedule_names()}};
  for (const Key& one : keys) {
    const char* key = one.name;
    CAPTURE(key);
    const std::vector<std::string> later = spec::words_to_come(key);
    const std::string option = std::string("--") + key + " ";
    const bool pipelines = std::string(key) == "schedule";
    const std::string on = pipelines ? "--framework megatron --parallel pipeline --accumulation 2 "
                                       "--on 2xh200 "
                                     : "--on h200 ";
    const std::string list = errors_of(on + option + "nonsense");
    for (const std::string& word : one.words) {
      CAPTURE(word);
      const bool waits = std::find(later.begin(), later.end(), word) != later.end();
      const bool refused =
          errors_of(on + option + word).find("not modelled yet") != std::string::npos;
      CHECK(refused == waits);
      if (waits) CHECK(list.find(word) == std::string::npos);
    }
  }
}

TEST_CASE("faults are broken at 80 columns on a terminal, and are a line each elsewhere") {
  const std::string fault = "plan.yaml:1:1: error: " + std::string(30, 'a') + " " +
                            std::string(30, 'b') + " " + std::string(30, 'c') + "\n";
  const std::string quoted = "    " + std::string(90, 'x') + "\n";
  CHECK(cli::fault_text(fault + quoted, false) == fault + quoted);
  const std::string broken = cli::fault_text(fault + quoted, true);
  CHECK(broken.find(quoted) != std::string::npos);
  std::istringstream lines(broken);
  for (std::string line; std::getline(lines, line);) {
    CHECK((line.size() <= 80 || line + "\n" == quoted));
  }
  CHECK(std::count(broken.begin(), broken.end(), '\n') == 3);
}

TEST_CASE("a long name has a line of its own in the table of errors") {
  validate::CaseResult result;
  result.group = std::string(45, 'g');
  result.family = "short";
  validate::Row row;
  row.id = std::string(50, 'i');
  row.counter = "allocated_bytes";
  row.measured = row.predicted = 10;
  result.rows.push_back(row);
  row.counter = "step_seconds";
  row.measured_seconds = row.predicted_seconds = 1;
  result.rows.push_back(row);
  std::ostringstream out;
  validate::print_table({result}, out);
  CHECK(out.str().find("\n" + result.group + "\n") != std::string::npos);
  CHECK(out.str().find("\n" + row.id + "\n") != std::string::npos);
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
}

TEST_CASE("prices are of a day of the calendar, and a day to come is said") {
  const auto with_date = [](const std::string& date) {
    return "currency: USD\ndate: " + date + "\ngpu_hour: {h200: 3}\n";
  };
  for (const std::string date : {"2026-02-29", "2026-13-01", "2036-02-31", "2026-04-31"}) {
    CAPTURE(date);
    const test::TemporaryFile prices(with_date(date));
    CHECK(errors_of("--on h200 --prices " + prices.path).find("a day of the calendar") !=
          std::string::npos);
  }
  const test::TemporaryFile leap(with_date("2024-02-29"));
  CHECK_FALSE(warns("--on h200 --prices " + leap.path, "has not come yet"));
  const test::TemporaryFile later(with_date("2999-12-31"));
  CHECK(warns("--on h200 --prices " + later.path, "2999-12-31, a day that has not come yet"));
}

TEST_CASE("a device profile that no option uses is said") {
  const std::string profile =
      "--device-profile " SHARDFIT_SOURCE_DIR "/model_specs/devices/b200.yaml";
  CHECK(warns("--on h200 " + profile, "changes nothing: no option is of its device"));
  CHECK_FALSE(warns("--on b200 " + profile, "changes nothing"));
}

TEST_CASE("where a way to share that was asked for does not fit, the others are looked at") {
  const auto plan = plan_document("--model llama-3-8b --on 2xh100-sxm --parallel ddp");
  CHECK(plan["options"][0]["verdict"] == "does not fit");
  const rapidjson::Value* other = nullptr;
  for (const auto& change : plan["options"][0]["changes"].GetArray()) {
    const std::string words = change["words"].GetString();
    if (words.starts_with("on 2xh100-sxm: fsdp2")) other = &change;
  }
  REQUIRE(other);
  CHECK((*other)["verdict"] == "fits");
}

TEST_CASE("a build folder that cannot be made is said with what to do") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "first_use_checkout";
  fs::create_directories(folder);
  std::ofstream(folder / "build") << "a file in its place";
  const std::string said = (folder / "said").string();
  const std::string command = "cd '" + folder.string() +
                              "' && bash -c '. " SHARDFIT_SOURCE_DIR
                              "/tools/setup.sh; build release shardfit' 2> '" +
                              said + "'";
  CHECK(std::system(command.c_str()) != 0);
  std::stringstream text;
  text << std::ifstream(said).rdbuf();
  CHECK(text.str().find("cannot be written") != std::string::npos);
  CHECK(text.str().find("build it once as the owner") != std::string::npos);
  fs::remove_all(folder);
}
