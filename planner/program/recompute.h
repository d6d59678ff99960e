#pragma once
// Activation checkpointing of a model's units (torch/utils/checkpoint.py).

#include <memory>

#include "model/machine.h"
#include "program/training.h"

namespace shardfit::program {

/// Installs the job's recompute policy on the machine for as long as it lives.
class Checkpointing {
 public:
  Checkpointing(const TrainingJob& job, model::Machine& machine);
  ~Checkpointing();
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;

 private:
  struct State;
  model::Machine& machine_;
  std::unique_ptr<State> state_;
};

}  // namespace shardfit::program
