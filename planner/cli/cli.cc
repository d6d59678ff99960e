// The only file with CLI11. It knows the words; what they do stands in *_command.cc.

#include "cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <ostream>
#include <span>
#include <sstream>

#include "base/diagnostic.h"
#include "base/units.h"
#include "cli/batch_command.h"
#include "cli/calibrate_command.h"
#include "cli/command_line.h"
#include "cli/compare_command.h"
#include "cli/error_json.h"
#include "cli/graph_command.h"
#include "cli/partition_command.h"
#include "cli/plan_command.h"
#include "cli/replay_command.h"
#include "cli/standard_output.h"
#include "cli/validate_command.h"
#include "spec/data_directory.h"
#include "spec/job_spec.h"

namespace shardfit::cli {
namespace {

constexpr std::size_t help_column = 30;
constexpr std::size_t help_width = 80;

/// `text` broken into lines that fit beside the column of names.
std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t width = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::size_t length = end - at;
    if (width > 0 && width + 1 + length > help_width - help_column) {
      out += '\n';
      width = 0;
    } else if (width > 0) {
      out += ' ';
      ++width;
    }
    out.append(text, at, length);
    width += length;
    at = end + 1;
  }
  return out;
}

class WrappedHelp : public CLI::Formatter {
 public:
  WrappedHelp() { column_width(help_column); }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description());
  }
  /// Whether a file must be given says the line of usage.
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->nonpositional()) return CLI::Formatter::make_option_opts(option);
    return option->get_expected_max() > 1 ? "..." : "";
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::stringstream out;
    CLI::detail::format_help(out, command->get_name(), wrapped(command->get_description()),
                             help_column);
    return out.str();
  }
};

/// What the person asked for; filled by the parser.
struct Request {
  std::vector<std::string> files;
  PlanOptions plan;
  ReplayOptions replay;
  GraphOptions graph;
  PartitionOptions partition;
  CompareOptions compare;
  bool validate_json = false;
  int (*command)(const Request&, const CommandLine&, std::ostream&, std::ostream&) = nullptr;
};

int run_plan(const Request& request, const CommandLine& line, std::ostream& out,
             std::ostream& err) {
  PlanOptions options = request.plan;
  options.files = request.files;
  options.job = line.job();
  return plan_command(options, out, err);
}

int run_batch(const Request& request, const CommandLine& line, std::ostream& out,
              std::ostream& err) {
  PlanOptions options = request.plan;
  options.files = request.files;
  const std::vector<spec::Node> sequences = line.values("sequences");
  options.job = line.job();
  std::erase_if(options.job.children, [](const spec::Node& key) { return key.key == "sequences"; });
  return batch_command(options, sequences, out, err);
}

int run_replay(const Request& request, const CommandLine&, std::ostream& out, std::ostream& err) {
  return replay_command(request.files, request.replay, out, err);
}

int run_partition(const Request& request, const CommandLine&, std::ostream& out,
                  std::ostream& err) {
  return partition_command(request.partition, out, err);
}

int run_validate(const Request& request, const CommandLine&, std::ostream& out, std::ostream& err) {
  return validate_command(request.files, request.validate_json, out, err);
}

int run_compare(const Request& request, const CommandLine&, std::ostream& out, std::ostream&) {
  CompareOptions options = request.compare;
  options.plan = request.files.front();
  options.files.assign(request.files.begin() + 1, request.files.end());
  if (options.files.empty()) {
    throw InputError(whole_file("command line"), "compare needs a run beside the plan",
                     {"a memory snapshot, statistics as JSON, or what calibrate/trial wrote"});
  }
  return compare_command(options, out);
}

int run_graph(const Request& request, const CommandLine& line, std::ostream& out,
              std::ostream& err) {
  GraphOptions options = request.graph;
  const auto word = [&line](const char* option) {
    std::vector<spec::Node> values = line.values(option);
    return values.empty() ? std::optional<spec::Node>() : std::move(values.back());
  };
  options.micro_batch = word("micro-batch");
  options.sequence = word("sequence");
  options.precision = word("precision");
  options.attention = word("attention");
  options.head = word("head");
  return graph_command(options, out, err);
}

CLI::App* add_command(CLI::App& app, Request& request, const char* name, const char* summary,
                      int (*command)(const Request&, const CommandLine&, std::ostream&,
                                     std::ostream&)) {
  CLI::App* added = app.add_subcommand(name, summary);
  added->callback([&request, command] { request.command = command; });
  return added;
}

