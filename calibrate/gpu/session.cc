#include "calibrate/gpu/session.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"
#include "calibrate/gpu/kernels.h"
#include "calibrate/values.h"

namespace shardfit::calibrate {

namespace {
constexpr std::int64_t spin_cycles = 100'000;  // some 50 microseconds at 2 GHz
constexpr double shortest_sample = 50e-6;
constexpr int most_calls = 64;
}  // namespace

std::string bus_id(int device) {
  std::array<char, 32> text{};
  CUDA(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device));
  return text.data();
}

bool kernels_run() {
  constexpr std::int64_t count = 1024;
  const Buffer buffer(count * 4);
  std::vector<float> seen(count, 0);
  kernels::fill(buffer.data(), count, kernels::Element::f32, 7, nullptr);
  CUDA(cudaMemcpy(seen.data(), buffer.data(), count * 4, cudaMemcpyDeviceToHost));
  for (std::int64_t i = 0; i < count; ++i) {
    if (seen[static_cast<std::size_t>(i)] != value_at(7, i)) return false;
  }
  return true;
}

Session::Session(const Machine& machine, const RunOptions& options, Findings& findings)
    : machine_(machine),
      options_(options),
      facts_(machine.devices[static_cast<std::size_t>(options.device)]),
      findings_(findings) {
  CUDA(cudaSetDevice(options.device));
  stream_.emplace();
  nvml_device_ = nvml_.device(bus_id(options.device));
}

void Session::begin(const Benchmark& row) {
  row_ = &row;
  cases_ = row.cases(facts_, devices(), options_);
}

bool Session::room_for(const Case& c) {
  if (late()) {
    waive(c.name + ": the time of --quick is used up");
    return false;
  }
  if (c.footprint + options_.margin <= memory_info().free) return true;
  waive(c.name + ": " + format_bytes(Bytes(c.footprint)) + " and the margin of " +
        format_bytes(Bytes(options_.margin)) + " are not free");
  return false;
}

void Session::add(const std::string& name, Unit unit, const Summary& value,
                  const std::string& method, double work) {
  Reading reading;
  reading.benchmark = row_->name;
  reading.name = name;
  reading.unit = unit;
  reading.value = value;
  reading.method = method;
  reading.work = work;
  findings_.readings.push_back(std::move(reading));
}

void Session::add_once(const std::string& name, Unit unit, double value,
                       const std::string& method) {
  findings_.readings.push_back(once(row_->name, name, unit, value, method));
}

void Session::waive(const std::string& reason) { findings_.waived.push_back({row_->name, reason}); }

void Session::flush(cudaStream_t stream) {
  // Twice the cache, so that whatever its policy nothing of the sample before is left.
  const std::int64_t bytes = std::max<std::int64_t>(2 * facts_.l2_bytes, 64 << 20);
  if (!flush_.data()) flush_ = Buffer(bytes);
  kernels::write(flush_.data(), flush_.bytes(), stream);
}

Summary Session::time(const std::function<void(cudaStream_t)>& work, Cache cache) {
  const cudaStream_t stream = *stream_;
  const Event start, end;
  const auto sample = [&](int calls) {
    if (cache == Cache::cold) {
      flush(stream);
    } else {
      kernels::spin(spin_cycles, stream);
    }
    CUDA(cudaEventRecord(start, stream));
    for (int i = 0; i < calls; ++i) work(stream);
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaEventSynchronize(end));
    float milliseconds = 0;
    CUDA(cudaEventElapsedTime(&milliseconds, start, end));
    return static_cast<double>(milliseconds) * 1e-3 / calls;
  };
  sample(1);
  const double warmed = sample(1);
  int calls = 1;
  if (cache == Cache::warm && warmed < shortest_sample) {
    calls = std::clamp(static_cast<int>(shortest_sample / std::max(warmed, 1e-7)), 1, most_calls);
  }
  return sampled([&] { return sample(calls); });
}

Summary Session::time_events(cudaStream_t stream, const std::function<void()>& work,
                             const std::function<void()>& finish) {
  const Event start, end;
  return sampled([&] {
    CUDA(cudaEventRecord(start, stream));
    work();
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaEventSynchronize(end));
    finish();
    float milliseconds = 0;
    CUDA(cudaEventElapsedTime(&milliseconds, start, end));
    return static_cast<double>(milliseconds) * 1e-3;
  });
}

Summary Session::time_host(const std::function<void()>& work_to_its_end) {
  return sampled([&] {
    const double before = now();
    work_to_its_end();
    return now() - before;
  });
}

Summary Session::sampled(const std::function<double()>& sample) {
  sample();
  sample();
  StoppingRule rule(limits_of_case(options_));
  const double from = now();
  do {
    const double seconds = sample();
    rule.add(seconds, nvml_.throttled(nvml_device_));
  } while (!rule.done(now() - from));
  return rule.summary();
}

}  // namespace shardfit::calibrate
