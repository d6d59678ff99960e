#include "program/recompute.h"

namespace shardfit::program {

Checkpointing::Checkpointing(const TrainingJob&, model::Machine& machine) : machine_(machine) {}
Checkpointing::~Checkpointing() { machine_.recompute = nullptr; }

}  // namespace shardfit::program
