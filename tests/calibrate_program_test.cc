// The program shardfit-calibrate itself: without a card, and on the stand-in runtime.
#include <doctest/doctest.h>

#include "calibrate_support.h"

using namespace shardfit::test;

TEST_CASE("calibrate: without a card everything is listed, and waived for a reason") {
  const ProgramResult list = run_calibrate("list", {.device = ""});
  CHECK(list.code == 0);
  CHECK(list.out.find("device-copy") != std::string::npos);
  CHECK(list.out.find("all waived here: no CUDA device") != std::string::npos);
  const ProgramResult run = run_calibrate("run", {.device = ""});
  CHECK(run.code == 4);
  CHECK(run.out == "");
  CHECK(run.err.find("waived: no CUDA device") == 0);
}

TEST_CASE("calibrate: a dry run says bytes and seconds for a device that is not there") {
  const ProgramResult dry = run_calibrate("run --quick --dry-run --on 2xb200", {.device = ""});
  CHECK(dry.code == 0);
  CHECK(dry.out.find("would run on 2 x B200-SXM 180GB") != std::string::npos);
  CHECK(dry.out.find("gemm-plan       waived: no --plan") != std::string::npos);
  const ProgramResult one = run_calibrate("run --dry-run --on h200", {.device = ""});
  CHECK(one.out.find("peer-copy       waived: needs 2 devices, 1 is there") != std::string::npos);
  const ProgramResult old = run_calibrate("run --dry-run --on a100-80", {.device = ""});
  CHECK(old.out.find("compute capability 8.0 has no fp8") != std::string::npos);
}

TEST_CASE("calibrate: what cannot be meant is refused with what could") {
  const ProgramResult name = run_calibrate("run --only device-cpy", {.device = ""});
  CHECK(name.code == 2);
  CHECK(name.err.find("did you mean 'device-copy'?") != std::string::npos);
  CHECK(run_calibrate("run --margin 5 --dry-run", {.device = ""}).code == 2);
  CHECK(run_calibrate("measure", {.device = ""}).code == 2);
  CHECK(run_calibrate("run --on h2000 --dry-run", {.device = ""}).code == 2);
}

#ifdef SHARDFIT_CUDA

TEST_CASE("calibrate: on the stand-in every row runs or says why not, and nothing is left behind") {
  const ProgramResult run = run_calibrate("run --quick", {.device = "2xh200", .log = true});
  CHECK(run.code == 0);
  CHECK(run.out.find("ON A STAND-IN RUNTIME WITHOUT A CARD") == 0);
  for (const char* row : {"context", "granularity", "communicator", "peer-copy", "collective"}) {
    CAPTURE(row);
    CHECK(run.out.find(std::string("\n") + row + "\n") != std::string::npos);
  }
  CHECK(run.log.find("left 0 allocations, 0 bytes, 0 streams, 0 events, 0 graphs") !=
        std::string::npos);
}

TEST_CASE("calibrate: fits give back the rates the stand-in reckons with") {
  const ProgramResult run = run_calibrate(
      "run --only device-copy host-copy peer-copy collective --json", {.device = "2xh200"});
  REQUIRE(run.code == 0);
  const auto near = [&](const char* benchmark, const char* name, const char* unit, double value) {
    CAPTURE(name);
    CHECK(reading(run.out, benchmark, name, unit) == doctest::Approx(value).epsilon(1e-3));
  };
  // model_specs/devices/h200.yaml: 4800 GB/s, 450 GB/s; latencies as stand_in/runtime.cc has them.
  near("device-copy", "copy bandwidth", "bytes_per_second", 4.8e12);
  near("device-copy", "copy latency", "seconds", 3e-6);
  near("host-copy", "pinned to device bandwidth", "bytes_per_second", 5e10);
  near("peer-copy", "1 to 0, peer access bandwidth", "bytes_per_second", 4.5e11);
  near("collective", "all_reduce all 2 bandwidth", "bytes_per_second", 4.5e11);
  near("collective", "all_reduce all 2 latency", "seconds", 8e-6);
}

TEST_CASE("calibrate: without peer access those copies are waived and the others run") {
  const ProgramResult run =
      run_calibrate("run --quick --only peer-copy", {.device = "2xh200 no-peer"});
  CHECK(run.code == 0);
  CHECK(run.out.find("waived peer-copy: 0 to 1: the devices have no peer access") !=
        std::string::npos);
  CHECK(run.out.find("0 to 1, through the host bandwidth") != std::string::npos);
  CHECK(run.out.find(", peer access bandwidth") == std::string::npos);
}

TEST_CASE("calibrate: a failing call is named, the other rows still run, nothing is left behind") {
  const ProgramResult run =
      run_calibrate("run --quick --only pool launch",
                    {.device = "h200", .log = true, .fail = "cudaMallocFromPoolAsync:5:2"});
  CHECK(run.code == 1);
  CHECK(run.out.find("FAILED pool: pool.cc:") != std::string::npos);
  CHECK(run.out.find("cudaMallocFromPoolAsync") != std::string::npos);
  CHECK(run.out.find("cudaErrorMemoryAllocation (out of memory)") != std::string::npos);
  CHECK(run.out.find("kernel in a graph") != std::string::npos);
}

TEST_CASE("calibrate: a device that does not answer any more ends the run") {
  const ProgramResult run = run_calibrate("run --quick --only device-copy gemm",
                                          {.device = "h200", .fail = "cudaLaunchKernel:9:700"});
  CHECK(run.code == 1);
  CHECK(run.out.find("FAILED device-copy") != std::string::npos);
  CHECK(run.out.find("FAILED the rest: the device does not answer any more") != std::string::npos);
  CHECK(run.out.find("\ngemm\n") == std::string::npos);
}

TEST_CASE("calibrate: a throttled sample is dropped and counted") {
  const ProgramResult run =
      run_calibrate("run --quick --only memory-bound",
                    {.device = "h200", .fail = "nvmlThrottleReasons:3:64"});  // thermal slowdown
  CHECK(run.out.find("of 5, 1 throttled") != std::string::npos);
}

TEST_CASE("calibrate: the stand-in answers every runtime call the program makes") {
  // A call it lacks would reach the real runtime, which has no card here.
  const ProgramResult missing =
      shell("nm -D --undefined-only " SHARDFIT_BINARY_DIR
            "/shardfit-calibrate | sed 's/@.*//' | "
            "awk '/ U _*cuda/{print $2}' | sort > wanted; "
            "nm -D --defined-only " SHARDFIT_BINARY_DIR
            "/calibrate/libshardfit_stand_in.so | "
            "awk '{print $3}' | sort > there; wc -l < wanted; comm -23 wanted there");
  CHECK(std::atoi(missing.out.c_str()) > 40);
  CHECK(missing.out.find("cuda") == std::string::npos);
}

#endif
