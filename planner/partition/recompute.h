#pragma once
// What to keep and what to recompute on a chain of layers under a memory budget, and the same
// together with the cut into pipeline stages.

#include <string>
#include <vector>

#include "partition/instances/instances.h"

namespace shardfit::partition {

/// A chain with sizes in whole slots. Layer i reads the output of layer i - 1 (nothing for 0).
struct SlotChain {
  std::vector<double> forward_ms, backward_ms;
  std::vector<int> out, saved;  // slots; `saved` is all the backward needs, output included
  double unit_bytes = 1;        // bytes of a slot
  int length() const { return static_cast<int>(out.size()); }
  int in(int i) const { return i == 0 ? 0 : out[i - 1]; }
};

/// Sizes rounded up to slots of (sum of saved bytes) / `slots`, at least one each, as rotor does.
SlotChain to_slots(const ChainInstance& chain, int slots);

/// One step of an execution of forward and backward over an interval of layers.
struct ChainStep {
  enum class Kind {
    forward_save,  // run forward and keep all its backward needs
    forward_keep,  // run forward, keep its input, drop the rest
    forward_drop,  // run forward, drop its input too
    backward
  };
  Kind kind;
  int layer;
};

/// Least time of forward and backward over every interval of layers under every budget: the dynamic
/// program of rotor (Beaumont, Herrmann, Pallez, Shilova 2020; notation of its table): with s
/// slots,
///   T[i,i,s] = f_i + b_i                                      if s >= in_i + saved_i + out_i
///   T[i,l,s] = min( T[i,i,s] + T[i+1,l,s - saved_i],           keep all of layer i
///                   min_j f_i + .. + f_(j-1) + T[j,l,s - in_j] + T[i,j-1,s] )
///   if s >= max(out_l + out_i, out_l + in_j + out_j for i < j < l).
/// The slots of the interval's input are not part of s.
class RecomputeTable {
 public:
  /// Table for budgets 0 .. most_slots. O(most_slots length^3) time, O(most_slots length^2) space.
  RecomputeTable(SlotChain chain, int most_slots);

  const SlotChain& chain() const { return chain_; }
  int most_slots() const { return most_slots_; }
  /// Least ms over layers first .. last; infinite where it cannot be done.
  double ms(int first, int last, int slots) const;
  /// Steps that take ms(first, last, slots); empty where it cannot be done.
  std::vector<ChainStep> sequence(int first, int last, int slots) const;
  /// Fewest slots that reach `ms` (or less) over the interval; -1 where the table has none.
  int fewest_slots(int first, int last, double ms) const;

 private:
  const double* row(int i, int l) const { return &table_[offset(i, l)]; }
  std::size_t offset(int i, int l) const {
    return (static_cast<std::size_t>(i) * chain_.length() + l) * (most_slots_ + 1);
  }
  int least_slots(int i, int l) const;
  void fill(int i, int l);
  void trace(int i, int l, int slots, std::vector<ChainStep>* steps) const;

  SlotChain chain_;
  int most_slots_;
  std::vector<double> forward_sum_;  // prefix sums
  std::vector<double> table_;
};

/// What executing a sequence does to memory, told by bookkeeping alone.
struct ChainRun {
  bool valid = false;  // every step had its inputs, every layer's backward ran once, in order
  double ms = 0;
  int peak_slots = 0;  // without the interval's input; the gradient of its output counts throughout
  std::string fault;   // where not valid: the first step that could not run
};
ChainRun simulate(const SlotChain& chain, int first, int last, const std::vector<ChainStep>& steps);

/// A pipeline stage of a chain and what it keeps.
struct ChainStage {
  int first = 0, last = 0;
  int in_flight = 1;       // micro-batches between their forward and backward (1F1B)
  bool stash_all = false;  // waiting micro-batches keep everything; else only the stage's input
  double ms = 0;
  int slots = 0;  // budget left to the micro-batch in work
};
struct ChainSplit {
  bool feasible = false;
  double objective_ms = 0;  // most ms of a stage
  std::vector<ChainStage> stages;
};

/// Best cut of the chain into at most `stages` stages of `budget` slots each, with the
/// recomputation of each: stage r from the end holds min(r, microbatches) micro-batches in flight.
/// Waiting ones keep everything (no recomputation in the stage) or only the stage's input (the
/// stage then runs its forward once more). Exact over these choices: every cut is tried.
ChainSplit split_chain(const RecomputeTable& table, int stages, int budget, int microbatches);

}  // namespace shardfit::partition
