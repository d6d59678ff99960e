// Memory snapshots of PyTorch: segments with their blocks, and the history of allocations where it
// was recorded. Facts: pytorch torch/cuda/memory.py and c10/cuda/CUDACachingAllocator.cpp
// (record_trace: sizes of alloc and free are those asked for).

#include <algorithm>
#include <array>
#include <map>

#include "run/allocator.h"
#include "validate/own_run.h"
#include "validate/pickle.h"

namespace shardfit::validate {
namespace {

using Index = Pickle::Index;

constexpr std::int64_t unit = 512;  // the allocator's rounding
std::int64_t rounded(std::int64_t bytes) { return (bytes + unit - 1) / unit * unit; }

/// The last category stands for "unlabelled".
constexpr std::size_t unlabelled = category_count;

struct Live {
  std::int64_t requested = 0;
  std::size_t label = unlabelled;
  run::BlockHandle handle = run::no_block;
};

/// One device of a snapshot, replayed.
class DeviceHistory {
 public:
  DeviceHistory(const Pickle& pickle, int device) : pickle_(pickle), device_(device) {}

  void read() {
    read_segments();
    const Index traces = pickle_.find(pickle_.root(), "device_traces");
    if (traces != Pickle::missing &&
        static_cast<std::size_t>(device_) < pickle_.items(traces).size()) {
      trace_ = &pickle_.items(pickle_.items(traces)[static_cast<std::size_t>(device_)]);
    }
    if (trace_ && !trace_->empty()) {
      rewind();
      from_the_start_ = live_.empty() && reserved_ == 0;
      replay();
    }
  }

  OwnRank rank(const std::string& path, int number) const {
    OwnRank out;
    out.rank = number;
    out.source = path + " (device " + std::to_string(device_) + ")";
    if (!trace_ || trace_->empty()) {
      out.reserved = reserved_;
      out.notes.push_back(
          "no history was recorded (torch.cuda.memory._record_memory_history): reserved bytes are "
          "those at the end, the peak of allocated bytes is not known");
      return out;
    }
    out.allocated = peak_allocated_;
    out.reserved = peak_reserved_;
    out.requested_by.emplace();
    for (std::size_t c = 0; c < category_count; ++c) (*out.requested_by)[c] = peak_by_[c];
    out.unlabelled = peak_by_[unlabelled];
    out.notes.push_back(
        from_the_start_ ? "allocated bytes: the history's requests through the caching allocator"
                        : "the history begins in the middle: allocated bytes are its requests, "
                          "each rounded up to 512");
    out.notes.push_back(
        "categories are read off call stacks: activations are all that forward made, temporaries "
        "all that backward made, gradients too; what has no telling stack is unlabelled");
    return out;
  }

  bool empty() const { return reserved_ == 0 && (!trace_ || trace_->empty()); }

 private:
  std::size_t label_of(Index entry) const {
    std::vector<std::string> frames;
    const Index list = pickle_.find(entry, "frames");
    if (list == Pickle::missing) return unlabelled;
    for (const Index frame : pickle_.items(list)) {
      const Index file = pickle_.find(frame, "filename"), name = pickle_.find(frame, "name");
      frames.push_back((file == Pickle::missing ? "" : std::string(pickle_.text(file))) + ":" +
                       (name == Pickle::missing ? "" : std::string(pickle_.text(name))));
    }
    const auto category = category_of_stack(frames);
    return category ? static_cast<std::size_t>(*category) : unlabelled;
  }

  void read_segments() {
    const Index segments = pickle_.find(pickle_.root(), "segments");
    if (segments == Pickle::missing) {
      throw InputError({}, "this pickle is no memory snapshot: it has no 'segments'");
    }
    for (const Index segment : pickle_.items(segments)) {
      if (pickle_.integer_of(segment, "device") != device_) continue;
      reserved_ += pickle_.integer_of(segment, "total_size");
      const Index blocks = pickle_.find(segment, "blocks");
      std::int64_t address = pickle_.integer_of(segment, "address");
      if (blocks == Pickle::missing) continue;
      for (const Index block : pickle_.items(blocks)) {
        const std::int64_t size = pickle_.integer_of(block, "size");
        const std::int64_t given = pickle_.integer_of(block, "address");
        if (given != 0) address = given;
        const Index state = pickle_.find(block, "state");
        if (state != Pickle::missing && pickle_.text(state) == "active_allocated") {
          std::int64_t requested = pickle_.integer_of(block, "requested_size");
          if (requested == 0) requested = size;
          live_[address] = {requested, label_of(block)};
        }
        address += size;
      }
    }
  }

  std::string_view action(Index entry) const {
    const Index found = pickle_.find(entry, "action");
    return found == Pickle::missing ? "" : pickle_.text(found);
  }

  static std::int64_t segment_sign(std::string_view action) {
    if (action == "segment_alloc" || action == "segment_map") return 1;
    return action == "segment_free" || action == "segment_unmap" ? -1 : 0;
  }

