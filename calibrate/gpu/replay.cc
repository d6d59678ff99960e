#include "calibrate/gpu/replay.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "calibrate/gpu/session.h"

namespace shardfit::calibrate {

namespace {

Levels peak_of(const Levels& a, const Levels& b) {
  return {std::max(a.allocated, b.allocated), std::max(a.reserved, b.reserved),
          std::max(a.device, b.device)};
}

std::int64_t pool_attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  std::uint64_t value = 0;
  CUDA(cudaMemPoolGetAttribute(pool, which, &value));
  return static_cast<std::int64_t>(value);
}

void set_pool(cudaMemPool_t pool, cudaMemPoolAttr which, std::uint64_t value) {
  CUDA(cudaMemPoolSetAttribute(pool, which, &value));
}

}  // namespace

RankReplay::RankReplay(const PlannedOption& option, const PlannedGpu& gpu, int device, Way way,
                       const ConfirmOptions& options, ReplayShared& shared)
    : gpu_(gpu),
      program_(gpu.program.program),
      device_(device),
      way_(way),
      shared_(shared),
      steps_(steps_of(program_)),
      segments_(device, options.margin),
      handles_(program_.storages.size(), run::no_block),
      addresses_(program_.storages.size(), nullptr) {
  CUDA(cudaSetDevice(device));
  for (std::size_t i = 0; i < program_.streams.size(); ++i) streams_.emplace_back();
  for (std::uint32_t i = 0; i < program_.events; ++i) events_.emplace_back(false);
  nvml_device_ = nvml_.device(bus_id(device));
  const MemoryInfo memory = memory_info();
  if (way == Way::caching) {
    // What is in use already, by whomever, and the margin are as good as taken.
    allocator_.emplace(memory.total, memory.total - memory.free + options.margin, option.settings);
    allocator_->set_driver(&segments_);
  } else {
    CUDA(cudaDeviceGetDefaultMemPool(&pool_, device));
    set_pool(pool_, cudaMemPoolAttrReleaseThreshold, ~std::uint64_t{0});
    set_pool(pool_, cudaMemPoolAttrUsedMemHigh, 0);
    set_pool(pool_, cudaMemPoolAttrReservedMemHigh, 0);
  }
}

RankReplay::~RankReplay() {
  cudaSetDevice(device_);
  for (const auto& [group, communicator] : communicators_) {
    try {
      if (shared_.stop) {
        shared_.nccl->abort(communicator);
      } else {
        shared_.nccl->destroy(communicator);
      }
    } catch (const std::exception&) {  // it is gone either way
    }
  }
  if (way_ == Way::stream_ordered && pool_) {
    for (std::uint32_t storage = 0; storage < addresses_.size(); ++storage) {
      if (!addresses_[storage]) continue;
      cudaFreeAsync(addresses_[storage], streams_[program_.storages[storage].stream]);
    }
    cudaDeviceSynchronize();
    cudaMemPoolTrimTo(pool_, 0);
  }
}

void RankReplay::run(ConfirmedRank& result) {
  result_ = &result;
  result.rank = gpu_.rank;
  result.device = device_;
  result.predicted = {gpu_.allocated, gpu_.reserved, gpu_.device};
  try {
    CUDA(cudaSetDevice(device_));
    operators_.emplace(result);
    meet();
    join_groups();
    const MemoryInfo memory = memory_info();
    result.before = memory.total - memory.free;
    for (at_ = 0; at_ < program_.instructions.size(); ++at_) {
      if (shared_.stop) throw Stopped{};
      if (at_ % 256 == 0 && now() > shared_.deadline) {
        result.stopped = "the GPU budget was used up " + where();
        break;
      }
      step(program_.instructions[at_]);
    }
    wait_all();
  } catch (const Stopped&) {
    result.stopped = "another rank failed; this one was " + where();
  } catch (const std::exception& error) {
    shared_.stop = true;
    result.failure = where() + ": " + error.what();
  }
  if (!allocator_) return;
  const run::AllocatorStats& stats = allocator_->stats();
  result.retries = stats.retries;
  // How far it came, where it did not come to its end.
  result.measured = peak_of(result.measured,
                            {stats.peak.allocated, stats.peak.reserved, segments_.device_peak()});
}

