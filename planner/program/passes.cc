#include "program/passes.h"

#include <algorithm>

#include "program/alike.h"

namespace shardfit::program {
namespace {

using model::Machine;
using model::Value;

/// Fewer passes are not worth a comparison: two are compared, and the last is always run.
constexpr std::int64_t least_passes = 5;
/// Passes whose storages the last one may still free: those in flight in a pipeline's stage.
constexpr std::size_t most_remembered = 256;
/// Copies that are kept where equal passes are left out, and one more where their number is odd: by
/// then the allocator's caches have settled, often into two states that take turns, as what a pass
/// leaves lies where the pass after next puts it (tests/passes_test.cc).
constexpr std::int64_t copies_kept = 8;

bool alike(const Collective& a, const Collective& b) {
  return alike_sent(a, b) && a.module == b.module;
}

/// Instructions that name neither a storage nor an event.
bool alike_otherwise(const Program& program, const Instruction& a, const Instruction& b) {
  switch (a.action) {
    case Action::phase:
      return program.phases[a.id].name == program.phases[b.id].name &&
             program.phases[a.id].live == program.phases[b.id].live;
    case Action::compute:
      return a.id == b.id;  // each operator is there once
    case Action::collective:
      return alike(program.collectives[a.id], program.collectives[b.id]);
    default:
      return a.action == Action::empty_cache;
  }
}

}  // namespace

PassCopier::PassCopier(Program& program, EqualPasses equal, bool may_stay)
    : program_(program), equal_(equal), may_stay_(may_stay) {}

void PassCopier::forget() {
  rename();
  passes_.clear();
  marked_.clear();
}

PassCopier::Range PassCopier::here() const {
  Range range;
  range.first_instruction = range.end_instruction = program_.instructions.size();
  range.first_storage = range.end_storage = static_cast<std::uint32_t>(program_.storages.size());
  range.first_event = range.end_event = program_.events;
  return range;
}

void PassCopier::begin() {
  rename();
  passes_.push_back(here());
  older_.resize(program_.storages.size());
  for (std::size_t i = 0; i < older_.size(); ++i) older_[i] = program_.storages[i].category;
}

std::int64_t PassCopier::end(std::int64_t left) {
  rename();
  const Range end = here();
  Range& pass = passes_.back();
  pass.end_instruction = end.end_instruction;
  pass.end_storage = end.end_storage;
  pass.end_event = end.end_event;
  marked_before_ = std::move(marked_);
  marked_ = changed();
  const std::size_t count = passes_.size();
  if (count > 1 && !(pass.follows(passes_[count - 2]) && pass.same_size(passes_[count - 2]))) {
    passes_.erase(passes_.begin(), passes_.end() - 1);
  } else if (count > most_remembered) {
    passes_.erase(passes_.begin());
  }
  Lags lags;
  if (equal_ == EqualPasses::run || left < 2 || !repeats(lags)) return 0;
  std::int64_t copies = left - 1;
  recategorize(copies);
  if (equal_ == EqualPasses::leave && copies > copies_kept) copies = copies_kept + copies % 2;
  append_copies(static_cast<std::uint32_t>(copies), std::move(lags));
  passes_.clear();
  return left - 1;
}

std::vector<std::uint32_t> PassCopier::changed() const {
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < older_.size(); ++i) {
    if (older_[i] != program_.storages[i].category) ids.push_back(static_cast<std::uint32_t>(i));
  }
  return ids;
}

void PassCopier::recategorize(std::int64_t copies) {
  if (marked_before_.size() != marked_.size()) return;
  for (std::size_t i = 0; i < marked_.size(); ++i) {
    // From one micro-batch's tensor to the next.
    const std::uint32_t stride = marked_[i] - marked_before_[i];
    std::uint32_t id = marked_[i];
    for (std::int64_t copy = 0; copy < copies; ++copy) {
      id += stride;
      if (stride == 0 || id >= program_.storages.size()) break;
      program_.storages[id].category = program_.storages[marked_[i]].category;
    }
  }
}

bool PassCopier::same_names(const Instruction& before, const Instruction& last) const {
  const Range& first = passes_.front();
  const Range& pass = passes_.back();
  if (on_storage(last.action)) {
    if (last.id >= first.first_storage) return before.id + pass.storages() == last.id;
    return last.action == Action::record_stream && before.id == last.id;  // of what stays
  }
  if (last.id >= first.first_event) return before.id + pass.events() == last.id;
  return before.id == last.id;
}

bool PassCopier::repeats(Lags& lags) const {
  if (passes_.size() < 2) return false;
  const Range& a = passes_[passes_.size() - 2];
  const Range& b = passes_.back();
  for (std::uint32_t s = 0; s < b.storages(); ++s) {
    if (!alike(program_.storages[a.first_storage + s], program_.storages[b.first_storage + s])) {
      return false;
    }
  }
  const std::uint32_t floor = passes_.front().first_storage;
  lags.assign(b.storages(), stays);
  for (std::size_t i = 0; i < b.length(); ++i) {
    const Instruction& x = program_.instructions[a.first_instruction + i];
    const Instruction& y = program_.instructions[b.first_instruction + i];
    if (x.action != y.action || x.stream != y.stream) return false;
    if (on_storage(y.action) || on_event(y.action)) {
      if (!same_names(x, y)) return false;
      if (y.action == Action::release) {
        lags[(y.id - floor) % b.storages()] = (b.end_storage - 1 - y.id) / b.storages();
      }
    } else if (!alike_otherwise(program_, x, y)) {
      return false;
    }
  }
  return may_stay_ || std::find(lags.begin(), lags.end(), stays) == lags.end();
}

