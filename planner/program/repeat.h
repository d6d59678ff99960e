#pragma once
// Steps that repeat: a step does what the one before did, with other storages.

#include <cstddef>

#include "tensor/program.h"

namespace shardfit::program {

/// Where a step lies in a program.
struct StepRange {
  std::size_t first_instruction = 0, first_storage = 0;
};

/// Appends the step that begins at `step` and ends at the program's end once more, as step
/// `number`. What the step frees of the time before it must have successors among what it leaves:
/// as many storages, of the same bytes and makers, in order. False where that is not so; then
/// nothing was appended.
bool repeat_step(Program& program, StepRange step, int number);

}  // namespace shardfit::program
