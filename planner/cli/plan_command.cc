#include "cli/plan_command.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/format.h"
#include "cli/cli.h"
#include "cli/search_watch.h"
#include "report/perfetto.h"
#include "report/report.h"
#include "run/program_file.h"
#include "spec/cluster_spec.h"
#include "spec/data_directory.h"
#include "spec/job_spec.h"

namespace shardfit::cli {

/// "note: --sequence 8192 wins over 4096 at plan.yaml:3:13".
void say_overrides(const spec::PlanSpec& plan, std::ostream& err) {
  for (const spec::Override& override : plan.overrides) {
    if (override.winner == override.loser) continue;  // nothing is lost
    const bool line = override.winner_where.file() == "command line";
    const std::string key =
        line ? (override.key == "options" ? "--on" : "--" + override.key) : override.key;
    err << "note: " << key << " " << override.winner << " wins over " << override.loser << " at "
        << override.loser_where.text() << "\n";
  }
}

namespace {

/// One file a rank of each option (run/program_file.h), as `calibrate confirm` looks for them.
void export_programs(const search::Plan& plan, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  for (const search::Option& option : plan.options) {
    for (const search::Gpu& gpu : option.gpus) {
      const std::string path = folder + "/" + run::program_file_name(option.spec->name, gpu.rank);
      std::ofstream out(path, std::ios::binary);
      run::write_program(*gpu.program, option.spec->name, out);
      out.flush();
      if (!out) throw InputError(whole_file(path), "the file cannot be written");
    }
  }
}

/// The recommended option's steady step, or the first's, for Perfetto.
void write_trace(const search::Plan& plan, const std::string& path) {
  const search::Option& option = plan.options[plan.recommended.value_or(0)];
  if (!option.timing) {
    throw InputError(whole_file(path), "there is no steady step to trace: " + option.spec->name +
                                           " does not run, or its speed is not known");
  }
  const auto programs = search::rank_programs(option);
  run::TimeSettings settings;
  settings.events = true;
  std::ofstream out(path, std::ios::binary);
  report::write_perfetto(run::run_time(programs, search::machine_for(option), settings), programs,
                         out);
  out.flush();
  if (!out) throw InputError(whole_file(path), "the file cannot be written");
}

int exit_code(const search::Plan& plan) {
  const auto& options = plan.options;
  // Where they cannot be weighed against each other, one that fits is enough.
  const bool any = plan.recommended ? options[*plan.recommended].verdict == search::Verdict::fits
                                    : std::any_of(options.begin(), options.end(),
                                                  [](const search::Option& option) {
                                                    return option.verdict == search::Verdict::fits;
                                                  });
  if (any) return fits;
  const bool open = !plan.unfinished.empty() ||
                    std::any_of(options.begin(), options.end(), [](const search::Option& option) {
                      return option.search && option.search->undecided();
                    });
  return open ? not_decided : does_not_fit;
}

}  // namespace

std::string stopped_text(const search::Plan& plan) {
  const bool budget = plan.stopped == StopCheck::Why::budget;
  return "shardfit: " + std::string(budget ? "the budget was used up" : "interrupted") +
         " before anything was decided of " + join(plan.unfinished, " and ") + "\n";
}

int plan_command(const PlanOptions& options, std::ostream& out, std::ostream& err) {
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  const spec::PlanSpec spec = spec::read_plan(options.files, options.job, devices, faults);
  report::check_terms(options.explain, faults);
  faults.throw_if_any();
  say_overrides(spec, err);
  search::PlanSettings settings;
  settings.effects = options.json || (!options.brief && options.explain.empty());
  settings.all_needs = options.json;
  settings.computes = !options.export_program.empty();
  const search::Plan plan = [&] {
    const SearchWatch watch(err);  // an interrupt asks for what is known so far
    settings.search = &watch.controls();
    return search::make_plan(spec, settings);
  }();
  if (plan.options.empty()) {
    err << stopped_text(plan);
    return not_decided;
  }
  if (settings.computes) export_programs(plan, options.export_program);
  if (!options.trace.empty()) write_trace(plan, options.trace);
  const report::Report report{plan};
  if (options.json) {
    report::write_json(report, options.explain, out);
  } else if (!options.explain.empty()) {
    for (const std::string& term : options.explain) out << report::explain(report, term);
  } else {
    report::TableStyle style;
    if (&out == &std::cout) style = report::style_of_terminal();
    style.brief = options.brief;
    report::write_table(report, style, out);
  }
  return exit_code(plan);
}

}  // namespace shardfit::cli
