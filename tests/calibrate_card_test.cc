// Everything for a card in one command: calibrate/on_a_card.py, on the stand-in and on none.
#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <fstream>

#include "calibrate_support.h"
#include "support.h"

using namespace shardfit::test;

namespace {

bool has_python() { return shell("python3 --version").code == 0; }

ProgramResult on_a_card(const std::string& arguments) {
  // A preloaded stand-in comes before a sanitizer's runtime.
  return shell(
      "export ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0; python3 "
      "" SHARDFIT_SOURCE_DIR
      "/calibrate/on_a_card.py --no-build --build "
      "" SHARDFIT_BINARY_DIR " " +
      arguments);
}

}  // namespace

TEST_CASE("on_a_card: a dry run says every step with bytes and seconds; without a card it waives") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const ProgramResult dry = on_a_card("--dry-run --on 2xh200 --cards 2");
  CHECK(dry.code == 2);  // --on is one device, --cards how many
  const ProgramResult two = on_a_card("--dry-run --on b200 --cards 2 --jobs gpt2 gpt2-ddp");
  CHECK(two.err == "");
  CHECK(two.code == 0);
  CHECK(two.out.find("waived here: ") == 0);
  for (const char* words : {"calibrate run --quick ", "gpt2-ddp ", "on each of 2: fits",
                            "near-capacity", "in all some"}) {
    CAPTURE(words);
    CHECK(two.out.find(words) != std::string::npos);
  }
  const ProgramResult none = on_a_card("--out results");
  CHECK(none.code == 4);
  CHECK(none.err.find("waived: ") == 0);
  CHECK(on_a_card("--dry-run --jobs gpt3").err.find("unknown job gpt3") == 0);
}

TEST_CASE("on_a_card: a wrong --python or --gpu-budget is told before anything is done") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  for (const char* budget : {"60", "2min", "0s", "nans", "1e400s", "1e9s", "s", "''"}) {
    CAPTURE(budget);
    const ProgramResult run = on_a_card(std::string("--dry-run --gpu-budget ") + budget);
    CHECK(run.code == 2);
    CHECK(run.out == "");
    CHECK(run.err.find("--gpu-budget: '") == 0);
  }
  for (const char* python : {"/nowhere/python", "''", "'~/nowhere/python'", "/tmp", "\"'\""}) {
    CAPTURE(python);
    const ProgramResult run = on_a_card(std::string("--dry-run --python ") + python);
    CHECK(run.code == 2);
    CHECK(run.out == "");
    CHECK(run.err.find("--python: ") == 0);
  }
  const ProgramResult home = shell(
      "mkdir -p v && ln -s \"$(command -v python3)\" v/python && HOME=$PWD "
      "python3 " SHARDFIT_SOURCE_DIR
      "/calibrate/on_a_card.py --no-build --build "
      "" SHARDFIT_BINARY_DIR " --dry-run --jobs gpt2 --no-near --python '~/v/python'");
  CHECK(home.err == "");
  CHECK(home.code == 0);
}

TEST_CASE("on_a_card: the time a measurement may take grows with the pairs of cards") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const auto limit = [](const std::string& on) {
    const ProgramResult run =
        shell("cd " SHARDFIT_SOURCE_DIR
              "/calibrate && python3 -c 'import on_a_card, types; run = types.SimpleNamespace("
              "calibrate_program=[\"" SHARDFIT_BINARY_DIR
              "/shardfit-calibrate\"]); print(on_a_card.measure_limit(run, [\"--on\", \"" +
              on + "\"]))'");
    CHECK(run.err == "");
    return std::atof(run.out.c_str());
  };
  CHECK(limit("h200") == 600);
  CHECK(limit("8xh200") > 1526);  // what its dry run says
  CHECK(limit("no such card") == 600);
}

