#pragma once
// Micro-batches of one optimizer step: passes that do what the one before did are copied, or left
// out where only peaks are asked for.

#include <cstdint>
#include <vector>

#include "model/machine.h"
#include "program/training.h"
#include "tensor/program.h"

namespace shardfit::program {

/// The statements of a step, with the loop over its micro-batches apart.
class PassLoop {
 public:
  /// `passes`: micro-batches of a step; a loop over so many things at the top of `loop` is theirs.
  PassLoop(const model::CompiledClass& loop, std::int64_t passes, EqualPasses equal);

  /// Runs the statements of one step, as Machine::run does.
  void run_step(model::Machine& machine, model::Value* locals);

 private:
  /// One pass in a program: instructions and storages it added.
  struct Range {
    std::size_t first_instruction = 0, end_instruction = 0, first_storage = 0, end_storage = 0;
    std::size_t storages() const { return end_storage - first_storage; }
  };
  /// Storages of the last pass that was run, which its copies have replaced.
  struct Replaced {
    std::uint32_t first = 0, end = 0, shift = 0;
  };

  void run_passes(const model::Step& loop, model::Machine& machine, model::Value* locals);
  /// `b`, which follows `a`, does what `a` did, and frees all that `a` left.
  static bool repeats(const Program& program, const Range& a, const Range& b);
  /// Older storages whose category a pass has changed: tensors of the micro-batch that it saved.
  static std::vector<std::uint32_t> changed(const Program& program,
                                            const std::vector<StorageInfo>& before);
  /// The same for the micro-batches of the passes that are copied.
  static void recategorize(Program& program, const std::vector<std::uint32_t>& before,
                           const std::vector<std::uint32_t>& last, std::int64_t copies);
  void append_copies(Program& program, const Range& pass, std::int64_t copies);
  void rename(Program& program, std::size_t from) const;

  std::vector<std::vector<model::Step>> statements_;  // one each
  std::size_t passes_;
  EqualPasses equal_;
  std::vector<Replaced> replaced_;
};

}  // namespace shardfit::program
