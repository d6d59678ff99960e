// The program shardfit-calibrate itself: without a card, and on the stand-in runtime.
#include <doctest/doctest.h>

#include <rapidjson/document.h>

#include <algorithm>

#include "calibrate/benchmarks.h"
#include "calibrate_support.h"
#include "support.h"

using namespace shardfit::test;
using namespace shardfit::calibrate;

TEST_CASE("calibrate: without a card everything is listed, and waived for a reason") {
  const ProgramResult list = run_calibrate("list", {.device = ""});
  CHECK(list.code == 0);
  CHECK(list.out.find("device-copy") != std::string::npos);
  CHECK(list.out.find("all waived here: " + why_waived) != std::string::npos);
  for (const std::string& text :
       {list.out, run_calibrate("run --dry-run --on 2xb200", {.device = ""}).out}) {
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      CHECK(text.find('\n', at) - at <= 80);
    }
  }
  const ProgramResult run = run_calibrate("run", {.device = ""});
  CHECK(run.code == 4);
  CHECK(run.out == "");
  CHECK(run.err.find("waived: " + why_waived) == 0);
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
  const ProgramResult command = run_calibrate("smok", {.device = ""});
  CHECK(command.code == 2);
  CHECK(command.err.find("did you mean 'smoke'?") != std::string::npos);
  CHECK(run_calibrate("run --device -1", {.device = ""}).code == 2);
  CHECK(run_calibrate("run --on h2000 --dry-run", {.device = ""}).code == 2);
}

TEST_CASE("calibrate: without its CUDA part the program lists, plans, and says what is missing") {
  const auto run = [](const std::string& arguments) {
    return shell(SHARDFIT_BINARY_DIR "/shardfit-calibrate-without-cuda " + arguments);
  };
  const ProgramResult list = run("list");
  CHECK(list.code == 0);
  CHECK(list.out.find("device-copy") != std::string::npos);
  CHECK(list.out.find("all waived here: this program has no CUDA part: ") != std::string::npos);
  const ProgramResult measured = run("run --quick");
  CHECK(measured.code == 4);
  CHECK(measured.err.find("waived: this program has no CUDA part: ") == 0);
  const ProgramResult dry = run("run --quick --dry-run --on 2xb200");
  CHECK(dry.code == 0);
  CHECK(dry.out.find("waived here: this program has no CUDA part: ") == 0);
  CHECK(dry.out.find("would run on 2 x B200-SXM 180GB") != std::string::npos);
  CHECK(run("confirm nowhere.json").code == 2);
}

TEST_CASE("calibrate: which compilers its CUDA part is built with, and why not with others") {
  // nvcc as a script that tells a version; the library beside it is an empty file.
  const auto answer = [](const std::string& words, const std::string& more = "") {
    const TemporaryFile nvcc("#!/bin/sh\necho '" + words + "'\n", "nvcc");
    const std::string script =
        "chmod +x " + nvcc.path + "; printf '%s' '" + more + "set(SHARDFIT_NVCC \"" + nvcc.path +
        "\")\ninclude(\"" SHARDFIT_SOURCE_DIR
        "/calibrate/cuda.cmake\")\n"
        "message(STATUS \"${SHARDFIT_CUDA}: ${SHARDFIT_NO_CUDA_BECAUSE}\")' > s.cmake; cmake -P "
        "s.cmake";
    return shell(script).out;
  };
  CHECK(answer("Cuda compilation tools, release 12.4, V12.4.131") ==
        "-- OFF: nvcc was 12.4 when it was built, and sm_100 needs 12.8 or newer\n");
  CHECK(answer("Cuda compilation tools, release 9.2, V9.2.88").find("nvcc was 9.2") !=
        std::string::npos);
  CHECK(answer("cannot say").find("did not tell its version") != std::string::npos);
  CHECK(answer("Cuda compilation tools, release 12.8, V12.8.61").find("had no libcudart") !=
        std::string::npos);
  CHECK(answer("release 13.0", "set(SHARDFIT_WITH_CUDA OFF)\n") ==
        "-- OFF: it was built with SHARDFIT_WITH_CUDA=OFF\n");
  CHECK(answer("release 13.0", "set(PATH none)\n").find("had no libcudart") != std::string::npos);
}