TEST_CASE(
    "on_a_card: results of a card become the profile and the page; others' stay, parts do not") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const TemporaryFile file("", "made");
  const std::string root = file.path.substr(0, file.path.rfind('/'));
  REQUIRE(shell("mkdir -p docs results && cp " SHARDFIT_SOURCE_DIR
                "/docs/calibration.md docs/ && echo 'name: h200' > results/profile.yaml",
                root)
              .code == 0);
  const auto publish = [&](const std::string& device, const std::string& more) {
    std::ofstream(root + "/results/summary.json")
        << "{\"device\": \"" + device + "\", \"date\": \"2027-01-02\", \"table\": \"| gpt2 | on " +
               device + " |\\n\", " + more + "}";
    const ProgramResult run = on_a_card("--root " + root + " --publish " + root + "/results");
    CHECK(run.err == "");
    CHECK(run.code == 0);
    return run.out + shell("cat docs/calibration.md; ls model_specs/devices/measured", root).out;
  };
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  for (const char* summary : {"{\"device\": ", "{}", "[]"}) {
    CAPTURE(summary);
    std::ofstream(root + "/results/summary.json") << summary;
    const ProgramResult run = on_a_card("--root " + root + " --publish " + root + "/results");
    CHECK(run.code == 2);
    CHECK(run.err.find(root + "/results has no summary.json of this script: ") == 0);
  }
  const std::string card = "\"stand_in\": false, \"missing\": []";
  std::string text = publish("h200", "\"stand_in\": true, \"missing\": []");
  CHECK(text.find("nothing of a stand-in is written") == 0);
  CHECK(count(text, "No card has confirmed anything") == 1);
  CHECK(count(text, "h200-2027-01-02") == 0);
  text = publish("h200", "\"stand_in\": false, \"missing\": [\"no real programs\"]");
  CHECK(count(text, "since this was not all: no real programs") == 1);
  CHECK(count(text, "No card has confirmed anything") == 1);
  CHECK(count(text, "h200-2027-01-02.yaml\n") == 2);  // said, and there
  for (int again = 0; again < 2; ++again) {
    text = publish("h200", card);
    CHECK(count(text, "### h200-2027-01-02\n\n| gpt2 | on h200 |\n") == 1);
    CHECK(count(text, "No card has confirmed anything") == 0);
  }
  text = publish("b200", card);
  CHECK(count(text, "### h200-2027-01-02\n") == 1);
  CHECK(count(text, "### b200-2027-01-02\n") == 1);
  CHECK(count(text, "\n`./shardfit calibrate` is a CUDA program of its own") == 1);
}

#ifdef SHARDFIT_CUDA

TEST_CASE("on_a_card: on the stand-in every job is planned, confirmed, and its limits are met") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const ProgramResult run = on_a_card(
      "--out results --no-trial --jobs gpt2 gpt2-ddp --device-profile " SHARDFIT_SOURCE_DIR
      "/model_specs/devices/h200.yaml --under '" SHARDFIT_BINARY_DIR
      "/shardfit-stand-in 2xh200'; e=$?; cat results/summary.json >&2; exit $e");
  CAPTURE(run.out);
  CHECK(run.code == 0);
  CHECK(run.out.find("ON A STAND-IN RUNTIME WITHOUT A CARD") != std::string::npos);
  CHECK(run.out.find("| gpt2-ddp, 2 cards | - | - | - | confirmed | - |") != std::string::npos);
  CHECK(run.out.find("refused by the plan and, before anything was allocated, by confirm") !=
        std::string::npos);
  rapidjson::Document summary;
  summary.Parse(run.err.c_str());
  REQUIRE_FALSE(summary.HasParseError());
  CHECK(summary["stand_in"].GetBool());
  CHECK(summary["right"].GetBool());
  REQUIRE(summary["jobs"].Size() == 4);
  const auto& near = summary["jobs"][2];
  CHECK(near["fits"].GetBool());
  CHECK(near["share"].GetDouble() >= 0.97);
  CHECK(near["share"].GetDouble() <= 0.985);
  CHECK(summary["jobs"][3]["refused_by_plan"].GetBool());
  CHECK(summary["jobs"][3]["refused_by_confirm"].GetBool());
}

TEST_CASE(
    "on_a_card: a card that refuses memory in the middle is off, and the other jobs still run") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const ProgramResult run = on_a_card(
      "--out results --no-trial --no-near --jobs gpt2 vit-base "
      "--device-profile " SHARDFIT_SOURCE_DIR
      "/model_specs/devices/h200.yaml --under 'env SHARDFIT_STAND_IN_FAIL=cudaMalloc:15:2:1000000 "
      "" SHARDFIT_BINARY_DIR "/shardfit-stand-in h200'");
  CAPTURE(run.out);
  CHECK(run.code == 1);
  CHECK(run.out.find("the device refused what the allocator counted on") != std::string::npos);
  CHECK(run.out.find("| vit-base |") != std::string::npos);
  CHECK(run.out.find("OFF: see above") != std::string::npos);
}

TEST_CASE("on_a_card: a card or a profile that no plan is made for is told before it is measured") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const TemporaryFile negative(
      "name: h200\ngpu: H200\nmemory:\n  usable: {value: -1 GiB, source: x}\n", "profile.yaml");
  for (const std::string& words : {std::string("--on x300"), "--device-profile " + negative.path}) {
    CAPTURE(words);
    const ProgramResult run =
        on_a_card("--out results --no-trial --jobs gpt2 --under '" +
                  std::string(SHARDFIT_BINARY_DIR) + "/shardfit-stand-in h200' " + words);
    CHECK(run.code == 2);
    CHECK(run.err.find("error: ") != std::string::npos);
    CHECK(run.out == "results go to results\n");
  }
}

