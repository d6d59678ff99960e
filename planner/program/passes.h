#pragma once
// Micro-batches of one optimizer step: passes that do what the one before did are copied, or left
// out where only peaks are asked for.

#include <cstdint>
#include <functional>
#include <vector>

#include "model/machine.h"
#include "program/training.h"
#include "tensor/program.h"

namespace shardfit::program {

/// Watches passes as they are written into a program, and writes what the next ones would be where
/// two in a row did the same with other storages and events: whatever the passes depend on has
/// settled then. Pieces of a program that lie between passes are none of its business, but for the
/// names in them: `rename` must have seen every instruction that comes after copies.
class PassCopier {
 public:
  /// `may_stay`: passes may leave something behind that nobody looks at until it is freed with the
  /// same of all passes, in their order.
  PassCopier(Program& program, EqualPasses equal, bool may_stay = false);

  /// Passes follow of which nothing is known.
  void forget();
  /// A pass begins, or ends with `left` more to come, of which the last is never copied. Gives how
  /// many were copied behind it: these must not be run.
  void begin();
  std::int64_t end(std::int64_t left);
  /// The runtime still speaks of what the pass left that was copied; in the program its last copy
  /// left it. What stays of every pass and is freed later is freed of the copies, too.
  void rename();

 private:
  /// One pass in a program: instructions, storages and events it added.
  struct Range {
    std::size_t first_instruction = 0, end_instruction = 0;
    std::uint32_t first_storage = 0, end_storage = 0, first_event = 0, end_event = 0;
    std::size_t length() const { return end_instruction - first_instruction; }
    std::uint32_t storages() const { return end_storage - first_storage; }
    std::uint32_t events() const { return end_event - first_event; }
    bool same_size(const Range& other) const {
      return length() == other.length() && storages() == other.storages() &&
             events() == other.events();
    }
    bool follows(const Range& other) const {
      return first_instruction == other.end_instruction && first_storage == other.end_storage &&
             first_event == other.end_event;
    }
  };
  /// After how many passes what a pass allocates is freed, by its place there.
  using Lags = std::vector<std::uint32_t>;
  static constexpr std::uint32_t stays = 0xffffffff;  // not within the passes

  /// Names of the last passes that were run, which copies have taken over.
  struct Replaced {
    std::uint32_t first_storage = 0, end_storage = 0, storages = 0;  // of one pass
    std::uint32_t first_event = 0, end_event = 0, events = 0;        // of one pass
    std::uint32_t event_lag = 1;  // passes after which an event may still be waited for
    std::uint32_t last_pass = 0;  // its first storage
    std::uint32_t copies = 0;
    Lags lags;
    bool is_of(std::uint32_t id) const { return id >= first_storage && id < end_storage; }
    std::uint32_t lag(std::uint32_t id) const { return lags[(id - first_storage) % storages]; }
    /// The last of the copies has one in its place; else it is of a time when passes did otherwise.
    bool moves_on(std::uint32_t id) const {
      const std::uint32_t behind = (end_storage - 1 - id) / storages;  // passes after its own
      return lag(id) != stays && behind < lag(id);
    }
    bool event_moves_on(std::uint32_t id) const {
      return id >= first_event && id < end_event && (end_event - 1 - id) / events < event_lag;
    }
    /// All copies have one.
    bool left_by_each(std::uint32_t id) const { return id >= last_pass && lag(id) == stays; }
  };

  Range here() const;
  /// The last pass does what the one before did.
  bool repeats(Lags& lags) const;
  /// What an instruction of the one before names, the last one names a pass later.
  bool same_names(const Instruction& before, const Instruction& last) const;
  /// Older storages whose category a pass has changed: tensors of the micro-batch that it saved.
  std::vector<std::uint32_t> changed() const;
  /// The same for the micro-batches of the passes that are copied.
  void recategorize(std::int64_t copies);
  void append_copies(std::uint32_t copies, Lags lags);
  void free_of_copies(std::size_t first, const Replaced& replaced);

  Program& program_;
  EqualPasses equal_;
  bool may_stay_;
  std::vector<Range> passes_;    // the last ones, of one size and without anything between them
  std::vector<Category> older_;  // categories when the pass began
  std::vector<std::uint32_t> marked_before_, marked_;
  std::vector<Replaced> replaced_;
  std::size_t renamed_to_ = 0;
};

/// The statements of a step, with the loop over its micro-batches apart.
class PassLoop {
 public:
  /// `passes`: micro-batches of a step; a loop over so many things at the top of `loop` is theirs.
  /// `left_out` is told how many of them were copied.
  PassLoop(const model::CompiledClass& loop, Program& program, std::int64_t passes,
           EqualPasses equal, std::function<void(std::int64_t)> left_out);

  /// Runs the statements of one step, as Machine::run does.
  void run_step(model::Machine& machine, model::Value* locals);

 private:
  void run_passes(const model::Step& loop, model::Machine& machine, model::Value* locals);

  std::vector<std::vector<model::Step>> statements_;  // one each
  std::size_t passes_;
  bool compares_;
  std::function<void(std::int64_t)> left_out_;
  PassCopier copier_;
};

}  // namespace shardfit::program