void PassCopier::append_copies(std::uint32_t copies, Lags lags) {
  const Range pass = passes_.back();
  const Range& before = passes_[passes_.size() - 2];
  const Range& first = passes_.front();
  std::uint32_t event_lag = 1;
  Program& p = program_;
  p.instructions.reserve(p.instructions.size() + pass.length() * copies);
  p.storages.reserve(p.storages.size() + std::size_t{pass.storages()} * copies);
  for (std::uint32_t copy = 1; copy <= copies; ++copy) {
    for (std::uint32_t s = 0; s < pass.storages(); ++s) {
      const StorageInfo same = p.storages[pass.first_storage + s];
      p.storages.push_back(same);
    }
    for (std::size_t i = pass.first_instruction; i < pass.end_instruction; ++i) {
      Instruction again = p.instructions[i];
      if (on_storage(again.action)) {
        if (again.id >= first.first_storage) again.id += copy * pass.storages();
      } else if (on_event(again.action)) {
        if (again.id >= first.first_event) {
          event_lag = std::max(event_lag, (pass.end_event - 1 - again.id) / pass.events());
          again.id += copy * pass.events();
        }
      } else if (again.action == Action::phase) {
        const PhaseMark mark = p.phases[again.id];
        again.id = static_cast<std::uint32_t>(p.phases.size());
        p.phases.push_back(mark);
      }
      p.instructions.push_back(again);
    }
  }
  p.events += copies * pass.events();
  p.repeats.push_back(
      {before.first_instruction, pass.length(), 2 + copies, pass.storages(), first.first_storage});
  Replaced replaced;
  replaced.first_storage = first.first_storage;
  replaced.end_storage = pass.end_storage;
  replaced.storages = pass.storages();
  replaced.first_event = first.first_event;
  replaced.end_event = pass.end_event;
  replaced.events = pass.events();
  replaced.event_lag = event_lag;
  replaced.last_pass = pass.first_storage;
  replaced.copies = copies;
  replaced.lags = std::move(lags);
  replaced_.push_back(std::move(replaced));
  renamed_to_ = p.instructions.size();
}

void PassCopier::rename() {
  std::vector<Instruction>& all = program_.instructions;
  if (replaced_.empty()) {
    renamed_to_ = all.size();
    return;
  }
  for (; renamed_to_ < all.size(); ++renamed_to_) {
    Instruction& instruction = all[renamed_to_];
    const bool storage = on_storage(instruction.action);
    if (!storage && !on_event(instruction.action)) continue;
    for (const Replaced& r : replaced_) {
      const std::uint32_t id = instruction.id;
      if (!storage) {
        if (id < r.first_event || id >= r.end_event) continue;
        if (r.event_moves_on(id)) instruction.id += r.copies * r.events;
      } else {
        if (!r.is_of(id)) continue;
        if (r.moves_on(id)) {
          instruction.id += r.copies * r.storages;
        } else if (instruction.action == Action::release && r.left_by_each(id)) {
          free_of_copies(renamed_to_, r);
        }
      }
      break;
    }
  }
}

/// What each pass leaves lies in one list, which goes in its order: what the last pass that was run
/// left, freed from instruction `first` on, then the same of its copies.
void PassCopier::free_of_copies(std::size_t first, const Replaced& replaced) {
  std::vector<Instruction>& all = program_.instructions;
  std::size_t end = first;
  const auto left = [&](const Instruction& i) {
    return i.action == Action::release && replaced.is_of(i.id) && replaced.left_by_each(i.id);
  };
  while (end < all.size() && left(all[end])) ++end;
  std::vector<Instruction> freed;
  for (std::uint32_t copy = 1; copy <= replaced.copies; ++copy) {
    for (std::size_t i = first; i < end; ++i) {
      freed.push_back(all[i]);
      freed.back().id += copy * replaced.storages;
    }
  }
  all.insert(all.begin() + static_cast<std::ptrdiff_t>(end), freed.begin(), freed.end());
  renamed_to_ = end + freed.size() - 1;
}

PassLoop::PassLoop(const model::CompiledClass& loop, Program& program, std::int64_t passes,
                   EqualPasses equal, std::function<void(std::int64_t)> left_out)
    : passes_(static_cast<std::size_t>(passes)),
      compares_(equal != EqualPasses::run && passes >= least_passes),
      left_out_(std::move(left_out)),
      copier_(program, equal) {
  for (const model::Step& step : loop.forward) statements_.push_back({step});
}

void PassLoop::run_step(Machine& machine, Value* locals) {
  for (const std::vector<model::Step>& statement : statements_) {
    const model::Step& step = statement.front();
    if (step.kind == spec::StatementKind::loop) {
      run_passes(step, machine, locals);
      continue;
    }
    Value result;
    const bool returned = machine.run(statement, nullptr, locals, result);
    copier_.rename();
    if (returned) return;
  }
}

void PassLoop::run_passes(const model::Step& loop, Machine& machine, Value* locals) {
  const Value over = machine.evaluate(loop.value, nullptr, locals);
  if (over.kind != model::ValueKind::list) {
    throw model::ModelError(loop.value.source ? loop.value.source->where : Location{}, "",
                            "'for' needs a list");
  }
  const std::size_t count = over.list->size();
  const bool compare = compares_ && count == passes_;
  copier_.forget();
  for (std::size_t i = 0; i < count; ++i) {
    if (compare) copier_.begin();
    locals[loop.slots[0]] = (*over.list)[i];
    Value result;
    machine.run(loop.body, nullptr, locals, result);
    if (!compare) continue;
    const std::int64_t copied = copier_.end(static_cast<std::int64_t>(count - 1 - i));
    if (copied == 0) continue;
    left_out_(copied);
    i += static_cast<std::size_t>(copied);
  }
  copier_.rename();
}

}  // namespace shardfit::program
