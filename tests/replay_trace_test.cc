#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "cli/replay_command.h"
#include "run/trace.h"
#include "spec/reader.h"
#include "support.h"
#include "validate/replay_trace.h"

using namespace shardfit;
using run::Trace;

namespace {

/// Whole numbers below n, the same on every machine.
struct Random {
  explicit Random(unsigned seed) : engine(seed) {}
  unsigned operator()(std::size_t n) { return static_cast<unsigned>(engine() % n); }
  std::mt19937 engine;
};

std::vector<std::string> trace_files() {
  std::vector<std::string> files;
  const std::string folder = SHARDFIT_SOURCE_DIR "/tests/data/allocator";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".trace") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Trace read(const SourcePtr& source) {
  Diagnostics faults;
  Trace trace = run::read_trace(source, faults);
  faults.throw_if_any();
  return trace;
}

Trace read(const std::string& text) { return read(test::source(text, "t.trace")); }

/// What the reader complains of in a text, "" for nothing.
std::string faults_of(const std::string& text) {
  return test::errors_of([&] { read(text); });
}

std::string written(const Trace& trace) {
  std::ostringstream out;
  run::write_trace(trace, out);
  return out.str();
}

const std::string small_trace =
    "total 104857600\n"
    "streams 2\n"
    "events\n"
    "a 7 1000 0\n"
    "= 1024 1024 2097152 1000 1 2096128\n"
    "| 2097152 small 0 0.0 - : 1024a1000@7 2096128f\n"
    "r 7 1\n"
    "f 7\n"
    "end\n";

}  // namespace

TEST_CASE("traces: PyTorch's answers are reproduced in every expectation") {
  std::size_t files = 0, expectations = 0;
  for (const std::string& file : trace_files()) {
    CAPTURE(file);
    const Trace trace = read(spec::read_source(file));
    const validate::TraceReplay replay = validate::replay_trace(trace);
    CHECK(replay.expectations > 3);
    CHECK(replay.inactive_split_differences == 0);
    REQUIRE(replay.mismatched == 0);
    expectations += replay.expectations;
    ++files;
  }
  CHECK(files >= 120);
  CHECK(expectations >= 7000);
}

TEST_CASE("traces: without their expectations the replay writes the very same file") {
  for (const std::string& file : trace_files()) {
    CAPTURE(file);
    const SourcePtr source = spec::read_source(file);
    Trace stripped = read(source);
    stripped.expectations.clear();
    const Trace bare = read(written(stripped));
    REQUIRE(written(validate::record_expectations(bare)) == source->text);
  }
}

TEST_CASE("traces: each answer changed by one is noticed") {
  const Trace trace = read(
      spec::read_source(SHARDFIT_SOURCE_DIR "/tests/data/allocator/rules/expandable-oom.trace"));
  std::size_t changed = 0;
  for (std::size_t i = 0; i < trace.expectations.size(); ++i) {
    for (std::size_t n = 0; n < 6; ++n) {
      Trace other = trace;
      run::Expectation& expectation = other.expectations[i];
      const bool numbers = expectation.texts.empty();
      if (numbers && (n > 4 || (n > 3 && expectation.kind != run::Expectation::Kind::values)))
        break;
      if (!numbers && n > 0) break;
      numbers ? void(++expectation.numbers[n]) : void(expectation.texts[0] += "0");
      CHECK(validate::replay_trace(other).mismatched == 1);
      ++changed;
    }
  }
  CHECK(changed > 20);
}

TEST_CASE("traces: an error that nobody expected, and one that does not come, are mismatches") {
  const Trace fails = read("total 1048576\nevents\na 0 1000 0\n= 0 0 0 0 0 0\nend\n");
  const validate::TraceReplay replay = validate::replay_trace(fails);
  REQUIRE(replay.mismatches.size() == 1);
  CHECK(replay.mismatches[0].where.line() == 3);
  CHECK(replay.mismatches[0].event == "a 0 1000 0");
  CHECK(replay.mismatches[0].expected == "no error");
  CHECK(replay.mismatches[0].found.rfind("! CUDA out of memory. Tried to allocate 2.00 MiB", 0) ==
        0);
  const Trace succeeds = read("total 4194304\nevents\na 0 1000 0\n! CUDA out of memory.\nend\n");
  CHECK(validate::replay_trace(succeeds).mismatches.at(0).found == "no error");
}