TEST_CASE("calibrate: a quick run takes at most two minutes by its own reckoning") {
  for (const char* on : {"h200", "2xh200", "2xb200", "a100-80", "8xh200", "8xb200"}) {
    CAPTURE(on);
    const ProgramResult dry =
        run_calibrate(std::string("run --quick --dry-run --json --on ") + on, {.device = ""});
    rapidjson::Document json;
    json.Parse(dry.out.c_str());
    REQUIRE_FALSE(json.HasParseError());
    CHECK(json["seconds"].GetDouble() > 5);
    CHECK(json["seconds"].GetDouble() <= 120);
    std::int64_t most = 0;
    for (const auto& row : json["benchmarks"].GetArray()) {
      most = std::max(most, row["bytes"].GetInt64());
    }
    CHECK(most > std::int64_t{70} << 30);  // the largest allocation is all that is free
  }
}

TEST_CASE("calibrate: exchanges are timed from 1 KiB to 1 GiB, on every pair and on all") {
  RunOptions options;
  const std::vector<Case> cases = collective_cases({}, 3, options);
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}) {
    for (const auto& [a, b] : {std::pair{-1, -1}, {0, 1}, {0, 2}, {1, 2}}) {
      CAPTURE(kind);
      std::int64_t least = std::int64_t{1} << 40, most = 0;
      for (const Case& c : cases) {
        if (c.kind != kind || c.from != a || c.to != b) continue;
        least = std::min(least, c.bytes);
        most = std::max(most, c.bytes);
      }
      CHECK(least == 1 << 10);
      CHECK(most == 1 << 30);
    }
  }
}

TEST_CASE("calibrate: output that cannot be written is told, and is no success") {
  const ProgramResult full = run_calibrate("list > /dev/full", {});
  CHECK(full.code == 2);
  CHECK(full.err == "shardfit calibrate: the output could not be written: is the disk full?\n");
  CHECK(run_calibrate("list | head -n 1", {}).err == "");
}

#ifdef SHARDFIT_CUDA

TEST_CASE("calibrate: ended with the shardfit that started it") {
  // Only that one is told to end, as `kill` does it.
  const ProgramResult run = shell(
      "export ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 "
      "SHARDFIT_STAND_IN_HANG=cudaEventRecord:1; " SHARDFIT_BINARY_DIR
      "/shardfit-stand-in h200 " SHARDFIT_BINARY_DIR
      "/shardfit calibrate run --profile $PWD/only-here.yaml >said 2>&1 & "
      "all() { ps ax -o args | grep -c \"[s]hardfit-calibrate.*$PWD/only-here\"; }; "
      "for n in $(seq 100); do [ $(all) = 1 ] && break; sleep 0.05; done; all; kill $!; wait $!; "
      "for n in $(seq 100); do [ $(all) = 0 ] && break; sleep 0.05; done; all");
  CHECK(run.out == "1\n0\n");
}

TEST_CASE("calibrate: the context is measured where NVML does not know the process, too") {
  const ProgramResult known = run_calibrate("run --only context --json", {.device = "h200"});
  const ProgramResult unknown = run_calibrate(
      "run --only context --json", {.device = "h200", .fail = "nvmlProcesses:1:3:1000000"});
  CHECK(unknown.code == 0);
  const double context = reading(unknown.out, "context", "context of this process", "bytes");
  CHECK(context == 640.0 * (1 << 20));  // model_specs/runtime.yaml, the middle
  CHECK(reading(known.out, "context", "context of this process", "bytes") >= context);
  CHECK(unknown.out.find("NVML's bytes in use after the context was made less before") !=
        std::string::npos);
}

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
