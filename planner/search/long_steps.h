#pragma once
// Steps of many equal micro-batches: a few are run, the others are taken to be like the last.

#include <cstdint>
#include <memory>
#include <optional>

#include "search/plan.h"

namespace shardfit::search {

/// Passes of a step that are lowered, and by how many passes one may differ from another: those of
/// an interleaved pipeline come in groups.
struct PassesRun {
  std::int64_t some = 1, unit = 1;
};
/// All of them up to program::most_passes, and of a pipeline that holds all of them at a time.
PassesRun passes_run(const program::TrainingJob& job);

/// Whether the job's passes are all lowered however many there are, since all are held at a time.
bool holds_all_passes(const program::TrainingJob& job);

/// The job as it is lowered where only bytes are asked for: the batches of all its passes, and a
/// few of many passes; Megatron-core's, whose passes take a batch each, has a few passes.
program::TrainingJob few_of(program::TrainingJob job);

/// By as many times the passes that `shorter` has fewer.
void extend(Timing& timing, const Timing& shorter, double times);

/// A steady step of all ranks of `whole`, which has no way of sharing put into it yet. `known`,
/// where given, is the program of every rank with all passes. Nothing where the speed of the device
/// is not known.
std::optional<Timing> step_timing(const spec::OptionSpec& spec, spec::Parallel parallel,
                                  program::TrainingJob whole, const program::Lowering& lowering,
                                  const std::shared_ptr<const Program>& known = nullptr);

}  // namespace shardfit::search