/// "in step 2, at mm model.layers.3" of the instruction under way.
std::string RankReplay::where() const {
  std::string text = step_ == 0 ? "while loading" : "in step " + std::to_string(step_);
  if (at_ >= program_.instructions.size()) return text + ", at its end";
  const Instruction& i = program_.instructions[at_];
  const char* kind = "";
  std::uint32_t module = 0;
  if (i.action == Action::compute) {
    kind = program_.computes[i.id].kind;
    module = program_.computes[i.id].module;
  } else if (i.action == Action::allocate || i.action == Action::release) {
    kind = program_.storages[i.id].kind;
    module = program_.storages[i.id].module;
  } else if (i.action == Action::collective) {
    kind = collective_name(program_.collectives[i.id].kind);
    module = program_.collectives[i.id].module;
  }
  if (*kind) text += std::string(", at ") + kind;
  if (!program_.modules[module].empty()) text += " " + program_.modules[module];
  return text;
}

void RankReplay::step(const Instruction& i) {
  const cudaStream_t stream = streams_[i.stream];
  switch (i.action) {
    case Action::allocate:
      return allocate(i);
    case Action::release:
      return release(i.id);
    case Action::compute:
      return compute(i);
    case Action::collective:
      return exchange(i);
    case Action::record_event:
      CUDA(cudaEventRecord(events_[i.id], stream));
      return;
    case Action::wait_event:
      CUDA(cudaStreamWaitEvent(stream, events_[i.id], 0));
      return;
    case Action::host_wait:
      wait_all();
      return;
    case Action::record_stream:
      if (allocator_) allocator_->record_stream(handles_[i.id], i.stream);
      return;
    case Action::empty_cache:
      if (allocator_) allocator_->empty_cache();
      return;
    case Action::reset_peaks:
      if (allocator_) allocator_->reset_peaks();
      segments_.reset_peak();
      return;
    case Action::phase: {
      const PhaseMark& mark = program_.phases[i.id];
      const bool last =
          i.id + 1 == program_.phases.size() || program_.phases[i.id + 1].step != mark.step;
      return end_phase(mark, last);
    }
  }
}

void RankReplay::allocate(const Instruction& i) {
  const StorageInfo& storage = program_.storages[i.id];
  void* address = nullptr;
  if (allocator_) {
    const run::BlockHandle handle = allocator_->allocate(storage.bytes, i.stream);
    if (handle == run::no_block) {
      throw CudaError(cudaErrorMemoryAllocation,
                      segments_.refused() > 0
                          ? "out of memory: the device refused what the allocator counted on; " +
                                allocator_->out_of_memory().text()
                          : allocator_->out_of_memory().text());
    }
    handles_[i.id] = handle;
    if (handle != run::empty_block) address = segments_.real(allocator_->block_address(handle));
  } else if (storage.bytes > 0) {
    CUDA(cudaMallocAsync(&address, static_cast<std::size_t>(storage.bytes), streams_[i.stream]));
  }
  addresses_[i.id] = address;
  if (!address) return;
  live_.add(i.id, storage.bytes, address);
  if (storage.category == Category::workspace && i.stream == 0) {
    operators_->set_workspace(address, storage.bytes);
  }
}

void RankReplay::release(std::uint32_t id) {
  const StorageInfo& storage = program_.storages[id];
  if (addresses_[id]) {
    live_.remove(id, storage.bytes);
    if (storage.category == Category::workspace) operators_->set_workspace(nullptr, 0);
    if (!allocator_) CUDA(cudaFreeAsync(addresses_[id], streams_[storage.stream]));
  }
  if (allocator_) allocator_->free(handles_[id]);
  handles_[id] = run::no_block;
  addresses_[id] = nullptr;
}

void RankReplay::compute(const Instruction& i) {
  operators_->launch(program_.computes[i.id], live_, streams_[i.stream]);
}

