// The instance readers: what they read from real files, and where they say a file is wrong.
#include <doctest/doctest.h>

#include <filesystem>
#include <random>

#include "partition/instances/instances.h"
#include "support.h"

using namespace shardfit;
using namespace shardfit::partition;
using test::errors_of;

namespace {

const std::string data = SHARDFIT_SOURCE_DIR "/tests/data/solver/";

/// Reads a text as whatever it looks like; what it complains of.
std::string faults_of(const std::string& text, const std::string& name = "t") {
  return errors_of([&] {
    SourcePtr source = test::source(text, name);
    switch (detect_format(source).value_or(InstanceFormat::placement)) {
      case InstanceFormat::placement:
        read_placement(source);
        break;
      case InstanceFormat::piper:
        read_piper(source);
        break;
      case InstanceFormat::profile:
        read_profile(source);
        break;
      case InstanceFormat::chain:
        read_chain(source);
        break;
      case InstanceFormat::buffers:
        read_buffers(source);
        break;
    }
  });
}

const char* const small_graph =
    R"({"maxSizePerFPGA": 100, "maxFPGAs": 2, "maxCPUs": 0, "nodes": [
{"id": 1, "fpgaLatency": 1.5, "cpuLatency": 15, "size": 10, "supportedOnFpga": 1, "isBackwardNode": 0},
{"id": 7, "fpgaLatency": 2, "cpuLatency": 20, "size": 20, "supportedOnFpga": true, "colorClass": 3}],
"edges": [{"sourceId": 1, "destId": 7, "cost": 0.5}]})";

std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace

TEST_CASE("a dnn-partitioning graph keeps latencies, sizes, colours and the price of each source") {
  PlacementInstance p = read_placement(test::source(small_graph, "g.json"));
  REQUIRE(p.nodes.size() == 2);
  CHECK(p.accelerators == 2);
  CHECK(p.accelerator_bytes == 100);
  CHECK(p.nodes[0].accelerator_ms == 1.5);
  CHECK(p.nodes[1].cpu_ms == 20);
  CHECK_FALSE(p.nodes[0].colour.has_value());
  CHECK(p.nodes[1].colour == 3);
  REQUIRE(p.edges.size() == 1);
  CHECK(p.edges[0].destination == 1);
  CHECK(p.send_ms == std::vector<double>{0.5, 0});
}

TEST_CASE("faults of a graph are named with their place") {
  CHECK(faults_of(with(small_graph, "\"id\": 7", "\"id\": 1"))
            .find("t:3:8: error: node id 1 is given twice") == 0);
  CHECK(faults_of(with(small_graph, "\"destId\": 7", "\"destId\": 8")).find("t:4:37: error: ") ==
        0);
  CHECK(faults_of(with(small_graph, "\"destId\": 7", "\"destId\": 1"))
            .find("joins a node to itself") != std::string::npos);
  CHECK(faults_of(with(small_graph, "\"size\": 20", "\"size\": -1")).find("t:3:55: error: ") == 0);
  CHECK(faults_of(with(small_graph, "\"size\": 20", "\"size\": 1e999")).find("t:3:55: error: ") ==
        0);
  CHECK(faults_of(with(small_graph, "\"colorClass\"", "\"colourClass\""))
            .find("did you mean 'colorClass'") != std::string::npos);
  CHECK(faults_of(with(small_graph, ": true", ": 2")).find("expected true, false, 0 or 1") !=
        std::string::npos);
  CHECK(faults_of(with(small_graph, "0.5}", "0.5}, {\"sourceId\": 7, \"destId\": 1, \"cost\": 1}"))
            .find("has a cycle") != std::string::npos);
  CHECK(faults_of(with(small_graph, "0.5}", "0.5}, {\"sourceId\": 1, \"destId\": 7, \"cost\": 1}"))
            .find("edges of one source differ in cost") != std::string::npos);
  CHECK(faults_of(with(small_graph, "\"edges\"", "\"edge\"")).find("'edges'") != std::string::npos);
  CHECK(faults_of("{\"maxFPGAs\": 2}").find("t:1:1: error: ") == 0);
  // Several faults come in one run.
  std::string two = with(with(small_graph, "1.5", "\"x\""), "\"size\": 20", "\"size\": null");
  CHECK(faults_of(two).find("t:2:26: error: ") != std::string::npos);
  CHECK(faults_of(two).find("t:3:55: error: ") != std::string::npos);
}