/// Plan files and the keys of a job, but for those of `left_out`.
void add_job(CLI::App& command, Request& request, std::span<const std::string_view> left_out = {}) {
  command
      .add_option(
          "FILE", request.files,
          "plan files (plan.yaml), later ones winning over earlier; or a model's config.json")
      ->type_name("");
  for (const spec::JobKey& key : spec::job_keys()) {
    if (std::find(left_out.begin(), left_out.end(), key.name) != left_out.end()) continue;
    // The values are read from CommandLine, which knows their places.
    CLI::Option* option = command.add_option_function<std::vector<std::string>>(
        "--" + key.name, [](const std::vector<std::string>&) {}, key.help);
    option->type_name(key.value)->group(key.group)->allow_extra_args(false);
    option->expected(1, key.repeatable ? CLI::detail::expected_max_vector_size : 1);
  }
}

void add_batch(CLI::App& app, Request& request) {
  CLI::App* batch =
      add_command(app, request, "batch",
                  "The largest micro-batch by sequence, and the longest sequence", run_batch);
  // What compares options or prices them has no place in a table of batches.
  constexpr std::array<std::string_view, 5> of_plan{"samples", "prices", "imbalance", "hypothesis",
                                                    "objective"};
  add_job(*batch, request, of_plan);
  batch
      ->add_option_function<std::vector<std::string>>(
          "--sequences", [](const std::vector<std::string>&) {},
          "rows of the table, comma-separated; default powers of two from 512")
      ->type_name("TOKENS,...")
      ->group("Output")
      ->allow_extra_args(false);
  batch->add_flag("--json", request.plan.json, "JSON instead of the table")->group("Output");
  batch->footer(
      "Exit code: 0 some job fits on every option, 1 not, 2 bad input,\n           3 a bug of "
      "ours, 4 stopped before it was decided.");
}

void add_plan(CLI::App& app, Request& request) {
  CLI::App* plan =
      add_command(app, request, "plan",
                  "Does this job fit, on which card or pair, and what is it made of?", run_plan);
  add_job(*plan, request);
  plan->add_flag("--json", request.plan.json, "plan.json instead of the table")->group("Output");
  plan->add_flag("--brief", request.plan.brief, "the verdict and little else")->group("Output");
  plan->add_option("--export-program", request.plan.export_program,
                   "writes each rank's program there, for calibrate confirm and smoke")
      ->type_name("FOLDER")
      ->group("Output");
  plan->add_option("--trace", request.plan.trace,
                   "the recommended option's steady step, for Perfetto or chrome://tracing")
      ->type_name("FILE")
      ->group("Output");
  plan->add_option("--explain", request.plan.explain,
                   "how a number comes about, down to factors and sources; repeatable")
      ->type_name("TERM")
      ->group("Output")
      ->allow_extra_args(false);
  plan->footer(
      "Exit code: 0 the recommended option fits, 1 none fits, 2 bad input,\n           3 a bug of "
      "ours, 4 stopped before it was decided.");
}

void add_replay(CLI::App& app, Request& request) {
  CLI::App* replay = add_command(app, request, "replay",
                                 "PyTorch's caching allocator on recorded traces", run_replay);
  replay
      ->add_option("TRACE", request.files, "traces of allocations and frees, with the answers seen")
      ->type_name("")
      ->required();
  replay
      ->add_option("--settings", request.replay.settings,
                   "PYTORCH_CUDA_ALLOC_CONF to replay under; default the trace's own")
      ->type_name("SETTINGS");
  replay->add_flag("--json", request.replay.json, "JSON instead of the table");
  replay->footer("Exit code: 0 all expectations hold, 1 not, 2 bad input, 3 a bug of ours.");
}

