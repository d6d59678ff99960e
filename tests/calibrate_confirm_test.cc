// calibrate confirm and smoke: plans replayed by the real program on the stand-in runtime.
#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <cmath>
#include <fstream>

#include "calibrate/confirm.h"
#include "calibrate/smoke.h"
#include "calibrate_support.h"
#include "search/tables.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using namespace shardfit::test;

namespace {

constexpr const char* gpt2 =
    "--framework plain-pytorch --precision bf16 --micro-batch 2 --sequence 128 --on h200";

/// A plan with its programs in a folder of its own.
struct PlanFolder {
  explicit PlanFolder(const std::string& options) : file("", "plan.json") {
    folder = file.path.substr(0, file.path.rfind('/'));
    const CommandResult plan =
        run_command("shardfit plan --model " SHARDFIT_SOURCE_DIR "/tests/data/models/gpt2.json " +
                    options + " --json --export-program " + folder);
    REQUIRE(plan.err == "");
    std::ofstream(file.path) << plan.out;
  }
  TemporaryFile file;
  std::string folder;
};

/// Two ranks that compute and exchange; written by hand.
struct PairFolder {
  PairFolder() : file(plan(), "plan.json") {
    folder = file.path.substr(0, file.path.rfind('/'));
    for (const char* rank : {"0", "1"}) {
      std::ofstream out(folder + "/2xh200-rank" + rank + ".program");
      out << "shardfit-program 1\noption 2xh200\nrank " << rank
          << "\nparameters 1 1\nstream compute\nstream exchange\ngroup 0 1\nmodule -\n"
             "module model.layers.0\nkind mm\nstorage 8388608 gradients 0 0 1 0\n"
             "storage 33554432 workspace 0 0 0 0\n"
             "compute 0 1 0 bf16 2147483648 6291456 1024 1024 1024 1\n"
             "collective all_reduce bf16 8388608 0 -1 1 1\nphase loaded 0 1\n"
             "phase backward 1 0\nphase backward 2 0\nphase backward 3 0\nevents 2\nrun\n"
             "a 0 0\na 1 0\np 0 0\n";
      for (const char* phase : {"1", "2", "3"}) {
        out << "c 0 0\nv 0 0\nw 0 1\nx 0 1\ns 0 1\nv 1 1\nw 1 0\nc 0 0\np " << phase << " 0\n";
      }
      out << "f 0 0\nend\n";
    }
  }
  static std::string plan() {
    // Reserved, context, what NCCL takes; the stand-in's handle of cuBLAS is below the tolerance.
    const std::int64_t device =
        54525952 + search::context_of("9.0").bytes() + search::exchange_of(2).bytes();
    std::string gpus;
    for (const char* i : {"0", "1"}) {
      gpus += std::string(gpus.empty() ? "" : ",") + "{\"index\":" + i + ",\"rank\":" + i +
              ",\"usable_bytes\":150108897280,\"context_bytes\":671088640,"
              "\"allocated_bytes\":41943040,\"reserved_bytes\":54525952,"
              "\"device_bytes\":" +
              std::to_string(device) + ",\"phases\":[]}";
    }
    return "{\"options\":[{\"name\":\"2xh200\",\"device\":\"h200\",\"parallel\":\"ddp\","
           "\"verdict\":\"fits\",\"step_seconds\":null,\"job\":{},\"gpus\":[" +
           gpus + "]}],\"recommendation\":{\"option\":\"2xh200\"}}";
  }
  TemporaryFile file;
  std::string folder;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("confirm: a dry run counts what would be done; without a card the run is waived") {
  const PlanFolder plan(gpt2);
  const ProgramResult dry = run_calibrate("confirm plan.json --dry-run", {.folder = plan.folder});
  CHECK(dry.code == 0);
  CHECK(has(dry.out, "waived here: " + why_waived));
  CHECK(has(dry.out, "rank 0 on device 0: 3 steps, the first one to warm up;"));
  CHECK(has(dry.out, "441 products, 72 attentions"));
  const ProgramResult run = run_calibrate("confirm plan.json", {.folder = plan.folder});
  CHECK(run.code == 4);
  const ProgramResult smoke = run_calibrate("smoke plan.json --dry-run", {.folder = plan.folder});
  CHECK(smoke.code == 0);
  CHECK(has(smoke.out, "addmm bf16: product, by cuBLAS"));
  CHECK(has(smoke.out, "44 operators, at most 1.12 MiB of the device"));
  const ProgramResult products =
      run_calibrate("run --dry-run --only gemm-plan --plan plan.json", {.folder = plan.folder});
  CHECK(has(products.out, "gemm-plan       12 "));
}

TEST_CASE("confirm: a plan without its programs is refused with the command that writes them") {
  const TemporaryFile plan(PairFolder::plan(), "plan.json");
  const ProgramResult run = run_calibrate("confirm " + plan.path, {});
  CHECK(run.code == 2);
  CHECK(has(run.err, "2xh200-rank0.program: error: the program of rank 0 is missing"));
  CHECK(has(run.err, "--export-program"));
  const ProgramResult option = run_calibrate("confirm " + plan.path + " --option 2xh20", {});
  CHECK(has(option.err, "did you mean '2xh200'?"));
  const auto told = [&](const std::string& options) {
    const ProgramResult result = run_calibrate("confirm " + plan.path + " " + options, {});
    CHECK(result.code == 2);
    return result.err;
  };
  CHECK(has(told("--gpu-budget 0s"), "--gpu-budget: '0s' is no time above 0"));
  CHECK(has(told("--gpu-budget=-5s"), "--gpu-budget: '-5s' "));
  CHECK(has(told("--gpu-budget 5"), "--gpu-budget: '5' has no unit"));
  CHECK(has(told("--margin=-1GiB"), "--margin: '-1GiB' is negative"));
  CHECK(has(told("--margin 999999999GiB"), "is more than any device has"));
}

TEST_CASE("confirm: a program of another plan, cut off or of another version is refused") {
  const PlanFolder plan(gpt2),
      other("--framework plain-pytorch --precision bf16 --micro-batch 4 --sequence 128 --on h200");
  const std::string here = "cp " + plan.folder + "/plan.json . && ";
  const auto confirm = [&](const std::string& make) {
    const std::string name = "h200-rank0.program";
    return shell(here + make + " > " + name +
                 "; " SHARDFIT_BINARY_DIR "/shardfit-calibrate confirm plan.json --dry-run");
  };
  const std::string own = plan.folder + "/h200-rank0.program";
  CHECK(confirm("cat " + own).code == 0);
  const ProgramResult wrong = confirm("cat " + other.folder + "/h200-rank0.program");
  CHECK(wrong.code == 2);
  CHECK(has(wrong.err, "it is the program of another plan: it reaches "));
  const ProgramResult cut = confirm("head -c 3000 " + own);
  CHECK(cut.code == 2);
  CHECK(has(cut.err, "the file ends before 'end'"));
  CHECK(confirm("sed 's/^shardfit-program 1/shardfit-program 9/' " + own).code == 2);
  CHECK(confirm("sed 's/^a 3 .*/a 999999 0/' " + own).code == 2);
  CHECK(confirm("head -c 5000 /dev/urandom").code == 2);
  CHECK(confirm("true").code == 2);
}

TEST_CASE("confirm: the verdict is off beyond its tolerances, and says what is") {
  using namespace shardfit::calibrate;
  Confirmation c;
  ConfirmedRank rank;
  rank.predicted = {1000000, 2000000, 3000000};
  rank.measured = {1004000, 2030000, 3050000};
  rank.step_seconds = {1};
  c.ways.push_back({Way::caching, {rank}});
  CHECK(judge(c).confirmed);
  ConfirmedRank& r = c.ways[0].ranks[0];
  r.measured.allocated = 1006000;  // 0.6 %
  CHECK_FALSE(judge(c).confirmed);
  CHECK(has(judge(c).because.at(0), "allocated off by +0.6 %"));
  r.measured = {1000000, 2050000, 3000000};
  r.retries = 3;
  CHECK(has(judge(c).because.at(0), "reserved off by +2.5 %"));
  CHECK(has(judge(c).because.at(0), "given back 3 times"));
  r.measured = {1000000, 2000000, 3100000};
  CHECK(has(judge(c).because.at(0), "because context and libraries took"));
  r.measured = r.predicted;
  r.left = 4096;
  CHECK(has(judge(c).because.at(0), "4.00 KiB were not given back"));
  r.left = 0;
  r.step_seconds.clear();
  CHECK_FALSE(judge(c).confirmed);
}

#ifdef SHARDFIT_CUDA

TEST_CASE("confirm: on the stand-in the replay reaches the plan's own bytes, phase by phase") {
  for (const char* allocator : {"", " --allocator expandable_segments:True"}) {
    CAPTURE(allocator);
    const PlanFolder plan(std::string(gpt2) + allocator);
    const ProgramResult run = run_calibrate("confirm plan.json --json",
                                            {.device = "h200", .log = true, .folder = plan.folder});
    CHECK(run.code == 0);
    rapidjson::Document json;
    json.Parse(run.out.c_str());
    REQUIRE_FALSE(json.HasParseError());
    CHECK(json["stand_in"].GetBool());
    CHECK(json["confirmed"].GetBool());
    const auto& rank = json["ways"][0]["ranks"][0];
    for (const char* level : {"allocated_bytes", "reserved_bytes"}) {
      CHECK(rank["predicted"][level].GetInt64() == rank["measured"][level].GetInt64());
    }
    // What the device had in use is what was reserved, and what was in use before.
    CHECK(rank["measured"]["device_bytes"].GetInt64() ==
          rank["measured"]["reserved_bytes"].GetInt64() + rank["before_bytes"].GetInt64());
    CHECK(rank["phases"].Size() > 8);
    for (const auto& phase : rank["phases"].GetArray()) {
      CAPTURE(phase["name"].GetString());
      CHECK(phase["predicted_allocated_bytes"].GetInt64() ==
            phase["measured"]["allocated_bytes"].GetInt64());
      CHECK(phase["predicted_reserved_bytes"].GetInt64() ==
            phase["measured"]["reserved_bytes"].GetInt64());
    }
    CHECK(rank["step_seconds"].Size() == 3);
    CHECK(rank["left_bytes"].GetInt64() == 0);
    // The other way: every storage is a call of its own.
    const auto& pool = json["ways"][1]["ranks"][0];
    CHECK(pool["failure"].GetString() == std::string());
    CHECK(pool["measured"]["allocated_bytes"].GetInt64() <=
          rank["measured"]["allocated_bytes"].GetInt64());
    CHECK(has(run.log, "cudaMallocAsync"));
    CHECK(has(run.log, *allocator ? "cuMemMap" : "cudaMalloc "));
    CHECK(has(run.log, "left 0 allocations, 0 bytes, 0 streams, 0 events"));
  }
}

TEST_CASE("confirm: a refusal of the driver makes cached blocks go back, and the replay goes on") {
  const PlanFolder plan(gpt2);
  const ProgramResult run = run_calibrate(
      "confirm plan.json", {.device = "h200", .fail = "cudaMalloc:15:2", .folder = plan.folder});
  CHECK(has(run.out, "retries of the allocator: 1"));
  CHECK(has(run.out, "everything was given back"));
  CHECK_FALSE(has(run.out, "FAILED"));
}

TEST_CASE("confirm: out of memory in the middle names the operator and gives everything back") {
  const PlanFolder plan(gpt2);
  const ProgramResult run = run_calibrate(
      "confirm plan.json",
      {.device = "h200", .log = true, .fail = "cudaMalloc:15:2:1000000", .folder = plan.folder});
  CHECK(run.code == 1);
  CHECK(has(run.out, "FAILED: in step 1, at "));
  CHECK(has(run.out, "out of memory: the device refused what the allocator counted on"));
  CHECK(has(run.out, "everything was given back"));
  CHECK(has(run.out, "\nOFF"));
  CHECK(has(run.log, "left 0 allocations, 0 bytes, 0 streams, 0 events"));
}

TEST_CASE("confirm: a failing launch is named with its operator, step and layer") {
  const PlanFolder plan(gpt2);
  const ProgramResult once = run_calibrate(
      "confirm plan.json",
      {.device = "h200", .log = true, .fail = "cudaLaunchKernel:200:701", .folder = plan.folder});
  CHECK(once.code == 1);
  CHECK(has(once.out, "transformer.h."));
  CHECK(has(once.out, "cudaErrorLaunchOutOfResources"));
  CHECK(has(once.out, "everything was given back"));
  CHECK(has(once.log, "left 0 allocations, 0 bytes"));
  const ProgramResult lost =
      run_calibrate("confirm plan.json",
                    {.device = "h200", .fail = "cudaLaunchKernel:200:700", .folder = plan.folder});
  CHECK(lost.code == 1);
  CHECK(has(lost.out, "the device does not answer this process any more"));
  CHECK_FALSE(has(lost.out, "everything was given back"));
}

TEST_CASE("confirm: what is larger than the card is refused before anything is allocated") {
  const PlanFolder plan(gpt2);
  // The replay needs some 2 GiB; with this margin less is left.
  const ProgramResult run = run_calibrate("confirm plan.json --margin 138GiB",
                                          {.device = "h200", .log = true, .folder = plan.folder});
  CHECK(run.code == 1);
  CHECK(has(run.out, "larger than the card, with a margin of 138.0 GiB; nothing was allocated"));
  CHECK(has(run.out, "CUDA out of memory. Tried to allocate"));
  CHECK_FALSE(has(run.log, "cudaMalloc 2"));  // no segment
  const ProgramResult refused = run_calibrate("confirm plan.json --margin 138GiB --json",
                                              {.device = "h200", .folder = plan.folder});
  CHECK(refused.code == 1);
  rapidjson::Document json;
  json.Parse(refused.out.c_str());
  REQUIRE_FALSE(json.HasParseError());
  CHECK_FALSE(json["confirmed"].GetBool());
  CHECK(has(json["refused"].GetString(), "CUDA out of memory. Tried to allocate"));
  const ProgramResult nothing =
      run_calibrate("confirm plan.json --margin 200GiB", {.device = "h200", .folder = plan.folder});
  CHECK(nothing.code == 1);
  CHECK(has(nothing.out, "less what is in use and the margin, is nothing"));
  CHECK(has(run.log, "left 0 allocations"));
}

TEST_CASE("confirm, smoke and run: --json is JSON where nothing is done, too") {
  const PlanFolder plan(gpt2);
  const auto json_of = [&](const std::string& command, int code) {
    const ProgramResult said = run_calibrate(command + " --json", {.folder = plan.folder});
    CHECK(said.code == code);
    rapidjson::Document json;
    json.Parse(said.out.c_str());
    REQUIRE_FALSE(json.HasParseError());
    return json;
  };
  const auto dry = json_of("confirm plan.json --dry-run", 0);
  CHECK(dry["gpus"][0]["storages"].GetInt64() > 0);
  CHECK(dry["gpus"][0]["device_bytes"].GetInt64() > 0);
  CHECK(json_of("smoke plan.json --dry-run", 0)["operators"].Size() > 5);
  for (const char* command : {"confirm plan.json", "smoke plan.json", "run --quick"}) {
    CHECK(json_of(command, 4).HasMember("waived"));
  }
  CHECK(json_of("confirm nothing.json", 2)["errors"].Size() == 1);
}

TEST_CASE("confirm, smoke and run: what needs a library that is missing is waived") {
  const PlanFolder plan(gpt2);
  const auto without = [&](const char* libraries, const std::string& arguments) {
    return run_calibrate(
        arguments, {.device = std::string("2xh200"), .without = libraries, .folder = plan.folder});
  };
  for (const char* command : {"confirm plan.json", "smoke plan.json"}) {
    CAPTURE(command);
    const ProgramResult waived = without("cuBLAS", command);
    CHECK(waived.code == 4);
    CHECK(has(waived.err, "waived: cuBLAS is not there"));
    CHECK(without("NCCL", command).code == 0);  // one rank
  }
  const ProgramResult run =
      without("cuBLASLt,NCCL", "run --quick --only gemm-fp8 collective communicator context");
  CHECK(run.code == 0);
  CHECK(has(run.out, "waived gemm-fp8: cuBLASLt is not there"));
  CHECK(has(run.out, "waived collective: NCCL is not there"));
  CHECK(has(without("NCCL", "list").out, "waived: NCCL is not there"));
  const PairFolder pair;
  const ProgramResult two = run_calibrate(
      "confirm plan.json", {.device = "2xh200", .without = "NCCL", .folder = pair.folder});
  CHECK(two.code == 4);
}

TEST_CASE("confirm: two ranks exchange through NCCL, a device each") {
  const PairFolder pair;
  const ProgramResult run =
      run_calibrate("confirm plan.json", {.device = "2xh200", .log = true, .folder = pair.folder});
  CHECK(run.code == 0);
  CHECK(has(run.out, "rank 1 on device 1"));
  CHECK(has(run.out, "in 1 collectives"));
  CHECK(has(run.out, "imbalance: the slowest rank's step"));
  CHECK(has(run.log, "0 ncclAllReduce 8388608"));
  CHECK(has(run.log, "1 ncclAllReduce 8388608"));
  CHECK(has(run.log, "left 0 allocations, 0 bytes, 0 streams, 0 events"));
  const ProgramResult alone =
      run_calibrate("confirm plan.json", {.device = "h200", .folder = pair.folder});
  CHECK(alone.code == 4);
  CHECK(has(alone.err, "waived: the option needs 2 devices, 1 is here"));
}

TEST_CASE("confirm: a lost link ends both ranks, in time, with nothing left") {
  const PairFolder pair;
  const ProgramResult hung = run_calibrate(
      "confirm plan.json --gpu-budget 1s",
      {.device = "2xh200", .log = true, .hang = "ncclAllReduce:3", .folder = pair.folder});
  CHECK(hung.code == 1);
  const std::string lost = "an exchange does not come to an end: a link or a rank is lost";
  CHECK(has(hung.out, lost));
  // The other rank ends because of it, or has waited as long itself.
  const std::size_t first = hung.out.find(lost);
  const bool both =
      first != std::string::npos && hung.out.find(lost, first + 1) != std::string::npos;
  CHECK((both || has(hung.out, "another rank failed")));
  CHECK(has(hung.log, "ncclCommAbort"));
  CHECK(has(hung.log, "left 0 allocations, 0 bytes, 0 streams, 0 events"));
  // NCCL notices by itself.
  const ProgramResult noticed =
      run_calibrate("confirm plan.json --gpu-budget 20s", {.device = "2xh200",
                                                           .fail = "ncclCommGetAsyncError:1:6",
                                                           .hang = "ncclAllReduce:3",
                                                           .folder = pair.folder});
  CHECK(noticed.code == 1);
  CHECK(has(noticed.out, "NCCL lost the exchange: remote process exited"));
}

TEST_CASE("confirm: a rank that never comes to the exchange ends the process, in time") {
  const PairFolder pair;
  const ProgramResult run =
      run_calibrate("confirm plan.json --gpu-budget 1s",
                    {.device = "2xh200", .hang = "ncclCommInitRank:2", .folder = pair.folder});
  CHECK(run.code == 1);
  CHECK(has(run.err, "1 of 2 ranks do not come back from the driver or NCCL"));
}

TEST_CASE("confirm: NCCL without room for its connections is named, and everything goes back") {
  const PairFolder pair;
  const ProgramResult run = run_calibrate(
      "confirm plan.json --gpu-budget 4s",
      {.device = "2xh200", .log = true, .fail = "ncclAllReduce:1:1:9", .folder = pair.folder});
  CHECK(run.code == 1);
  CHECK(has(run.out, "in step 1, at all_reduce model.layers.0: ncclAllReduce: NCCL error"));
  CHECK(has(run.out, "everything was given back"));
  CHECK(has(run.log, "left 0 allocations, 0 bytes, 0 streams, 0 events"));
}

#endif