TEST_CASE("traces: other settings are followed from the start") {
  const Trace trace = read(
      "total 1073741824\nevents\na 0 115343360 0\nf 0\na 1 1048577 0\n"
      "conf max_split_size_mb:20\na 2 41943040 0\nend\n");
  const auto split = validate::replay_trace(trace, run::parse_allocator_settings(""));
  CHECK(split.stats.peak.reserved == 115343360);
  CHECK(split.settings_skipped == 1);
  const auto oversize =
      validate::replay_trace(trace, run::parse_allocator_settings("max_split_size_mb:64"));
  CHECK(oversize.stats.peak.reserved == 115343360 + 20971520 + 41943040);
}

TEST_CASE("traces: a request that failed then and succeeds now is not kept") {
  const Trace trace = read(
      "total 83886080\nconf throw_on_cudamalloc_oom:True\nevents\na 0 62914560 0\nf 0\n"
      "a 1 73400320 0\n! refused\nend\n");
  const auto replay = validate::replay_trace(trace, {});
  CHECK(replay.succeeded_instead == 1);
  CHECK(replay.stats.current.allocated == 0);
  CHECK(replay.stats.retries == 1);
}

TEST_CASE("trace reader: a trace is read and written back") {
  CHECK(written(read(small_trace)) == "# allocator trace, format 1\n" + small_trace);
}

TEST_CASE("trace reader: faults have their place, all in one go") {
  CHECK(faults_of("total 10\nevents\na 0 x 0\nf 3\nend\n") ==
        "t.trace:3:5: error: found 'x', expected bytes, 0 to 2^61\n"
        "    a 0 x 0\n"
        "        ^\n"
        "t.trace:4:3: error: found '3', expected the ID of a block that is allocated\n"
        "    f 3\n"
        "      ^\n");
  CHECK(faults_of("total 10\nconf expandable_segments:yes\nevents\nend\n") ==
        "t.trace:2:26: error: found 'yes', expected True or False\n"
        "    conf expandable_segments:yes\n"
        "                             ^\n");
  CHECK(faults_of("totl 10\nevents\nend\n").find("did you mean 'total'?") != std::string::npos);
  CHECK(faults_of("total 10\nevents\npool 1\nend\n").find("did you mean") != std::string::npos);
}

TEST_CASE("trace reader: lines without sense are refused") {
  const std::string head = "total 10485760\nstreams 2\nevents\n";
  for (const char* line : {"a",
                           "a 0",
                           "a 0 1",
                           "a 0 1 2",
                           "a 0 1 -1",
                           "a 0 -1 0",
                           "a 0 1 0 0",
                           "a 0 1  0",
                           "a 0 1 0 ",
                           "a -1 1 0",
                           "a 99999999999999999999 1 0",
                           "a 0 2305843009213693953 0",
                           "a 0 1 0\na 0 1 0",
                           "f 0",
                           "a 0 1 0\nf 0\nf 0",
                           "a 0 1 0\nf 0\nr 0 1",
                           "a 0 1 0\n! no\nf 0",
                           "r 0 1",
                           "empty 1",
                           "h 1",
                           "e e",
                           "peak0 0",
                           "conf x:1",
                           "conf max_split_size_mb:1",
                           "fraction",
                           "fraction 2",
                           "fraction -0.1",
                           "fraction nan",
                           "pool+",
                           "pool+ 0",
                           "pool+ 1 x",
                           "pool+ 1 no_split no_split",
                           "pool+ 1\npool+ 1",
                           "pool- 1",
                           "pooldel 1",
                           "pool+ 1\npooldel 1",
                           "= 1 2 3 4 5",
                           "= 1 2 3 4 5 6 7",
                           "= a 0 0 0 0 0",
                           "! text",
                           "a 0 1 0\n!",
                           "| 512 tiny 0 0.0 - : 512f",
                           "| 512 small 0 0.0 - : 511f",
                           "| 512 small 2 0.0 - : 512f",
                           "| 512 small 0 1.0 - : 512f",
                           "| 512 small 0 0.0 y : 512f",
                           "| 512 small 0 0.0 - 512f",
                           "| 512 small 0 0.0 - : 512a",
                           "| 512 small 0 0.0 - : 512a5@",
                           "| 512 small 0 0.0 - : 512q5@1",
                           "peak 1 2 3",
                           "counters 1 2 3 4 5",
                           "end\na 0 1 0",
                           "events",
                           "total 5",
                           "x"}) {
    CAPTURE(line);
    CHECK(faults_of(head + line + "\nend\n") != "");
  }
  CHECK(faults_of(head + "end\n") == "");
  for (const char* text : {"", "events\nend\n", "total 10\nend\n", "total 10\nevents\n",
                           "total 10\ntotal 10\nevents\nend\n", "total -1\nevents\nend\n",
                           "total 10\nstreams 0\nevents\nend\n",
                           "total 10\nlayout some\nevents\nend\n", "total 1e3\nevents\nend\n"}) {
    CAPTURE(text);
    CHECK(faults_of(text) != "");
  }
}

