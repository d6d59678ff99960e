// Bookkeeping of a recomputation sequence: shares nothing with the table that proposed it.

#include <algorithm>

#include "partition/recompute.h"

namespace shardfit::partition {
namespace {

class Memory {
 public:
  Memory(const SlotChain& chain, int first, int last)
      : chain_(chain),
        first_(first),
        last_(last),
        output_(chain.length(), 0),
        saved_(chain.length(), 0),
        gradient_(chain.length(), 0),
        done_(chain.length(), 0) {
    gradient_[last] = 1;
    live_ = peak_ = chain.out[last];
  }

  /// Runs one step; empty, or why it cannot run.
  std::string run(const ChainStep& step) {
    const int i = step.layer;
    if (i < first_ || i > last_) return "layer outside the interval";
    if (step.kind == ChainStep::Kind::backward) return backward(i);
    if (i > first_ && !output_[i - 1] && !saved_[i - 1]) return "the input is not in memory";
    if (step.kind == ChainStep::Kind::forward_save) {
      hold(&saved_[i], chain_.saved[i]);
      return "";
    }
    hold(&output_[i], chain_.out[i]);
    if (step.kind == ChainStep::Kind::forward_drop && i > first_)
      drop(&output_[i - 1], chain_.in(i));
    return "";
  }

  bool finished() const {
    return std::all_of(done_.begin() + first_, done_.begin() + last_ + 1, [](char d) { return d; });
  }
  int peak() const { return peak_; }

 private:
  std::string backward(int i) {
    if (!saved_[i]) return "what the backward needs is not in memory";
    if (!gradient_[i]) return "the gradient of the output is not in memory";
    if (i > first_ && !output_[i - 1] && !saved_[i - 1]) return "the input is not in memory";
    if (done_[i]) return "the backward ran before";
    done_[i] = 1;
    if (i > first_)
      hold(&gradient_[i - 1], chain_.in(i));
    else
      peak_ = std::max(peak_, live_ + chain_.in(i));  // handed to the layers before
    drop(&saved_[i], chain_.saved[i]);
    drop(&gradient_[i], chain_.out[i]);
    drop(&output_[i], chain_.out[i]);
    if (i > first_) drop(&output_[i - 1], chain_.in(i));
    return "";
  }
  void hold(char* flag, int slots) {
    if (!*flag) live_ += slots;
    *flag = 1;
    peak_ = std::max(peak_, live_);
  }
  void drop(char* flag, int slots) {
    if (*flag) live_ -= slots;
    *flag = 0;
  }

  const SlotChain& chain_;
  int first_, last_, live_ = 0, peak_ = 0;
  std::vector<char> output_, saved_, gradient_, done_;
};

}  // namespace

ChainRun simulate(const SlotChain& chain, int first, int last,
                  const std::vector<ChainStep>& steps) {
  ChainRun run;
  Memory memory(chain, first, last);
  for (const ChainStep& step : steps) {
    run.fault = memory.run(step);
    if (!run.fault.empty()) return run;
    run.ms += step.kind == ChainStep::Kind::backward ? chain.backward_ms[step.layer]
                                                     : chain.forward_ms[step.layer];
  }
  run.peak_slots = memory.peak();
  run.valid = memory.finished();
  if (!run.valid) run.fault = "a backward never ran";
  return run;
}

}  // namespace shardfit::partition
