#include "program/passes.h"

#include <cstring>

namespace shardfit::program {
namespace {

using model::Machine;
using model::Value;

/// Fewer passes are not worth a comparison: two are compared, and the last is always run.
constexpr std::size_t least_passes = 5;
/// Copies that are kept where equal passes are left out, and one more where their number is odd: by
/// then the allocator's caches have settled, often into two states that take turns, as what a pass
/// leaves lies where the pass after next puts it (tests/passes_test.cc).
constexpr std::int64_t copies_kept = 8;

bool alike(const StorageInfo& a, const StorageInfo& b) {
  return a.bytes == b.bytes && a.category == b.category && a.stream == b.stream &&
         a.module == b.module && a.backward == b.backward && std::strcmp(a.kind, b.kind) == 0;
}

bool alike(const Compute& a, const Compute& b) {
  return std::strcmp(a.kind, b.kind) == 0 && a.module == b.module && a.backward == b.backward &&
         a.dtype == b.dtype && a.flops == b.flops && a.bytes == b.bytes && a.m == b.m &&
         a.n == b.n && a.k == b.k && a.groups == b.groups;
}

bool on_storage(Action action) {
  return action == Action::allocate || action == Action::release || action == Action::record_stream;
}

/// Instructions that name neither a storage nor an operator.
bool alike_otherwise(const Program& program, const Instruction& a, const Instruction& b) {
  switch (a.action) {
    case Action::phase:
      return program.phases[a.id].name == program.phases[b.id].name &&
             program.phases[a.id].live == program.phases[b.id].live;
    case Action::compute:
      return alike(program.computes[a.id], program.computes[b.id]);
    case Action::empty_cache:
      return true;
    default:
      return false;  // exchanges and events belong to strategies, whose passes are all run
  }
}

}  // namespace

PassLoop::PassLoop(const model::CompiledClass& loop, std::int64_t passes, EqualPasses equal)
    : passes_(static_cast<std::size_t>(passes)), equal_(equal) {
  for (const model::Step& step : loop.forward) statements_.push_back({step});
}

void PassLoop::run_step(Machine& machine, Value* locals) {
  Program& program = machine.runtime.program;
  for (const std::vector<model::Step>& statement : statements_) {
    const model::Step& step = statement.front();
    if (step.kind == spec::StatementKind::loop) {
      run_passes(step, machine, locals);
      continue;
    }
    const std::size_t from = program.instructions.size();
    Value result;
    const bool returned = machine.run(statement, nullptr, locals, result);
    rename(program, from);
    if (returned) return;
  }
}

void PassLoop::run_passes(const model::Step& loop, Machine& machine, Value* locals) {
  Program& program = machine.runtime.program;
  const Value over = machine.evaluate(loop.value, nullptr, locals);
  if (over.kind != model::ValueKind::list) {
    throw model::ModelError(loop.value.source ? loop.value.source->where : Location{}, "",
                            "'for' needs a list");
  }
  const std::size_t count = over.list->size();
  const bool compare = equal_ != EqualPasses::run && count == passes_ && count >= least_passes;
  Range before, pass;
  std::vector<std::uint32_t> marked_before, marked;
  for (std::size_t i = 0; i < count; ++i) {
    before = pass;
    pass.first_instruction = program.instructions.size();
    pass.first_storage = program.storages.size();
    locals[loop.slots[0]] = (*over.list)[i];
    const std::vector<StorageInfo> older = compare ? program.storages : std::vector<StorageInfo>();
    Value result;
    machine.run(loop.body, nullptr, locals, result);
    marked_before = std::move(marked);
    marked = changed(program, older);
    rename(program, pass.first_instruction);
    pass.end_instruction = program.instructions.size();
    pass.end_storage = program.storages.size();
    const std::size_t left = count - 1 - i;
    if (!compare || i < 2 || left < 2 || !repeats(program, before, pass)) continue;
    auto copies = static_cast<std::int64_t>(left - 1);
    recategorize(program, marked_before, marked, copies);
    if (equal_ == EqualPasses::leave && copies > copies_kept) copies = copies_kept + copies % 2;
    append_copies(program, pass, copies);
    i = count - 2;  // the last pass is run
  }
}

std::vector<std::uint32_t> PassLoop::changed(const Program& program,
                                             const std::vector<StorageInfo>& before) {
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].category != program.storages[i].category) {
      ids.push_back(static_cast<std::uint32_t>(i));
    }
  }
  return ids;
}

