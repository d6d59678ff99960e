// Every row of tests/data/solver/anchors.tsv: our optimum beside the published one, CPU seconds
// after reading beside the other solver's. Prints a Markdown table.
//
//   partition_bench [FOLDER]     FOLDER: as tests/data/solver; default that one

#include <algorithm>
#include <cstdio>
#include <functional>

#include "../anchors.h"
#include "partition/offsets.h"
#include "partition/partition.h"
#include "partition/piper.h"
#include "partition/problem.h"
#include "spec/reader.h"

using namespace shardfit;
using namespace shardfit::partition;

namespace {

struct Outcome {
  double objective = 0, gap = 0;
  bool proven = false;
};

/// Median CPU seconds of five runs; one where a run takes long.
double timed(const std::function<Outcome()>& solve, Outcome* outcome) {
  std::vector<double> seconds;
  while (seconds.size() < 5) {
    const double start = cpu_seconds();
    *outcome = solve();
    seconds.push_back(cpu_seconds() - start);
    if (seconds.back() > 1) return seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[2];
}

double run_placement(const test::Anchor& a, const std::string& path, Outcome* outcome) {
  const PlacementInstance p = read_placement(spec::read_source(path));
  return timed(
      [&] {
        double bytes = 0;
        for (const PlacementInstance::Node& n : p.nodes) bytes += n.bytes;
        std::vector<DeviceClass> devices{
            {"GPU", 2, false, 1, bytes * (a.cap == "loose" ? 2 : 0.55), true}};
        if (a.devices != "2")
          devices = {{"GPU", p.accelerators, false, 1, p.accelerator_bytes, true},
                     {"CPU", p.cpus, true, 1, infinity, false}};
        const PartitionResult r = solve_partition(raw_graph(p), devices, {});
        return Outcome{r.objective_ms, r.gap, r.proven};
      },
      outcome);
}

double run_profile(const std::string& path, Outcome* outcome) {
  const ProfileInstance p = read_profile(spec::read_source(path));
  return timed(
      [&] {
        PartitionOptions options;
        options.limit_last_part = false;
        const PartitionResult r = solve_partition(raw_graph(without_inputs(p)),
                                                  {{"GPU", 2, false, 1, 16e9, true}}, options);
        return Outcome{r.objective_ms * 1e-3, r.gap, r.proven};
      },
      outcome);
}

/// Caps read "80GiB,25GiB/s,N=8".
double run_piper(const test::Anchor& a, const std::string& path, Outcome* outcome) {
  PiperInstance p = read_piper(spec::read_source(path));
  double gib = 0, rate = 0;
  if (std::sscanf(a.cap.c_str(), "%lfGiB,%lfGiB/s,N=%d", &gib, &rate, &p.microbatches) != 3)
    std::fprintf(stderr, "partition_bench: cannot read the cap '%s'\n", a.cap.c_str());
  p.devices = std::atoi(a.devices.c_str());
  p.device_bytes = gib * (1 << 30);
  p.bandwidth = rate * (1 << 30);
  return timed(
      [&] {
        const PiperResult r = solve_piper(p, {});
        return Outcome{r.objective, r.gap, r.proven};
      },
      outcome);
}

double run_buffers(const std::string& path, Outcome* outcome) {
  const BufferInstance b = read_buffers(spec::read_source(path));
  return timed(
      [&] {
        const OffsetResult r = assign_offsets(b, {});
        return Outcome{static_cast<double>(r.peak), r.gap, r.proven};
      },
      outcome);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder =
      argc > 1 ? argv[1] : std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/solver";
  std::printf(
      "| instance | GPUs | memory | ours | published | gap | CPU s | theirs s | ratio |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const test::Anchor& a : test::read_anchors(folder)) {
    const std::string path = folder + "/" + test::file_of(a);
    Outcome o;
    double seconds = 0;
    if (a.set == "dnn-partitioning") seconds = run_placement(a, path, &o);
    if (a.set == "pipedream") seconds = run_profile(path, &o);
    if (a.set == "piper") seconds = run_piper(a, path, &o);
    if (a.set == "minimalloc") seconds = run_buffers(path, &o);
    char* end = nullptr;
    const double theirs = std::strtod(a.peer_cpu.c_str(), &end);
    const bool timed_there = end != a.peer_cpu.c_str() && *end == '\0';
    std::string ratio = timed_there ? test::digits_of(theirs / seconds, 3) : "";
    std::printf("| %s %s | %s | %s | %s | %s | %s | %.6f | %s | %s |\n", a.set.c_str(),
                a.instance.c_str(), a.devices.c_str(), a.cap.c_str(),
                test::digits_of(o.objective, a.digits > 0 ? a.digits : 9).c_str(),
                a.optimum.empty() ? "none" : a.optimum.c_str(),
                o.proven ? "0, proven" : test::digits_of(o.gap, 3).c_str(), seconds,
                a.peer_cpu.c_str(), ratio.c_str());
    std::fflush(stdout);
  }
  return 0;
}