/// NCCL waits for ever for a rank that does not come: all are there before one calls it.
void RankReplay::meet() {
  ++shared_.ready;
  while (shared_.ready < shared_.ranks) {
    if (shared_.stop) throw Stopped{};
    if (now() > shared_.deadline) throw NcclError("another rank did not come so far in time");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void RankReplay::join_groups() {
  for (std::uint32_t g = 0; g < program_.groups.size(); ++g) {
    const std::vector<std::int32_t>& ranks = program_.groups[g];
    const auto id = shared_.group_ids.find(ranks);
    if (!shared_.nccl || id == shared_.group_ids.end()) continue;
    const auto place = std::find(ranks.begin(), ranks.end(), gpu_.rank);
    if (place == ranks.end()) continue;
    communicators_[g] = shared_.nccl->join(static_cast<int>(ranks.size()), id->second,
                                           static_cast<int>(place - ranks.begin()));
  }
}

void RankReplay::exchange(const Instruction& i) {
  const Collective& c = program_.collectives[i.id];
  const auto found = communicators_.find(c.group);
  if (found == communicators_.end()) return;  // a group of one
  const std::vector<std::int32_t>& ranks = program_.groups[c.group];
  const auto place_of = [&](std::int32_t rank) {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  const int rank = place_of(gpu_.rank), count = static_cast<int>(ranks.size());
  const LiveStorages::Place place = live_.largest();
  const std::int64_t bytes = std::min(c.bytes, place.bytes) / element_size(c.dtype) / count *
                             count * element_size(c.dtype);
  if (bytes == 0) return;
  // In place, as NCCL's in-place forms have it.
  auto* base = static_cast<char*>(place.address);
  char* mine = base + bytes / count * rank;
  const cudaStream_t stream = streams_[i.stream];
  const bool timed = step_ == steps_;
  if (timed) {
    exchange_times_.emplace_back();
    CUDA(cudaEventRecord(exchange_times_.back().first, stream));
  }
  shared_.nccl->queue(c.kind, c.dtype, bytes, rank, count, c.peer < 0 ? -1 : place_of(c.peer),
                      c.kind == CollectiveKind::all_gather ? mine : base,
                      c.kind == CollectiveKind::reduce_scatter ? mine : base, found->second,
                      stream);
  if (timed) CUDA(cudaEventRecord(exchange_times_.back().second, stream));
}

/// Until the stream has done everything; looks after the exchanges and the other ranks meanwhile.
void RankReplay::wait(cudaStream_t stream) {
  for (;;) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) CUDA(state);
    if (shared_.stop) throw Stopped{};
    for (const auto& [group, communicator] : communicators_) {
      shared_.nccl->check_async(communicator);
    }
    if (now() > shared_.deadline + (communicators_.empty() ? shared_.patience : 0)) {
      throw NcclError(communicators_.empty()
                          ? "the device does not come to an end"
                          : "an exchange does not come to an end: a link or a rank is lost");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void RankReplay::wait_all() {
  for (const Stream& stream : streams_) wait(stream);
}

void RankReplay::read_levels(const PhaseMark& mark) {
  const MemoryInfo memory = memory_info();
  Levels levels;
  levels.device = std::max(segments_.device_peak(), memory.total - memory.free);
  if (allocator_) {
    const run::AllocatorStats& stats = allocator_->stats();
    const run::AllocatorLevels& of = mark.live ? stats.current : stats.peak;
    levels.allocated = of.allocated;
    levels.reserved = of.reserved;
  } else {
    levels.allocated = pool_attribute(
        pool_, mark.live ? cudaMemPoolAttrUsedMemCurrent : cudaMemPoolAttrUsedMemHigh);
    levels.reserved = pool_attribute(
        pool_, mark.live ? cudaMemPoolAttrReservedMemCurrent : cudaMemPoolAttrReservedMemHigh);
  }
  if (mark.step > 0) result_->measured = peak_of(result_->measured, levels);
  if (const auto process = nvml_.process_bytes(nvml_device_)) {
    result_->process_bytes = std::max(result_->process_bytes, *process);
  }
  if (mark.live && mark.step != 0 && mark.step != steps_) return;
  const std::string name = phase_name(mark, steps_);
  auto& phases = result_->phases;
  auto same = std::find_if(phases.begin(), phases.end(),
                           [&](const ConfirmedPhase& p) { return p.name == name; });
  if (same == phases.end()) {
    ConfirmedPhase phase{name, -1, -1, {}};
    for (const validate::PlannedPhase& planned : gpu_.phases) {
      if (planned.name != name) continue;
      phase.predicted_allocated = planned.allocated;
      phase.predicted_reserved = planned.reserved;
    }
    phases.push_back(std::move(phase));
    same = std::prev(phases.end());
  }
  same->measured = peak_of(same->measured, levels);
}

void RankReplay::end_phase(const PhaseMark& mark, bool last_of_step) {
  read_levels(mark);
  if (allocator_) allocator_->reset_peaks();
  segments_.reset_peak();
  if (!last_of_step) return;
  wait_all();
  if (mark.step > 0) result_->step_seconds.push_back(now() - step_from_);
  for (const auto& [from, to] : exchange_times_) {
    float milliseconds = 0;
    CUDA(cudaEventElapsedTime(&milliseconds, from, to));
    result_->exchange_seconds += static_cast<double>(milliseconds) * 1e-3;
    ++result_->exchanges;
  }
  exchange_times_.clear();
  step_ = mark.step + 1;
  step_from_ = now();
}

}  // namespace shardfit::calibrate