void PassLoop::recategorize(Program& program, const std::vector<std::uint32_t>& before,
                            const std::vector<std::uint32_t>& last, std::int64_t copies) {
  if (before.size() != last.size()) return;
  for (std::size_t i = 0; i < last.size(); ++i) {
    const std::uint32_t stride = last[i] - before[i];  // from one micro-batch's tensor to the next
    std::uint32_t id = last[i];
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      id += stride;
      if (stride == 0 || id >= program.storages.size()) break;
      program.storages[id].category = program.storages[last[i]].category;
    }
  }
}

bool PassLoop::repeats(const Program& program, const Range& a, const Range& b) {
  const std::size_t length = b.end_instruction - b.first_instruction;
  if (a.end_instruction - a.first_instruction != length || a.storages() != b.storages()) {
    return false;
  }
  for (std::size_t s = 0; s < b.storages(); ++s) {
    if (!alike(program.storages[a.first_storage + s], program.storages[b.first_storage + s])) {
      return false;
    }
  }
  std::size_t made_a = 0, freed_a = 0, freed_of_a = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const Instruction& x = program.instructions[a.first_instruction + i];
    const Instruction& y = program.instructions[b.first_instruction + i];
    if (x.action != y.action || x.stream != y.stream) return false;
    if (!on_storage(x.action)) {
      if (!alike_otherwise(program, x, y)) return false;
      continue;
    }
    // What `a` names at a place, `b` names one pass later.
    if (y.id < a.first_storage || x.id + b.storages() != y.id) return false;
    if (x.action == Action::allocate) ++made_a;
    if (y.action == Action::release && y.id < b.first_storage) ++freed_of_a;
    if (x.action == Action::release && x.id >= a.first_storage) ++freed_a;
  }
  return made_a == freed_a + freed_of_a;
}

void PassLoop::append_copies(Program& program, const Range& pass, std::int64_t copies) {
  const std::size_t length = pass.end_instruction - pass.first_instruction;
  const std::size_t storages = pass.storages();
  const auto times = static_cast<std::size_t>(copies);
  program.instructions.reserve(program.instructions.size() + length * times);
  program.storages.reserve(program.storages.size() + storages * times);
  for (std::size_t copy = 1; copy <= times; ++copy) {
    for (std::size_t s = 0; s < storages; ++s) {
      const StorageInfo same = program.storages[pass.first_storage + s];
      program.storages.push_back(same);
    }
    for (std::size_t i = pass.first_instruction; i < pass.end_instruction; ++i) {
      Instruction again = program.instructions[i];
      if (on_storage(again.action)) {
        again.id += static_cast<std::uint32_t>(copy * storages);
      } else if (again.action == Action::phase) {
        const PhaseMark mark = program.phases[again.id];
        again.id = static_cast<std::uint32_t>(program.phases.size());
        program.phases.push_back(mark);
      }
      program.instructions.push_back(again);
    }
  }
  replaced_.push_back({static_cast<std::uint32_t>(pass.first_storage),
                       static_cast<std::uint32_t>(pass.end_storage),
                       static_cast<std::uint32_t>(times * storages)});
}

/// The runtime still frees what the pass left that was copied; in the program its last copy left
/// it.
void PassLoop::rename(Program& program, std::size_t from) const {
  if (replaced_.empty()) return;
  for (std::size_t i = from; i < program.instructions.size(); ++i) {
    Instruction& instruction = program.instructions[i];
    if (!on_storage(instruction.action)) continue;
    for (const Replaced& r : replaced_) {
      if (instruction.id >= r.first && instruction.id < r.end) {
        instruction.id += r.shift;
        break;
      }
    }
  }
}

}  // namespace shardfit::program
