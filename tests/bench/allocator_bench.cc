// Events a second of the caching allocator on recorded programs, beside two baselines of the same
// run: a loop that touches each event once, and a plain allocator on std::set.
//   allocator_bench [TRACE...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "run/allocator.h"
#include "run/trace.h"
#include "spec/reader.h"

namespace {

using namespace shardfit;
using run::EventKind;
using run::Trace;
using run::TraceEvent;

volatile std::int64_t sink;

/// Touches every event once.
void bare_loop(const Trace& trace) {
  std::int64_t sum = 0;
  for (const TraceEvent& event : trace.events) {
    sum += event.kind == EventKind::allocate ? event.bytes : event.target;
  }
  sink = sum;
}

void replay(const Trace& trace, std::vector<run::BlockHandle>& handles) {
  run::CachingAllocator allocator(trace.header.total, trace.header.context, trace.header.settings,
                                  trace.header.fraction_value);
  for (const TraceEvent& event : trace.events) {
    switch (event.kind) {
      case EventKind::allocate:
        handles[event.target] = allocator.allocate(event.bytes, event.stream);
        break;
      case EventKind::free:
        allocator.free(handles[event.target]);
        break;
      case EventKind::record_stream:
        allocator.record_stream(handles[event.target], event.stream);
        break;
      case EventKind::empty_cache:
        allocator.empty_cache();
        break;
      default:
        std::fprintf(stderr, "this benchmark plays recorded programs only\n");
        std::exit(2);
    }
  }
  sink = allocator.stats().peak.reserved;
}

/// Best fit on std::set with a node a block: default settings, no limits, streams free at once.
class SetAllocator {
 public:
  struct Block {
    std::int64_t address, size;
    std::uint32_t stream;
    bool small, free;
    Block *previous, *next;
  };

  Block* allocate(std::int64_t bytes, std::uint32_t stream) {
    constexpr std::int64_t mib = 1 << 20;
    const std::int64_t size = (bytes + 511) / 512 * 512;
    const bool small = size <= mib;
    auto& free = small ? small_ : large_;
    Block key{0, size, stream, small, true, nullptr, nullptr};
    const auto found = free.lower_bound(&key);
    Block* block = nullptr;
    if (found == free.end() || (*found)->stream != stream) {
      const std::int64_t two = 2 * mib;
      const std::int64_t segment = small             ? two
                                   : size < 10 * mib ? 20 * mib
                                                     : (size + two - 1) / two * two;
      block = new Block{next_, segment, stream, small, true, nullptr, nullptr};
      next_ += segment;
      reserved_ += segment;
    } else {
      block = *found;
      free.erase(found);
    }
    if (const std::int64_t rest = block->size - size; small ? rest >= 512 : rest > mib) {
      auto* tail = new Block{block->address + size, rest, stream, small, true, block, block->next};
      if (block->next != nullptr) block->next->previous = tail;
      block->next = tail;
      block->size = size;
      free.insert(tail);
    }
    block->free = false;
    return block;
  }

  void release(Block* block) {
    auto& free = block->small ? small_ : large_;
    block->free = true;
    if (Block* before = block->previous; before != nullptr && before->free) {
      free.erase(before);
      block->address = before->address;
      block->size += before->size;
      block->previous = before->previous;
      if (block->previous != nullptr) block->previous->next = block;
      delete before;
    }
    if (Block* after = block->next; after != nullptr && after->free) {
      free.erase(after);
      block->size += after->size;
      block->next = after->next;
      if (block->next != nullptr) block->next->previous = block;
      delete after;
    }
    free.insert(block);
  }

  std::int64_t reserved() const { return reserved_; }

  ~SetAllocator() {
    for (const auto* free : {&small_, &large_}) {
      for (const Block* block : *free) delete block;
    }
  }

 private:
  struct Less {
    bool operator()(const Block* a, const Block* b) const {
      return std::tie(a->stream, a->size, a->address) < std::tie(b->stream, b->size, b->address);
    }
  };
  std::set<Block*, Less> small_, large_;
  std::int64_t next_ = 0, reserved_ = 0;
};

void replay_on_sets(const Trace& trace, std::vector<SetAllocator::Block*>& handles) {
  SetAllocator allocator;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == EventKind::allocate) {
      handles[event.target] =
          event.bytes == 0 ? nullptr : allocator.allocate(event.bytes, event.stream);
    } else if (event.kind == EventKind::free && handles[event.target] != nullptr) {
      allocator.release(handles[event.target]);
      handles[event.target] = nullptr;
    }
  }
  for (SetAllocator::Block*& block : handles) {
    if (block != nullptr) allocator.release(block);
    block = nullptr;
  }
  sink = allocator.reserved();
}

/// Seconds of the fastest of at least 5 calls in at least 0.2 s.
template <class Call>
double fastest(Call call) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9, spent = 0;
  for (int calls = 0; calls < 5 || spent < 0.2; ++calls) {
    const auto start = Clock::now();
    call();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

std::vector<std::string> shipped_traces() {
  std::vector<std::string> files;
  const std::string folder = SHARDFIT_SOURCE_DIR "/tests/data/allocator/real";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".trace") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

struct Times {
  double events = 0, bare = 0, model = 0, sets = 0;
};

void print(const std::string& name, const Times& t) {
  std::printf("%-28s %9.0f %9.1f %9.1f %9.1f %8.1f %7.2f\n", name.c_str(), t.events,
              t.events / t.model / 1e6, t.events / t.bare / 1e6, t.events / t.sets / 1e6,
              t.model / t.bare, t.sets / t.model);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> files(argv + 1, argv + argc);
  if (files.empty()) files = shipped_traces();
  std::printf("%-28s %9s %9s %9s %9s %8s %7s\n", "", "events", "allocator", "bare loop", "std::set",
              "to bare", "to set");
  std::printf("%-28s %9s %9s %9s %9s %8s %7s\n", "", "", "M/s", "M/s", "M/s", "x slower",
              "x faster");
  Times all;
  for (const std::string& file : files) {
    Diagnostics faults;
    const Trace trace = run::read_trace(spec::read_source(file, run::largest_trace), faults);
    faults.throw_if_any();
    std::vector<run::BlockHandle> handles(trace.ids.size());
    std::vector<SetAllocator::Block*> blocks(trace.ids.size());
    Times t;
    t.events = static_cast<double>(trace.events.size());
    t.bare = fastest([&] { bare_loop(trace); });
    t.model = fastest([&] { replay(trace, handles); });
    t.sets = fastest([&] { replay_on_sets(trace, blocks); });
    print(trace.header.name, t);
    all.events += t.events;
    all.bare += t.bare;
    all.model += t.model;
    all.sets += t.sets;
  }
  print("all", all);
}
