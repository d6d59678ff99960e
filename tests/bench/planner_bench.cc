// Llama-3-70B, full fine-tune, load and three steps: lowering, and the memory clock with the allocator,
// against a bare loop that touches each instruction once. Usage: planner_bench [MODEL]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>

#include "program/training.h"
#include "run/run.h"

namespace {

using Clock = std::chrono::steady_clock;

/// The best of several runs: what the machine does when nothing else is in the way.
double best_ms(int runs, const std::function<void()>& body) {
  double best = 1e300;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model =
      argc > 1 ? argv[1] : std::string(SHARDFIT_SOURCE_DIR) + "/model_specs/models/llama-3-70b.yaml";
  const auto start = Clock::now();
  const shardfit::program::Lowering lowering(shardfit::spec::read_model(model), "plain-pytorch");
  const double read =
      std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  shardfit::program::TrainingJob job;
  job.sequence = 4096;
  shardfit::Program program;
  const double lower = best_ms(20, [&] { program = lowering.lower(job); });
  shardfit::run::RunResult result;
  const double clock = best_ms(20, [&] { result = shardfit::run::run_program(program, {}); });
  std::int64_t sum = 0;
  const double bare = best_ms(20, [&] {
    for (const shardfit::Instruction& i : program.instructions) {
      sum += i.action == shardfit::Action::allocate ? program.storages[i.id].bytes : i.id;
    }
  });
  const auto events = static_cast<double>(program.instructions.size());
  std::printf("model                %s, %.0f instructions, peak %lld bytes (%lld)\n",
              lowering.model().name.c_str(), events,
              static_cast<long long>(result.allocated_peak), static_cast<long long>(sum % 2));
  std::printf("read model, family   %8.3f ms\n", read);
  std::printf("lower                %8.3f ms  %6.1f ns an instruction\n", lower, 1e6 * lower / events);
  std::printf("clock and allocator  %8.3f ms  %6.1f ns an instruction\n", clock, 1e6 * clock / events);
  std::printf("bare loop            %8.3f ms\n", bare);
  std::printf("ratio clock / bare   %8.1f\n", clock / bare);
  std::printf("lower + clock        %8.3f ms\n", lower + clock);
}
