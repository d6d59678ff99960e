#pragma once
// One run of benchmarks on one device: what each of them needs, and how time is taken.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/benchmarks.h"
#include "calibrate/gpu/nvml.h"
#include "calibrate/gpu/objects.h"
#include "calibrate/reading.h"

namespace shardfit::calibrate {

/// A host clock that only goes forward, in seconds.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// How the second-level cache is found by a sample.
enum class Cache {
  cold,  // overwritten before each sample: as an operator finds data it has not just made
  warm   // left as the sample before left it
};

class Session {
 public:
  Session(const Machine& machine, const RunOptions& options, Findings& findings);

  const RunOptions& options() const { return options_; }
  const DeviceFacts& facts() const { return facts_; }
  int devices() const { return static_cast<int>(machine_.devices.size()); }
  const Nvml& nvml() const { return nvml_; }
  void* nvml_device() const { return nvml_device_; }
  cudaStream_t stream() const { return *stream_; }

  /// The row whose run() is called next; its cases.
  void begin(const Benchmark& row);
  const std::vector<Case>& cases() const { return cases_; }
  /// The cases that fit beside the margin while there is time; the others are noted as waived.
  bool room_for(const Case& c);
  /// Whether the time of --quick is used up.
  bool late() const { return options_.quick && now() - begun_ > quick_seconds; }
  static constexpr double quick_seconds = 100;  // of the two minutes `run --quick` may take

  void add(const std::string& name, Unit unit, const Summary& value, const std::string& method,
           double work = 0);
  void add_once(const std::string& name, Unit unit, double value, const std::string& method);
  void waive(const std::string& reason);

  /// Seconds of one call of `work`, which queues on the stream given: after two calls to warm up,
  /// samples between two events until the stopping rule says enough. The work is queued behind a
  /// kernel that keeps the device busy meanwhile, so that the host's own time is not in it. Each
  /// sample is one call with cold caches; with warm ones as many as take some 50 microseconds.
  Summary time(const std::function<void(cudaStream_t)>& work, Cache cache);
  /// Between two events on a stream of the current device, one call a sample; `finish` is called
  /// after each, before the next: for work on several devices at once.
  Summary time_events(
      cudaStream_t stream, const std::function<void()>& work,
      const std::function<void()>& finish = [] {});
  /// By the host's clock, for what has to be waited for.
  Summary time_host(const std::function<void()>& work_to_its_end);

 private:
  void flush(cudaStream_t stream);
  /// Two calls to warm up, then samples until the rule says enough.
  Summary sampled(const std::function<double()>& sample);

  const Machine& machine_;
  const RunOptions& options_;
  const DeviceFacts& facts_;
  Findings& findings_;
  Nvml nvml_;
  void* nvml_device_ = nullptr;
  const Benchmark* row_ = nullptr;
  std::vector<Case> cases_;
  std::optional<Stream> stream_;
  Buffer flush_;
  double begun_ = now();
};

/// PCI bus id of a device, as NVML knows it.
std::string bus_id(int device);

/// Whether a kernel writes what it should: false on a runtime that accepts kernels and runs none.
bool kernels_run();

}  // namespace shardfit::calibrate