TEST_CASE("trace reader: a damaged trace is read or refused, never worse, and then replayed") {
  std::vector<std::string> texts{small_trace};
  for (const char* name : {"expandable-oom", "private-pool-use-on-oom", "record-stream-order"}) {
    texts.push_back(
        spec::read_source(std::string(SHARDFIT_SOURCE_DIR "/tests/data/allocator/rules/") + name +
                          ".trace")
            ->text);
  }
  Random random(3);
  unsigned good = 0;
  for (unsigned round = 0; round < test::fuzz_rounds(1500); ++round) {
    CAPTURE(round);
    std::string text = texts[round % texts.size()];
    for (unsigned n = 1 + random(3); n > 0; --n) {
      const std::size_t at = random(text.size());
      switch (random(4)) {
        case 0:
          text[at] = static_cast<char>(32 + random(95));
          break;
        case 1:
          text.erase(at, 1 + random(20));
          break;
        case 2:
          text.insert(at, text.substr(random(text.size()), random(40)));
          break;
        default:
          text[at] = static_cast<char>('0' + random(10));
      }
      if (text.empty()) text = "\n";
    }
    Diagnostics faults;
    const Trace trace = run::read_trace(test::source(text, "t.trace"), faults);
    if (!faults.empty()) continue;
    ++good;
    validate::replay_trace(trace);
    validate::replay_trace(trace, run::parse_allocator_settings("expandable_segments:True"));
  }
  CHECK(good > 50);
}

namespace {

struct Output {
  int code;
  std::string out, err;
};

Output replay(const std::vector<std::string>& files, const cli::ReplayOptions& options = {}) {
  std::ostringstream out, err;
  const int code = cli::replay_command(files, options, out, err);
  return {code, out.str(), err.str()};
}

const std::string rule_folder = SHARDFIT_SOURCE_DIR "/tests/data/allocator/rules/";

}  // namespace

TEST_CASE("replay command: 0 where everything holds, 1 where not, 2 for bad input") {
  const Output good = replay({rule_folder + "retry.trace"});
  CHECK(good.code == 0);
  CHECK(good.out == rule_folder +
                        "retry.trace\n"
                        "  8 events, all 28 expectations hold\n"
                        "  peak allocated 190.0 MiB, reserved 190.0 MiB; retries 1, out of memory "
                        "0\n");
  test::TemporaryFile off("total 10\nevents\nempty\n= 1 0 0 0 0 0\nend\n", "off.trace");
  const Output bad = replay({off.path});
  CHECK(bad.code == 1);
  CHECK(bad.out.find("off.trace:4:1: after 'empty'\n"
                     "  expected = 1 0 0 0 0 0\n"
                     "  found    = 0 0 0 0 0 0\n") != std::string::npos);
  const Output missing = replay({"nowhere.trace", rule_folder + "retry.trace"});
  CHECK(missing.code == 2);
  CHECK(missing.err == "nowhere.trace: error: no such file\n");
  CHECK(missing.out == good.out);
  CHECK(replay({}, {"max_split:5", false}).code == 2);
}

TEST_CASE("replay command: other settings stand beside the recorded ones, in 80 columns") {
  const std::string file = rule_folder + "../real/llama-1b-fsdp1-2ranks.trace";
  const Output text = replay({file}, {"expandable_segments:True", false});
  CHECK(text.code == 0);
  CHECK(text.out.find("  peak reserved             17.9 GiB      15.8 GiB\n") != std::string::npos);
  std::istringstream lines(text.out);
  std::string line;
  std::getline(lines, line);  // the path, as long as it is
  while (std::getline(lines, line)) CHECK(line.size() <= 80);
  const Output json = replay({file}, {"expandable_segments:True", true});
  const spec::Node root = test::parse_node(json.out, "t.json");
  CHECK(json.out.find("\"reserved_bytes\": 19222495232") != std::string::npos);
  CHECK(json.out.find("\"reserved_bytes\": 17009999872") != std::string::npos);
}
