#include "program/repeat.h"

#include <vector>

#include "program/alike.h"

namespace shardfit::program {
namespace {

bool alike(const StorageInfo& a, const StorageInfo& b) {
  return alike_made(a, b) && a.category == b.category && a.module == b.module;
}

/// Library workspaces and optimizer states are made in the first step and stay.
bool made_once(const StorageInfo& storage) {
  return storage.category == Category::workspace || storage.category == Category::optimizer_state;
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
  std::vector<char> kept(storages, 0);  // made once: the next step finds it there
  for (std::size_t id = step.first_storage; id < storages; ++id) {
    if (released[id]) continue;
    kept[id] = made_once(program.storages[id]);
    if (!kept[id]) left.push_back(static_cast<std::uint32_t>(id));
  }
  if (freed_before.size() != left.size()) return false;
  std::vector<std::uint32_t> renamed(storages);
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!alike(program.storages[freed_before[i]], program.storages[left[i]])) return false;
    renamed[freed_before[i]] = left[i];
  }
  program.storages.reserve(2 * storages - step.first_storage);
  for (std::size_t id = step.first_storage; id < storages; ++id) {
    if (kept[id]) continue;
    renamed[id] = static_cast<std::uint32_t>(program.storages.size());
    const StorageInfo copy = program.storages[id];
    program.storages.push_back(copy);
  }
  program.instructions.reserve(2 * end - step.first_instruction);
  for (std::size_t i = step.first_instruction; i < end; ++i) {
    Instruction copy = program.instructions[i];
    if (on_storage(copy.action)) {
      if (kept[copy.id]) continue;
      copy.id = renamed[copy.id];
    } else if (copy.action == Action::phase) {
      PhaseMark mark = program.phases[copy.id];
      mark.step = number;
      copy.id = static_cast<std::uint32_t>(program.phases.size());
      program.phases.push_back(std::move(mark));
    }
    program.instructions.push_back(copy);
  }
  return true;
}

}  // namespace shardfit::program
