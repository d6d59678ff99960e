#include "program/repeat.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "program/alike.h"

namespace shardfit::program {
namespace {

/// Library workspaces and optimizer states are made in the first step and stay.
bool made_once(const StorageInfo& storage) {
  return storage.category == Category::workspace || storage.category == Category::optimizer_state;
}

/// The names of a step's copy.
struct Copy {
  std::vector<std::uint32_t> renamed;  // storages
  std::vector<char> kept;              // those that are not made again

  bool leaves_out(const Instruction& instruction) const {
    return on_storage(instruction.action) && kept[instruction.id];
  }
};

/// Passes of a step that do the same do so in its copy, which begins at `to`, too.
void repeat_passes(Program& program, StepRange step, std::size_t to, const Copy& copy) {
  std::size_t at = step.first_instruction;
  const std::size_t count = program.repeats.size();
  for (std::size_t r = 0; r < count; ++r) {
    Repeat again = program.repeats[r];
    if (again.first_instruction < at) continue;
    for (; at < again.first_instruction; ++at) {
      to += copy.leaves_out(program.instructions[at]) ? 0 : 1;
    }
    const std::uint32_t shift = copy.renamed[again.floor] - again.floor;
    const auto moves_along = [&](const Instruction& i) {
      if (!on_storage(i.action)) return true;
      return !copy.kept[i.id] && (i.id < again.floor || copy.renamed[i.id] == i.id + shift);
    };
    const auto first = program.instructions.begin() + static_cast<std::ptrdiff_t>(at);
    const auto all = static_cast<std::ptrdiff_t>(again.length * again.passes);
    if (!std::all_of(first, first + all, moves_along)) continue;
    again.first_instruction = to;
    again.floor += shift;
    program.repeats.push_back(again);
  }
}

}  // namespace

bool repeat_step(Program& program, StepRange step, int number) {
  const std::size_t end = program.instructions.size();
  const std::size_t storages = program.storages.size();
  std::vector<std::uint32_t> freed_before;  // of the time before the step, in order of allocation
  std::vector<char> released(storages, 0);
  for (std::size_t i = step.first_instruction; i < end; ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.action == Action::release) released[instruction.id] = 1;
  }
  for (std::uint32_t id = 0; id < step.first_storage; ++id) {
    if (released[id]) freed_before.push_back(id);
  }
  std::vector<std::uint32_t> left;
  Copy names{std::vector<std::uint32_t>(storages), std::vector<char>(storages, 0)};
  std::iota(names.renamed.begin(), names.renamed.end(), 0);  // what stays keeps its name
  for (std::size_t id = step.first_storage; id < storages; ++id) {
    if (released[id]) continue;
    names.kept[id] = made_once(program.storages[id]);  // the next step finds it there
    if (!names.kept[id]) left.push_back(static_cast<std::uint32_t>(id));
  }
  if (freed_before.size() != left.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!alike(program.storages[freed_before[i]], program.storages[left[i]])) return false;
    names.renamed[freed_before[i]] = left[i];
  }
  program.storages.reserve(2 * storages - step.first_storage);
  for (std::size_t id = step.first_storage; id < storages; ++id) {
    if (names.kept[id]) continue;
    names.renamed[id] = static_cast<std::uint32_t>(program.storages.size());
    const StorageInfo copy = program.storages[id];
    program.storages.push_back(copy);
  }
  program.instructions.reserve(2 * end - step.first_instruction);
  for (std::size_t i = step.first_instruction; i < end; ++i) {
    Instruction copy = program.instructions[i];
    if (on_storage(copy.action)) {
      if (names.kept[copy.id]) continue;
      copy.id = names.renamed[copy.id];
    } else if (copy.action == Action::phase) {
      PhaseMark mark = program.phases[copy.id];
      mark.step = number;
      copy.id = static_cast<std::uint32_t>(program.phases.size());
      program.phases.push_back(std::move(mark));
    }
    program.instructions.push_back(copy);
  }
  repeat_passes(program, step, end, names);
  return true;
}

}  // namespace shardfit::program