TEST_CASE("PipeDream lines: descriptions with any text, lists of sizes, stages") {
  const std::string text =
      "n1 -- Input0 -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=0.0, "
      "parameter_size=0.0\n"
      "n2 -- LSTM(a -- b, c) -- forward_compute_time=1.5, backward_compute_time=2.0, "
      "activation_size=[1.0; 2.0; 4.0], parameter_size=8 -- stage_id=3\n"
      "\tn1 -- n2\n";
  ProfileInstance p = read_profile(test::source(text, "g.txt"));
  REQUIRE(p.nodes.size() == 2);
  CHECK(p.nodes[1].description == "LSTM(a -- b, c)");
  CHECK(p.nodes[1].activation_bytes == 7);
  CHECK(p.nodes[1].stage == 3);
  CHECK(p.edges.size() == 1);
  CHECK(without_inputs(p).nodes.size() == 1);
  CHECK(
      faults_of(with(text, "\tn1 -- n2", "\tn1 -- n3")).find("t:3:8: error: 'n3' names no node") ==
      0);
  CHECK(faults_of(with(text, "=1.5", "=1.5ms")).find("t:2:47: error: found '1.5ms'") == 0);
  CHECK(faults_of(with(text, "n2 -- LSTM", "n1 -- LSTM"))
            .find("t:2:1: error: node 'n1' is given twice") == 0);
  CHECK(faults_of(with(text, "stage_id=3", "stage_id=x")).find("expected stage_id=") !=
        std::string::npos);
  CHECK(faults_of(with(text, ", parameter_size=8", "")).find("found 3 fields, expected 4") !=
        std::string::npos);
}

TEST_CASE("minimalloc CSV: lifetimes, sizes, capacity from the name") {
  const std::string text = "id,lower,upper,size\nb0,0,3,4\nb1,3,9,4\n";
  BufferInstance b = read_buffers(test::source(text, "dir/input.12.csv"));
  CHECK(b.capacity == 12);
  REQUIRE(b.buffers.size() == 2);
  CHECK(b.buffers[1].upper == 9);
  CHECK_FALSE(read_buffers(test::source(text, "input.csv")).capacity.has_value());
  CHECK(faults_of(with(text, "3,9", "9,9")).find("t:3:6: error: upper 9 is not above lower 9") ==
        0);
  CHECK(faults_of(with(text, "9,4", "9,x")).find("t:3:8: error: found 'x' as size") == 0);
  CHECK(faults_of(with(text, "b1", "b0")).find("t:3:1: error: buffer 'b0' is given twice") == 0);
  CHECK(faults_of(with(text, ",4\nb1", "\nb1")).find("t:2:1: error: found 3 fields") == 0);
}

TEST_CASE("all instances of the other solvers are read and recognised") {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(data)) {
    const std::string name = entry.path().filename().string(), end = entry.path().extension();
    if (!entry.is_regular_file() || name.find("LICENSE") == 0 || end == ".md" || end == ".tsv" ||
        end == ".jsonl")
      continue;
    CAPTURE(entry.path().string());
    SourcePtr source = spec::read_source(entry.path().string());
    CHECK(detect_format(source).has_value());
    CHECK(faults_of(source->text, entry.path().string()) == "");
    ++files;
  }
  CHECK(files > 20);
}

TEST_CASE("a damaged file is a located error or another valid file, never a crash") {
  std::mt19937 random(7);
  const std::vector<std::string> texts{
      small_graph, spec::read_source(data + "pipedream/test.txt")->text,
      spec::read_source(data + "minimalloc/input.12.csv")->text,
      spec::read_source(data + "rotor/alexnet.chain.json")->text,
      R"({"maxMemoryPerDevice": 10, "maxDevices": 2, "bandwidth": 5, "mbsInBatch": 4, "nodes": [
{"id": 0, "TMPCs": {"1": [{"id": "v", "timePerSample": 1, "parameterSize": 2, "memoryUsageA": 1,
"memoryUsageB": 1, "syncTimeFw": {}, "syncTimeBw": {"1": 0}}]}}, {"id": 1, "TMPCs": {"1": [{"id": "v",
"timePerSample": 1, "parameterSize": 2, "memoryUsageA": 1, "memoryUsageB": 1, "syncTimeFw": {"0": 0},
"syncTimeBw": {}}]}}], "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 3}]})"};
  for (const std::string& text : texts) REQUIRE(faults_of(text) == "");
  const std::string alphabet = "0123456789-+.eE\"{}[],: \t\nnull\\x";
  int faulty = 0;
  for (unsigned round = 0; round < test::fuzz_rounds(4000); ++round) {
    std::string text = texts[round % texts.size()];
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const std::size_t at = random() % text.size(), length = random() % 6;
      switch (random() % 3) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          text[at] = alphabet[random() % alphabet.size()];
      }
      if (text.empty()) text = " ";
    }
    const std::string fault = faults_of(text);
    CAPTURE(text);
    if (fault.empty()) continue;
    ++faulty;
    CHECK(fault.find("t:") == 0);
    CHECK(fault.find("error: ") != std::string::npos);
  }
  CHECK(faulty > 1000);
}
