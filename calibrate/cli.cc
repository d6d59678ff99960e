// The only file of this program with CLI11.
#include "calibrate/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ostream>

#include "base/diagnostic.h"
#include "calibrate/commands.h"
#include "cli/error_json.h"

namespace shardfit::calibrate {
namespace {

constexpr const char* codes =
    "Exit code: 0 done, 1 something is off or failed, 2 bad input, 3 a bug of ours,\n"
    "           4 waived: a device was needed and none is there.";

struct Request {
  CommandOptions options;
  int (*command)(const CommandOptions&, std::ostream&, std::ostream&) = nullptr;
};

CLI::App* add(CLI::App& app, Request& request, const char* name, const char* summary,
              int (*command)(const CommandOptions&, std::ostream&, std::ostream&)) {
  CLI::App* added = app.add_subcommand(name, summary);
  added->callback([&request, command] { request.command = command; });
  added->add_flag("--json", request.options.json, "JSON instead of the table");
  added->footer(codes);
  return added;
}

void add_run(CLI::App& app, Request& request) {
  CommandOptions& o = request.options;
  CLI::App* run = add(app, request, "run", "Measure what a plan takes for granted",
                      [](const CommandOptions& options, std::ostream& out, std::ostream& err) {
                        return run_command(options, out, err);
                      });
  run->add_flag("--quick", o.run.quick, "fewer sizes and samples: at most two minutes");
  run->add_flag("--dry-run", o.dry_run, "say what would run, bytes and seconds");
  run->add_option("--only", o.run.only, "rows of `list`; default all")->type_name("NAME");
  run->add_option("--device", o.run.device, "index of the device; default 0")
      ->check(CLI::Range(0, 1023))
      ->type_name("N");
  run->add_option("--on", o.on, "device of a dry run without one; default h200")
      ->type_name("[COUNTx]DEVICE");
  run->add_option("--profile", o.profile, "writes a device profile; never from a stand-in")
      ->type_name("FILE");
  run->add_option("--name", o.name, "of its device; default the catalogue's")->type_name("NAME");
  run->add_option("--plan", o.plan, "plan.json whose matrix products are timed")->type_name("FILE");
  run->add_option("--programs", o.programs, "of plan --export-program; default: beside PLAN")
      ->type_name("FOLDER");
  run->add_option("--margin", o.margin, "of a device, never taken; default 512 MiB")
      ->type_name("BYTES");
}

void add_plan(CLI::App& app, CommandOptions& o) {
  app.add_option("PLAN", o.plan, "plan.json of `shardfit plan --json`")->type_name("")->required();
  app.add_option("--option", o.option, "of the plan; default the recommended one")
      ->type_name("NAME");
  app.add_option("--programs", o.programs, "of plan --export-program; default: beside PLAN")
      ->type_name("FOLDER");
  app.add_flag("--dry-run", o.dry_run, "say what would run");
}

void add_confirm(CLI::App& app, Request& request) {
  CLI::App* confirm =
      add(app, request, "confirm", "Do what a plan says on the devices; compare", confirm_command);
  add_plan(*confirm, request.options);
  confirm->add_option("--gpu-budget", request.options.budget, "time on the devices; default 60 s")
      ->type_name("TIME");
  confirm
      ->add_option("--margin", request.options.margin, "of a device, never taken; default 512 MiB")
      ->type_name("BYTES");
}

/// CLI11 names no unknown command.
void check_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front().starts_with("-")) return;
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  if (std::find(known.begin(), known.end(), arguments.front()) != known.end()) return;
  throw InputError(whole_file("command line"),
                   "unknown command " + shardfit::quoted(arguments.front()),
                   suggest(arguments.front(), known));
}

int dispatch(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  CLI::App app("Ask the real card: measure what the planner assumes, confirm what it predicts.",
               "shardfit calibrate");
  Request request;
  app.require_subcommand(1);
  app.footer(codes);
  add(app, request, "list", "The benchmarks, and which are waived here",
      [](const CommandOptions& options, std::ostream& o, std::ostream&) {
        return list_command(options, o);
      });
  add_run(app, request);
  add_confirm(app, request);
  add_plan(
      *add(app, request, "smoke", "Each operator of a plan against a reference", smoke_command),
      request.options);
  check_command(app, arguments);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& success) {
    app.exit(success, out, err);
    return done;
  } catch (const CLI::Error& error) {
    throw InputError(whole_file("command line"), error.what(),
                     {"shardfit calibrate --help lists commands and options"});
  }
  return request.command(request.options, out, err);
}

}  // namespace

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  try {
    return dispatch(arguments, out, err);
  } catch (const InputError& error) {
    const bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
    if (json) cli::write_errors_json(error, out);
    err << error.what();
    return bad_input;
  } catch (const std::exception& error) {
    err << "shardfit calibrate: internal error: " << error.what() << "\n";
    return our_bug;
  }
}

}  // namespace shardfit::calibrate
