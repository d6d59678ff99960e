#pragma once
#include <iosfwd>
#include <string>
#include <vector>

#include "search/plan.h"
#include "spec/job_spec.h"
#include "spec/node.h"

namespace shardfit::cli {

/// What `plan` is asked to do.
struct PlanOptions {
  std::vector<std::string> files;    // plan files, or a model's config.json
  spec::Node job;                    // the command line's job keys, as CommandLine::job gives them
  bool json = false;                 // plan.json instead of the table
  bool brief = false;                // the verdict and little else
  std::string trace;                 // file for the steady step of the recommended option, or ""
  std::vector<std::string> explain;  // terms whose derivation is printed
  std::string export_program;        // folder for the programs of the ranks; "": none
};

/// Values of a file that lost against the command line, as notes.
void say_overrides(const spec::PlanSpec& plan, std::ostream& err);

/// What is said where a plan was stopped before any of its options was decided.
std::string stopped_text(const search::Plan& plan);

/// `shardfit plan`. Throws InputError for faults in files or arguments.
int plan_command(const PlanOptions& options, std::ostream& out, std::ostream& err);

}  // namespace shardfit::cli
