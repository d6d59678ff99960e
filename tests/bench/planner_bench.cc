// Llama-3.1-70B (as Llama-3-70B), full fine-tune, load and three steps: lowering, and the memory
// clock with the allocator, against a bare loop that touches each instruction once. Usage:
// planner_bench [MODEL]

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>

#include "program/training.h"
#include "run/memory_clock.h"
#include "run/run.h"
#include "run/time_clock.h"
#include "spec/cluster_spec.h"

namespace {

/// CPU time of this thread: another program on the same core does not count.
double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

/// The best of several runs: what the machine does when nothing else is in the way.
double best_ms(int runs, const std::function<void()>& body) {
  double best = 1e300;
  for (int i = 0; i < runs; ++i) {
    const double start = cpu_ms();
    body();
    best = std::min(best, cpu_ms() - start);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model =
      argc > 1 ? argv[1]
               : std::string(SHARDFIT_SOURCE_DIR) + "/model_specs/models/llama-3.1-70b.yaml";
  const double start = cpu_ms();
  const shardfit::program::Lowering lowering(shardfit::spec::read_model(model), "plain-pytorch");
  const double read = cpu_ms() - start;
  shardfit::program::TrainingJob job;
  job.sequence = 4096;
  shardfit::Program program;
  const double lower = best_ms(20, [&] { program = lowering.lower(job); });
  std::vector<shardfit::run::RequestedPeak> peaks;
  const double memory = best_ms(20, [&] { peaks = shardfit::run::requested_peaks(program); });
  shardfit::run::RunResult result;
  const double clock = best_ms(20, [&] { result = shardfit::run::run_program(program, {}); });
  job.record_computes = true;
  shardfit::Program timed;
  const double record = best_ms(20, [&] { timed = lowering.lower(job); });
  shardfit::Diagnostics faults;
  shardfit::spec::DeviceCatalog devices(SHARDFIT_SOURCE_DIR "/model_specs/devices");
  shardfit::spec::ClusterSpec cluster;
  cluster.device = *devices.find("h200", faults);
  const shardfit::run::Machine machine = shardfit::run::machine_of(cluster);
  const shardfit::run::RankProgram rank{&timed, {}};
  double seconds = 0;
  const double play = best_ms(20, [&] {
    seconds = shardfit::run::run_time({&rank, 1}, machine).step_seconds;
  });
  std::int64_t sum = 0;
  const double bare = best_ms(20, [&] {
    for (const shardfit::Instruction& i : program.instructions) {
      sum += i.action == shardfit::Action::allocate ? program.storages[i.id].bytes : i.id;
    }
  });
  const auto events = static_cast<double>(program.instructions.size());
  std::printf("model                %s, %.0f instructions, peak %lld bytes (%lld)\n",
              lowering.model().name.c_str(), events, static_cast<long long>(result.allocated_peak),
              static_cast<long long>(sum % 2));
  std::printf("read model, family   %8.3f ms\n", read);
  std::printf("lower                %8.3f ms  %6.1f ns an instruction\n", lower,
              1e6 * lower / events);
  std::printf("memory clock         %8.3f ms  %6.1f ns an instruction\n", memory,
              1e6 * memory / events);
  std::printf("allocator            %8.3f ms  %6.1f ns an instruction\n", clock,
              1e6 * clock / events);
  std::printf("lower, with operators%7.3f ms\n", record);
  std::printf("time clock           %8.3f ms  a step of %.2f s on h200\n", play, seconds);
  std::printf("bare loop            %8.3f ms\n", bare);
  std::printf("ratio clock / bare   %8.1f\n", memory / bare);
  std::printf("all three            %8.3f ms\n", lower + memory + clock);
}
