// `shardfit partition` on every format: keys, exit codes, and what it says of bad input.
#include "cli/partition_command.h"

#include <doctest/doctest.h>

#include <sstream>

#include "support.h"

using namespace shardfit;

namespace {

const std::string data = SHARDFIT_SOURCE_DIR "/tests/data/solver/";

struct Answer {
  int code = 0;
  spec::Node json;
  double number(std::string_view key) const { return std::stod(json.child(key)->text); }
};

Answer ask(cli::PartitionOptions options) {
  options.json = true;
  std::ostringstream out, err;
  Answer a;
  a.code = cli::partition_command(options, out, err);
  a.json = test::parse_node(out.str(), "answer.json");
  for (const char* key :
       {"objective", "lower_bound", "gap", "proven", "cpu_seconds", "parts", "certificate"})
    REQUIRE(a.json.child(key));
  return a;
}

cli::PartitionOptions file(const std::string& name, int gpus = 0) {
  cli::PartitionOptions o;
  o.file = data + name;
  o.gpus = gpus;
  return o;
}

std::string table(const cli::PartitionOptions& options) {
  std::ostringstream out, err;
  cli::partition_command(options, out, err);
  std::stringstream lines(out.str());
  for (std::string line; std::getline(lines, line);)
    if (line.find('/') == std::string::npos) CHECK(line.size() <= 80);
  return out.str();
}

}  // namespace

TEST_CASE("partition: one answer a format, with proof") {
  auto two = file("dnn-partitioning/layer/bert24_inference.json", 2);
  two.cpus = 0;
  Answer bert = ask(two);
  CHECK(bert.code == 0);
  CHECK(bert.number("objective") == doctest::Approx(47.478953).epsilon(1e-7));
  CHECK(bert.json.child("proven")->text == "true");
  CHECK(bert.number("gap") == 0);
  CHECK(bert.json.child("parts")->children.size() == 2);
  CHECK(std::stoi(bert.json.child("certificate")->child("ideals")->text) > 0);

  // The file's own devices: 6 accelerators and a CPU.
  Answer own = ask(file("dnn-partitioning/layer/resnet50_inference.json"));
  CHECK(own.number("objective") == doctest::Approx(33.7747).epsilon(1e-5));

  CHECK(ask(file("pipedream/vgg16.graph.txt", 2)).number("objective") ==
        doctest::Approx(0.370931).epsilon(1e-6));

  auto piper = file("piper/gnmt.json", 2);
  piper.gpu_bytes = "2.5 GiB";
  piper.bandwidth = "25 GiB/s";
  piper.microbatches = 256;
  Answer gnmt = ask(piper);
  CHECK(gnmt.code == 0);
  CHECK(gnmt.json.child("proven")->text == "true");

  Answer buffers = ask(file("minimalloc/input.12.csv"));
  CHECK(buffers.code == 0);
  CHECK(buffers.number("objective") == 12);

  auto chain = file("rotor/resnet50.chain.json", 2);
  chain.gpu_bytes = "5 GiB";
  CHECK(ask(chain).code == 0);
  chain.gpu_bytes = "1 GiB";
  Answer none = ask(chain);
  CHECK(none.code == 1);
  CHECK(none.json.child("objective")->kind == spec::Kind::null);
  CHECK(none.json.child("reason")->text.find("needs at least") != std::string::npos);
}

TEST_CASE("partition: what runs nothing again takes no time for it, not the rounding of sums") {
  int nothing = 0;
  for (const int gpus : {2, 4}) {
    auto chain = file("rotor/resnet50.chain.json", gpus);
    chain.gpu_bytes = "20 GiB";
    const Answer answer = ask(chain);
    for (const spec::Node& part : answer.json.child("parts")->children) {
      const double ms = std::stod(part.child("recompute_ms")->text);
      CHECK((ms == 0 || ms > 1e-3));
      nothing += ms == 0;
    }
  }
  CHECK(nothing == 4);
}

TEST_CASE("partition: unequal GPUs keep their numbers and their limits") {
  auto o = file("dnn-partitioning/layer/bert24_inference.json", 2);
  o.cpus = 0;
  o.gpu_speed = "0.5,1";
  o.gpu_bytes = "3 GiB,1 GiB";
  Answer a = ask(o);
  for (const spec::Node& part : a.json.child("parts")->children) {
    const bool slow = part.child("device")->text == "GPU 0";
    CHECK((part.child("speed") != nullptr) == slow);
    if (!slow) CHECK(std::stod(part.child("bytes")->text) <= (1 << 30));
  }
  // The slow one must not get the larger share of the work.
  CHECK(a.number("objective") < 70);
}

TEST_CASE("partition: parts that are not contiguous are never silent and never worse") {
  auto o = file("dnn-partitioning/layer/bert24_inference.json", 2);
  o.cpus = 0;
  const double contiguous = ask(o).number("objective");
  o.non_contiguous = true;
  Answer free = ask(o);
  CHECK(free.number("objective") < contiguous);
  CHECK(free.number("lower_bound") <= free.number("objective"));
  CHECK(table(o).find("need not be contiguous") != std::string::npos);
  CHECK(table(o).find("above the best (lower") != std::string::npos);
}

TEST_CASE("partition: units thrown about find better parts, within the budget") {
  auto o = file("dnn-partitioning/layer/gnmt_inference.json", 2);
  o.cpus = 0;
  o.gpu_bytes = "1000 GiB";
  o.non_contiguous = true;
  Answer free = ask(o);
  CHECK(free.number("objective") < 91.3565 * (1 + 1e-6));  // a MIP within 6e-4
  CHECK(free.number("objective") >= free.number("lower_bound"));
  o.budget_seconds = 0.5;
  Answer soon = ask(o);
  CHECK(soon.number("cpu_seconds") < 1.5);
  CHECK(soon.number("objective") >= free.number("lower_bound"));
}

TEST_CASE("partition: what does not fit says what is missing") {
  auto o = file("dnn-partitioning/layer/bert24_inference.json", 2);
  o.cpus = 0;
  o.gpu_bytes = "500 MiB";
  CHECK(table(o).find("bytes short") != std::string::npos);
  CHECK(ask(o).code == 1);
}

TEST_CASE("partition: bad options and unknown formats are input errors") {
  auto complaint = [](cli::PartitionOptions o) { return test::errors_of([&] { table(o); }); };
  auto o = file("dnn-partitioning/layer/bert24_inference.json", 2);
  o.gpu_bytes = "16 GX";
  CHECK(complaint(o).find("--gpu-bytes") != std::string::npos);
  o.gpu_bytes = "1 GiB,2 GiB,3 GiB";
  CHECK(complaint(o).find("3 values for 2 GPUs") != std::string::npos);
  o.gpu_bytes = "";
  o.gpu_speed = "fast";
  CHECK(complaint(o).find("--gpu-speed") != std::string::npos);
  o.gpu_speed = "1,1e300";
  CHECK(complaint(o).find("'1e300' is no speed") != std::string::npos);
  o.gpu_speed = "";
  o.budget_seconds = std::numeric_limits<double>::quiet_NaN();
  CHECK(complaint(o).find("--budget is not from 0") != std::string::npos);
  test::TemporaryFile other("a: 1\n");
  o = {};
  o.file = other.path;
  CHECK(complaint(o).find("no instance of a known format") != std::string::npos);
}