TEST_CASE("on_a_card: a replay that ends with bad input, and a full disk, leave the table") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const TemporaryFile under(
      "case \"$*\" in *confirm*) echo '{\"errors\": []}'; exit 2;; esac\n"
      "exec " SHARDFIT_BINARY_DIR "/shardfit-stand-in h200 \"$@\"\n",
      "under.sh");
  const std::string words =
      "--out results --no-trial --no-near --jobs gpt2 --device-profile " SHARDFIT_SOURCE_DIR
      "/model_specs/devices/h200.yaml --under 'sh " +
      under.path + "'";
  const ProgramResult run = on_a_card(words);
  CHECK(run.code == 1);
  CHECK(run.err == "");
  CHECK(run.out.find("| gpt2 | - | - | - | exit 2, see the step | - |") != std::string::npos);
  CHECK(run.out.find("OFF: see above") != std::string::npos);
  // What cannot be written is on the screen at least.
  const ProgramResult full = shell(
      "mkdir -p results/table.md.part && export ASAN_OPTIONS=verify_asan_link_order=0 && "
      "python3 " SHARDFIT_SOURCE_DIR
      "/calibrate/on_a_card.py --no-build --build " SHARDFIT_BINARY_DIR " " +
      words);
  CHECK(full.code == 1);
  CHECK(full.out.find("| gpt2 | ") != std::string::npos);
  CHECK(full.err.find("on_a_card: ") == 0);
}

TEST_CASE("on_a_card: Ctrl-C ends it with what there is, and leaves no process behind") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  // A replay whose exchange never ends, so that there is something to interrupt.
  const ProgramResult run = shell(
      "export ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0; timeout --preserve-status -s "
      "INT "
      "--foreground 5 python3 " SHARDFIT_SOURCE_DIR
      "/calibrate/on_a_card.py --no-build --build " SHARDFIT_BINARY_DIR
      " --out results --root . --no-trial --no-near --jobs gpt2 gpt2-ddp --gpu-budget 400s "
      "--device-profile " SHARDFIT_SOURCE_DIR
      "/model_specs/devices/h200.yaml --under 'env SHARDFIT_STAND_IN_HANG=ncclAllReduce:1 "
      "" SHARDFIT_BINARY_DIR
      "/shardfit-stand-in 2xh200'; e=$?; cat results/summary.json >&2; "
      // What was killed may take a moment to be gone.
      "for i in 1 2 3 4 5 6 7 8 9 10; do n=$(ps ax -o args | "
      "grep -c \"[c]onfirm $PWD\\|[c]onfirm results/gpt2-ddp\"); [ $n = 0 ] && break; sleep 0.3; "
      "done; echo $n; exit $e");
  CAPTURE(run.out);
  CHECK(run.code == 130);
  CHECK(run.out.find("| gpt2 | - | - | - | confirmed | - |") != std::string::npos);
  CHECK(run.out.find("- ENDED: Ctrl-C; what stands here is all that was done") !=
        std::string::npos);
  CHECK(run.out.ends_with("ended: Ctrl-C\n0\n"));
  CHECK(run.err.find("\"it was ended before all was done\"") != std::string::npos);
}

TEST_CASE("on_a_card: a Python without the stack is told before anything is measured") {
  if (!has_python()) {
    MESSAGE("waived: there is no python3");
    return;
  }
  const ProgramResult without = on_a_card(
      "--out results --root . --no-near --jobs gpt2 --python /bin/false "
      "--device-profile " SHARDFIT_SOURCE_DIR
      "/model_specs/devices/h200.yaml --under '" SHARDFIT_BINARY_DIR
      "/shardfit-stand-in h200'; e=$?; ls model_specs 2>&1; exit $e");
  CHECK(without.out.find("nothing of a stand-in is written into the repository") !=
        std::string::npos);
  CHECK(without.out.find("cannot access 'model_specs'") != std::string::npos);
  const auto told = without.out.find("THE REAL PROGRAMS ARE LEFT OUT: ");
  REQUIRE(told != std::string::npos);
  CHECK(told < without.out.find("gpt2.plan.json"));
  CHECK(without.out.find("as far as it went, without the real programs") != std::string::npos);
  CHECK(without.code == 0);
}

#endif
