// Programs as files: what is written reads back the same, and what is not of the form is refused.
#include <doctest/doctest.h>

#include <random>
#include <sstream>

#include "program/training.h"
#include "run/program_file.h"
#include "run/run.h"
#include "spec/data_directory.h"
#include "support.h"

using namespace shardfit;

namespace {

Program small_program() {
  program::TrainingJob job;
  job.micro_batch = 2;
  job.sequence = 32;
  job.record_computes = true;
  const program::Lowering lowering(
      spec::read_model(SHARDFIT_SOURCE_DIR "/tests/data/models/gpt2.json"), job.framework);
  return lowering.lower(job);
}

std::string written(const Program& program) {
  std::ostringstream out;
  run::write_program(program, "h200", out);
  return out.str();
}

/// A program with one of everything.
const char* const tiny =
    "shardfit-program 1\n"
    "option 2xh200\n"
    "rank 1\n"
    "parameters 10 5\n"
    "stream compute\n"
    "stream reduce\n"
    "group 0 1\n"
    "module -\n"
    "module model.layers.0\n"
    "kind mm\n"
    "storage 4096 parameters 0 0 1 0\n"
    "compute 0 1 1 bf16 2e+09 12345 16 32 64 1\n"
    "collective all_reduce fp32 4096 0 -1 1 1\n"
    "phase forward 1 0\n"
    "events 1\n"
    "run\n"
    "a 0 0\nc 0 0\nv 0 0\nw 0 1\nx 0 1\nh 0 0\ns 0 1\nf 0 0\np 0 0\ne 0 0\nr 0 0\n"
    "end\n";

}  // namespace

TEST_CASE("program file: a training program reads back the same, and runs the same") {
  const Program program = small_program();
  REQUIRE(program.computes.size() > 100);
  const std::string text = written(program);
  const run::ProgramFile file = run::read_program(test::source(text, "p"));
  CHECK(file.option == "h200");
  CHECK(written(file.program) == text);
  CHECK(file.program.storages.size() == program.storages.size());
  const run::RunResult before = run::run_program(program, {});
  const run::RunResult after = run::run_program(file.program, {});
  CHECK(before.allocated_peak > 0);
  CHECK(after.allocated_peak == before.allocated_peak);
  CHECK(after.reserved_peak == before.reserved_peak);
  CHECK(after.phases.size() == before.phases.size());
}

TEST_CASE("program file: one of everything reads back the same") {
  const run::ProgramFile file = run::read_program(test::source(tiny, "p"));
  const Program& p = file.program;
  CHECK(p.rank == 1);
  CHECK(p.groups == std::vector<std::vector<std::int32_t>>{{0, 1}});
  CHECK(p.modules[0] == "");
  CHECK(p.storages[0].kind == std::string("mm"));
  CHECK(p.computes[0].k == 64);
  CHECK(p.computes[0].flops == 2e9);
  CHECK(p.instructions[4].action == Action::collective);
  CHECK(p.instructions[4].stream == 1);
  std::ostringstream out;
  run::write_program(p, file.option, out);
  CHECK(out.str() == tiny);
}

TEST_CASE("program file: a fault is told with its line") {
  const auto broken = [](const std::string& from, const std::string& to) {
    std::string text = tiny;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    return test::errors_of([&] { run::read_program(test::source(text, "p")); });
  };
  CHECK(broken("shardfit-program 1", "shardfit-program 2").find("p:1:") == 0);
  CHECK(broken("a 0 0", "a 1 0").find("p:17:3: error: there is no storage") == 0);
  CHECK(broken("f 0 0", "a 0 0").find("the storage is alive already") != std::string::npos);
  CHECK(broken("a 0 0", "f 0 0").find("the storage is not alive") != std::string::npos);
  CHECK(broken("w 0 1", "w 0 2").find("there is no stream") != std::string::npos);
  CHECK(broken("x 0 1", "x 0 1 1").find("more words") != std::string::npos);
  CHECK(broken("x 0 1", "x 0").find("ends too early") != std::string::npos);
  CHECK(broken("x 0 1", "y 0 1").find("unknown instruction 'y'") != std::string::npos);
  CHECK(broken("4096 parameters", "-1 parameters").find("expected a whole number") !=
        std::string::npos);
  CHECK(broken("parameters 0 0 1 0", "params 0 0 1 0").find("unknown category") !=
        std::string::npos);
  CHECK(broken("group 0 1", "group 1 1").find("ranks of a group ascend") != std::string::npos);
  CHECK(broken("end\n", "").find("the file ends before 'end'") != std::string::npos);
  CHECK(broken("end\n", "end\ne 0 0\n").find("expected nothing behind") != std::string::npos);
}

TEST_CASE("program file: no damage to the text does more than be refused") {
  const std::string good = tiny;
  for (unsigned seed = 1; seed <= test::fuzz_rounds(2000); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::string text = good;
    for (std::uint64_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % text.size();
      if (random() % 2) {
        text[at] = static_cast<char>("0123456789 -\nafx."[random() % 17]);
      } else {
        text.erase(at, 1 + random() % 4);
      }
    }
    try {
      const run::ProgramFile file = run::read_program(test::source(text, "p"));
      run::run_program(file.program, {});  // what was taken can be run
    } catch (const InputError&) {
    } catch (const std::invalid_argument&) {  // more bytes than any allocator takes
    }
  }
}