  /// From the end of the history to its beginning: what was alive then.
  void rewind() {
    for (std::size_t i = trace_->size(); i-- > 0;) {
      const Index entry = (*trace_)[i];
      const std::string_view what = action(entry);
      const std::int64_t size = pickle_.integer_of(entry, "size");
      reserved_ -= segment_sign(what) * size;
      const std::int64_t address = pickle_.integer_of(entry, "addr");
      if (what == "alloc") live_.erase(address);
      if (what == "free_completed") live_[address] = {size, unlabelled};
    }
  }

  void replay() {
    for (const auto& [address, live] : live_) add(live, 1);
    for (const Index entry : *trace_) expandable_ = expandable_ || action(entry) == "segment_map";
    run::AllocatorSettings settings;
    settings.expandable_segments = expandable_;
    if (from_the_start_) {
      allocator_.emplace(run::CachingAllocator::largest_total, 0, settings);
    }
    note_peak();
    for (const Index entry : *trace_) {
      const std::string_view what = action(entry);
      const std::int64_t size = pickle_.integer_of(entry, "size");
      reserved_ += segment_sign(what) * size;
      peak_reserved_ = std::max(peak_reserved_, reserved_);
      const std::int64_t address = pickle_.integer_of(entry, "addr");
      if (what == "alloc") {
        Live live{size, label_of(entry)};
        if (allocator_ && size >= 0 && size <= run::CachingAllocator::largest_request) {
          live.handle = allocator_->allocate(size, stream_of(entry));
        }
        live_[address] = live;
        add(live, 1);
        note_peak();
      } else if (what == "free_completed") {
        const auto found = live_.find(address);
        if (found == live_.end()) continue;
        add(found->second, -1);
        if (allocator_) allocator_->free(found->second.handle);
        live_.erase(found);
      } else if (allocator_ && segment_sign(what) < 0) {
        allocator_->empty_cache();  // segments go back together, for whatever reason
      }
    }
  }

  void add(const Live& live, std::int64_t sign) {
    by_[live.label] += sign * live.requested;
    allocated_ += sign * rounded(live.requested);
  }
  /// Streams by their handle, in the order they come; the default stream first.
  std::uint32_t stream_of(Index entry) {
    const std::int64_t handle = pickle_.integer_of(entry, "stream");
    return streams_.emplace(handle, static_cast<std::uint32_t>(streams_.size())).first->second;
  }
  void note_peak() {
    peak_reserved_ = std::max(peak_reserved_, reserved_);
    const std::int64_t now = allocator_ ? allocator_->stats().current.allocated : allocated_;
    if (now <= peak_allocated_) return;
    peak_allocated_ = now;
    peak_by_ = by_;
  }

  const Pickle& pickle_;
  int device_;
  const std::vector<Index>* trace_ = nullptr;
  std::map<std::int64_t, Live> live_;
  std::int64_t reserved_ = 0, peak_reserved_ = 0, allocated_ = 0, peak_allocated_ = 0;
  std::array<std::int64_t, category_count + 1> by_{}, peak_by_{};
  bool from_the_start_ = false;  // the history lacks nothing
  bool expandable_ = false;
  std::optional<run::CachingAllocator> allocator_;
  std::map<std::int64_t, std::uint32_t> streams_{{0, 0}};
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

std::optional<Category> category_of_stack(const std::vector<std::string>& frames) {
  // An optimizer's step calls modules of its own, a forward pass never calls an optimizer; what
  // autograd's engine runs is backward, recomputed forwards too.
  const auto any = [&](std::initializer_list<const char*> parts) {
    return std::any_of(frames.begin(), frames.end(), [&](const std::string& frame) {
      return std::any_of(parts.begin(), parts.end(),
                         [&](const char* part) { return contains(frame, part); });
    });
  };
  if (any({"BlasWorkspace", "BlasLtWorkspace", "BlasHandle"})) return Category::workspace;
  if (any({"torch/distributed/", "c10d::"})) return Category::communication;
  if (any({"autograd::Engine", "torch/autograd/graph.py", "torch/_tensor.py:backward"})) {
    return Category::temporary;
  }
  if (any({"torch/optim/"})) return Category::optimizer_state;
  if (any({"from_pretrained", "from_config", "module.py:_apply", ".py:__init__"})) {
    return Category::parameter;
  }
  if (any({":forward", "module.py:_call_impl"})) return Category::activation;
  return {};
}

std::vector<OwnRank> read_snapshot(const std::string& path, int rank) {
  const Pickle pickle(read_binary(path));
  constexpr int most_devices = 64;
  std::vector<OwnRank> ranks;
  for (int device = 0; device < most_devices; ++device) {
    DeviceHistory history(pickle, device);
    try {
      history.read();
    } catch (const InputError& error) {
      throw InputError(whole_file(path), error.diagnostics().front().message);
    }
    if (!history.empty()) ranks.push_back(history.rank(path, rank++));
  }
  if (ranks.empty()) throw InputError(whole_file(path), "the snapshot has no device with memory");
  return ranks;
}

}  // namespace shardfit::validate
