#pragma once
// What a framework's profile (model_specs/frameworks/*.yaml, key `profile`) sets where a job says
// nothing.

#include <string>
#include <vector>

#include "spec/job_spec.h"

namespace shardfit::search {

struct Profile {
  std::string framework;     // its word: "hf-trainer"
  std::string version;       // "transformers 5.24, accelerate 1.15, PyTorch 2.13"
  std::string program;       // the loop: "trainer-1"
  std::string program_says;  // what it keeps alive, for the report
  spec::Optimizer optimizer = spec::Optimizer::adamw_fused;
  std::string optimizer_because;
  bool clips = false;
  std::string clip_because;
  bool reentrant = false;                  // of full recompute
  bool selective = false;                  // whether it offers selective recompute
  std::vector<std::string> policies;       // those of it that it has; empty: all
  bool own_models = false;                 // it trains none but its own forms of models
  std::vector<spec::Parallel> parallel;    // ways to share a job that are modelled, simplest first
  std::vector<spec::Parallel> on_request;  // others that are, not tried unless asked for
};

/// Whether the profile offers a policy of selective recompute ("first-N-blocks": of any N).
bool offers_policy(const Profile& profile, const std::string& policy);

/// Words of the frameworks that have a profile, sorted.
std::vector<std::string> modelled_frameworks();

/// The profile of a framework that is modelled. Throws InputError for a faulty file.
Profile read_profile(const std::string& framework);

/// Modules that PEFT adapts where nobody names any, by model type; empty where it has no default.
std::vector<std::string> default_adapter_targets(const std::string& model_type);

}  // namespace shardfit::search