void add_partition(CLI::App& app, Request& request) {
  CLI::App* added = add_command(app, request, "partition",
                                "A graph of layers or operators cut over GPUs, exactly, with proof",
                                run_partition);
  PartitionOptions& o = request.partition;
  added
      ->add_option("FILE", o.file,
                   "JSON of dnn-partitioning or Piper, PipeDream's graph.txt, a rotor chain, or "
                   "minimalloc's CSV")
      ->type_name("")
      ->required();
  added->add_option("--gpus", o.gpus, "number of GPUs; default the file's, else 2 (a chain: 1)")
      ->check(CLI::Range(1, 4096).description(""))
      ->type_name("K");
  added->add_option("--cpus", o.cpus, "CPUs beside the GPUs; default the file's")
      ->check(CLI::Range(0, 4096).description(""))
      ->type_name("N");
  added
      ->add_option("--gpu-bytes", o.gpu_bytes,
                   "memory of a GPU, or one a GPU: '80 GiB,40 GiB'; default the file's")
      ->type_name("BYTES");
  added->add_option("--gpu-speed", o.gpu_speed, "relative speed of each GPU: 1,0.5; default equal")
      ->type_name("LIST");
  added
      ->add_option("--bandwidth", o.bandwidth,
                   "of one GPU to the others, '25 GiB/s'; default the file's (Piper only)")
      ->type_name("RATE");
  added
      ->add_option("--microbatches", o.microbatches,
                   "in a batch (Piper: default the file's; a chain: one a GPU)")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("N");
  added->add_option("--slots", o.slots, "memory resolution of a chain; default 500")
      ->check(CLI::Range(1, 10'000).description(""))
      ->type_name("N");
  added
      ->add_option("--budget", o.budget_seconds,
                   "seconds of CPU time; then the best so far with its gap")
      ->type_name("SECONDS");
  added->add_flag("--non-contiguous", o.non_contiguous,
                  "parts may be any sets of nodes, not only a pipeline's");
  added->add_flag("--json", o.json, "JSON instead of the table");
  added->footer("Exit code: 0 it fits, 1 it does not, 2 bad input, 3 a bug of ours.");
}

void add_validate(CLI::App& app, Request& request) {
  CLI::App* validate =
      add_command(app, request, "validate", "Predictions against measured cases", run_validate);
  validate
      ->add_option("FILE|DIR", request.files,
                   "lists of measured cases: a job with every setting, and what was read; a "
                   "directory means all of them below it")
      ->type_name("")
      ->required();
  validate->add_flag("--json", request.validate_json, "one JSON object a reading, one a line");
  validate->footer("Exit code: 0, or 2 where a file is bad, 3 a bug of ours.");
}

void add_compare(CLI::App& app, Request& request) {
  CLI::App* added = add_command(app, request, "compare", "Your own run beside a plan", run_compare);
  added
      ->add_option("PLAN FILE", request.files,
                   "plan.json; then a memory snapshot of PyTorch (read as data only), "
                   "memory_stats() as JSON, or the trial's JSON; several: one a rank")
      ->type_name("")
      ->required();
  added->add_option("--option", request.compare.option, "of the plan; default the recommended one")
      ->type_name("NAME");
  added->add_flag("--json", request.compare.json, "JSON instead of the table");
  added->footer("Exit code: 0 as predicted, 1 off, 2 bad input, 3 a bug of ours.");
}

void add_graph(CLI::App& app, Request& request) {
  CLI::App* added =
      add_command(app, request, "graph",
                  "Layers and operators of a model: parameters, saved bytes, flops", run_graph);
  added
      ->add_option("MODEL", request.graph.model, "a config.json, a file of model_specs or its name")
      ->type_name("");
  const auto word = [added](const char* name, const char* value, const char* help) {
    added
        ->add_option_function<std::string>(
            name, [](const std::string&) {}, help)
        ->type_name(value);
  };
  word("--micro-batch", "N", "samples; default 1");
  word("--sequence", "TOKENS", "tokens a sample; default 2048");
  word("--precision", "WORD", "bf16-mixed (default), bf16, fp16-mixed, fp32");
  word("--attention", "WORD", "auto (default): the kernel PyTorch dispatches; eager");
  word("--head", "NAME", "what the model ends in: causal, seqcls, ...; default the family's first");
  added
      ->add_option("--implementation", request.graph.implementations,
                   "modules of model_specs/implementations in place of the family's, such as "
                   "fused-rms-norm; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  added
      ->add_option("--dot", request.graph.dot,
                   "the operators for Graphviz; - : instead of the table")
      ->type_name("FILE");
  added->add_flag("--kinds", request.graph.kinds,
                  "operator kinds with what each saves, and the model language's functions");
  added->add_flag("--json", request.graph.json, "JSON with every operator and tensor");
  added->footer("Exit code: 0, 2 bad input, 3 a bug of ours.");
}

void add_commands(CLI::App& app, Request& request) {
  add_plan(app, request);
  add_batch(app, request);
  add_validate(app, request);
  add_graph(app, request);
  add_replay(app, request);
  add_partition(app, request);
  add_compare(app, request);
  // Its words are read by the program it hands over to (run(), below).
  app.add_subcommand("calibrate", "Ask the real card: measure, confirm, smoke-test");
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

/// Faults a look at the words finds, each with its place: unknown commands and options.
void check_words(const CLI::App& app, const CommandLine& line) {
  const std::vector<std::string>& words = line.arguments();
  if (words.empty()) return;
  Diagnostics faults;
  const CLI::App* command = &app;
  if (!words.front().starts_with("-")) {
    const auto named = app.get_subcommands(
        [&](const CLI::App* candidate) { return candidate->get_name() == words.front(); });
    if (!named.empty()) {
      command = named.front();
    } else {
      faults.error(line.where(0), "unknown command " + shardfit::quoted(words.front()),
                   suggest(words.front(), command_names(app)));
      faults.throw_if_any();
    }
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (std::size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const std::string word = words[i].substr(0, words[i].find('='));
    const bool is_option = word.size() > 1 && word[0] == '-' &&
                           (word[1] == '-' || std::isalpha(static_cast<unsigned char>(word[1])));
    if (!is_option || command->get_option_no_throw(word)) continue;
    Location where = line.where(i);
    where.length = word.size();
    std::vector<std::string> notes;
    const std::string near = closest(word, known);
    for (const CLI::App* other : app.get_subcommands({})) {
      if (command == &app || other == command || !other->get_option_no_throw(word)) continue;
      notes.push_back("'" + other->get_name() + "' takes it, '" + command->get_name() +
                      "' has no use for it");
    }
    if (notes.empty() && !near.empty()) notes.push_back("did you mean '" + near + "'?");
    notes.push_back("shardfit " + (command == &app ? "" : command->get_name() + " ") +
                    "--help lists them all");
    faults.error(where, "unknown option " + shardfit::quoted(word), std::move(notes));
  }
  faults.throw_if_any();
}

/// CLI11's own complaint (a value missing, an option twice) with the place of the option it names.
[[noreturn]] void complain(const CLI::Error& error, const CommandLine& line) {
  const std::string text = error.what();
  const std::string option = text.substr(0, text.find(':'));
  const std::vector<std::string>& words = line.arguments();
  for (std::size_t i = words.size(); i-- > 0;) {
    if (words[i].substr(0, words[i].find('=')) != option) continue;
    Location where = line.where(i);
    where.length = option.size();
    const bool twice = text.find("At Most 1") != std::string::npos;
    const bool bare = text.find(" missing") != std::string::npos;
    throw InputError(where, twice  ? option + " is given more than once"
                            : bare ? option + " needs a value"
                                   : text);
  }
  throw InputError(whole_file("command line"), text);
}

constexpr const char* what_next =
    "\nTry next:\n"
    "  ./shardfit plan --model CONFIG.json --on h200    your own model on one card\n"
    "  ./shardfit plan --help                           every option, with its default\n";

int dispatch(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  const CommandLine line(arguments);
  CLI::App app("Does this training job fit on this card or pair of cards, and why?", "shardfit");
  Request request;
  app.formatter(std::make_shared<WrappedHelp>());
  app.set_version_flag("--version", "shardfit " SHARDFIT_VERSION, "the version");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.require_subcommand(1);
  add_commands(app, request);
  check_words(app, line);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& done) {
    app.exit(done, out, err);  // help and version
    return fits;
  } catch (const CLI::Error& error) {
    complain(error, line);
  }
  spec::check_data_directory();
  return request.command(request, line, out, err);
}

/// Without arguments: the shipped example, and what to try after it.
int run_example(std::ostream& out, std::ostream& err) {
  const std::string example = SHARDFIT_SOURCE_DIR "/examples/01-does-it-fit/plan.yaml";
  std::error_code missing;
  if (!std::filesystem::exists(example, missing)) return dispatch({"--help"}, out, err);
  const int code = dispatch({"plan", example, "--brief"}, out, err);
  out << what_next;
  return code;
}

}  // namespace

int run(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  try {
    if (arguments.empty()) return run_example(out, err);
    if (arguments.front() == "calibrate") {
      return calibrate_command({arguments.begin() + 1, arguments.end()}, out, err);
    }
    return dispatch(arguments, out, err);
  } catch (const InputError& error) {
    const auto& words = arguments;
    if (std::find(words.begin(), words.end(), "--json") != words.end()) {
      write_errors_json(error, out);
    }
    err << fault_text(error.what(), is_terminal(err));
    return bad_input;
  } catch (const OverflowError& error) {
    err << "command line: error: the numbers given are too large to count in 63 bits: "
        << error.what() << "\n";
    return bad_input;
  } catch (const std::exception& error) {
    err << "shardfit: internal error: " << error.what()
        << "\nThis is a bug of ours. Please report it with the command and its files.\n";
    return our_bug;
  }
}

}  // namespace shardfit::cli
