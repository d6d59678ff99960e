#pragma once
// What the files of Lowering share: a job's words for the model's language, and its classes by
// name.

#include <string>
#include <utility>

#include "model/machine.h"
#include "program/training.h"

namespace shardfit::program {

/// The job's head with its class: where the job names none, causal or else the family's first.
/// Throws InputError for a head the family lacks.
const std::pair<std::string, std::string>& head_of(const TrainingJob& job,
                                                   const spec::FamilySpec& family);

/// The job's numbers as the names that family and framework files use.
void set_job_words(const TrainingJob& job, const spec::FamilySpec& family, model::Globals& globals);

/// The class that a framework's file gives to a program: "trainer-1" is trainer_1.
std::string program_class(const std::string& program);

/// Throws InputError where no class has that name.
const model::CompiledClass& class_of(const model::Library& library, const std::string& name);

/// Sizes that each fit but whose products do not: a number of the model's file, where one is past
/// any model's; else it is the job's, and left to those who know its places.
void blame_overflow(const OverflowError& error, const spec::ModelSpec& model);

/// Throws InputError where an operator of a person's graph writes over what the backward of another
/// still needs: what that keeps depends on the job's precision.
void check_writes(const Lowering& lowering, const TrainingJob& job);

/// A fault of the model's program as an InputError, at the person's own key where one is to blame.
[[noreturn]] void rethrow(const model::ModelError& error, const spec::FamilySpec& family,
                          const spec::ModelSpec& model);

/// A job in Megatron's terms: half precision is the model's own, fp32 is the optimizer's; full
/// recompute is of every layer, or of the first ones of each stage. Throws InputError for what
/// Megatron's program has no place for.
TrainingJob megatron_form(TrainingJob job, const spec::ModelSpec& model);

/// Adds the parameters to the program's counts. Throws ModelError for one without elements.
void count_parameters(const std::vector<model::Parameter>& parameters, Program& program);

}  // namespace shardfit::program
