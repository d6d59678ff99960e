#include "cli/partition_command.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <ostream>

#include "base/diagnostic.h"
#include "base/format.h"
#include "cli/cli.h"
#include "cli/partition_output.h"
#include "partition/instances/instances.h"
#include "partition/offsets.h"
#include "partition/partition.h"
#include "partition/piper.h"
#include "partition/recompute.h"
#include "spec/reader.h"

namespace shardfit::cli {
namespace {

using partition::DeviceClass;

constexpr double unlimited = std::numeric_limits<double>::infinity();

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

[[noreturn]] void refuse(const std::string& option, const std::string& problem,
                         std::vector<std::string> notes = {}) {
  throw InputError(whole_file("command line"), option + " " + problem, std::move(notes));
}

std::vector<std::string> items_of(const std::string& list) {
  std::vector<std::string> out(1);
  for (char c : list) {
    if (c == ',')
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

/// One value a GPU: as many as there are GPUs, or one for all; nothing where not given.
template <class Parse>
std::vector<double> per_gpu(const std::string& option, const std::string& list, int gpus,
                            Parse parse) {
  if (list.empty()) return {};
  const std::vector<std::string> items = items_of(list);
  if (items.size() != 1 && static_cast<int>(items.size()) != gpus)
    refuse(option,
           "has " + std::to_string(items.size()) + " values for " + std::to_string(gpus) + " GPUs");
  std::vector<double> out;
  for (const std::string& item : items) out.push_back(parse(item));
  out.resize(gpus, out.front());
  return out;
}

double bytes_value(const std::string& text) {
  const Parsed<Bytes> bytes = parse_bytes(text);
  if (!bytes.value || bytes.value->count() < 0)
    refuse("--gpu-bytes", quoted(text) + (bytes.value ? " is negative" : " " + bytes.problem),
           {"expected for example 16 GiB; units: " + byte_units()});
  return static_cast<double>(bytes.value->count());
}

double speed_value(const std::string& text) {
  const std::optional<double> speed = parse_real(text);
  if (!speed || !(*speed >= 1e-6) || *speed > 1e6)
    refuse("--gpu-speed", quoted(text) + " is no speed",
           {"expected a number from 0.000001 to 1,000,000, for example 1,0.5"});
  return *speed;
}

/// Options that the file's format has no use for.
void refuse_unused(const PartitionOptions& options, partition::InstanceFormat format) {
  using partition::InstanceFormat;
  const bool buffers = format == InstanceFormat::buffers;
  const bool piper = format == InstanceFormat::piper, chain = format == InstanceFormat::chain;
  const PartitionOptions usual;
  const auto refuse_where = [](bool unused, const char* option) {
    if (unused) refuse(option, "does not apply to a file of this format", {"leave it out"});
  };
  refuse_where(!options.bandwidth.empty() && !piper, "--bandwidth");
  refuse_where(options.microbatches != usual.microbatches && !piper && !chain, "--microbatches");
  refuse_where(options.slots != usual.slots && !chain, "--slots");
  refuse_where(options.gpus != usual.gpus && buffers, "--gpus");
  refuse_where(options.cpus != usual.cpus && format != InstanceFormat::placement, "--cpus");
  refuse_where(!options.gpu_bytes.empty() && buffers, "--gpu-bytes");
  refuse_where(!options.gpu_speed.empty() && (buffers || chain), "--gpu-speed");
  refuse_where(options.non_contiguous && (buffers || piper || chain), "--non-contiguous");
}

/// Equal GPUs are one class, in the order of their first; a CPU class may follow.
struct Devices {
  std::vector<DeviceClass> classes;
  std::vector<std::vector<int>> numbers;  // by class: which GPUs it stands for
};

Devices devices_of(const PartitionOptions& options, int gpus, double file_bytes, int cpus) {
  const std::vector<double> bytes = per_gpu("--gpu-bytes", options.gpu_bytes, gpus, bytes_value);
  const std::vector<double> speeds = per_gpu("--gpu-speed", options.gpu_speed, gpus, speed_value);
  Devices out;
  for (int i = 0; i < gpus; ++i) {
    const DeviceClass d{
        "GPU", 1, false, speeds.empty() ? 1.0 : speeds[i], bytes.empty() ? file_bytes : bytes[i],
        true};
    std::size_t at = 0;
    while (at < out.classes.size() &&
           (out.classes[at].speed != d.speed || out.classes[at].bytes != d.bytes))
      ++at;
    if (at == out.classes.size()) {
      out.classes.push_back(d);
      out.classes.back().count = 0;
      out.numbers.emplace_back();
    }
    ++out.classes[at].count;
    out.numbers[at].push_back(i);
  }
  if (cpus == 0) return out;
  out.classes.push_back({"CPU", cpus, true, 1, unlimited, false});
  out.numbers.emplace_back();
  for (int i = 0; i < cpus; ++i) out.numbers.back().push_back(i);
  return out;
}

/// Beyond these the tables of the search do not fit in memory.
void check_size(const PartitionOptions& options, const char* what, double size, double most) {
  if (size <= most) return;
  throw InputError(whole_file(options.file), std::string("is too large: ") + what + " is " +
                                                 format_exact(size) + ", at most " +
                                                 format_exact(most) + " is searched");
}

/// Prefixes of the graph x numbers of devices used.
void check_graph(const PartitionOptions& options, std::size_t nodes, const Devices& devices) {
  check_size(options, "the number of nodes", static_cast<double>(nodes), 20'000);
  double states = 1;
  for (const DeviceClass& d : devices.classes) states *= d.count + 1;
  check_size(options, "nodes times ways to use the devices", static_cast<double>(nodes) * states,
             2e7);
}

std::string counted(int n, const char* one, const char* many) {
  return std::to_string(n) + " " + (n == 1 ? one : many);
}

template <class Result>
void take_result(const Result& r, PartitionAnswer* answer) {
  answer->feasible = r.feasible;
  answer->proven = r.proven;
  answer->lower_bound = r.lower_bound;
  answer->objective = r.objective;
  answer->gap = r.gap;
  answer->reason = r.reason;
  answer->certificate = r.certificate;
}

/// Parts in pipeline order, each with the number of its device.
template <class IdOf>
void add_parts(const partition::PartitionResult& r, const Devices& devices, double scale,
               bool numeric, IdOf id_of, PartitionAnswer* answer) {
  std::vector<std::size_t> used(devices.classes.size(), 0);
  for (const partition::Part& part : r.parts) {
    const DeviceClass& device = devices.classes[part.device_class];
    const int number = devices.numbers[part.device_class][used[part.device_class]++];
    PartRow row;
    row.device = device.name + " " + std::to_string(number);
    row.numeric_ids = numeric;
    for (int v : part.nodes) row.ids.push_back(id_of(v));
    row.load = part.load_ms * scale;
    row.latency = part.latency_ms * scale;
    row.communication = part.communication_ms * scale;
    row.bytes = part.bytes;
    if (device.speed != 1) row.details.push_back({"speed", format_exact(device.speed), true});
    answer->parts.push_back(std::move(row));
  }
}

partition::PartitionOptions solver_options(const PartitionOptions& options) {
  partition::PartitionOptions out;
  out.contiguous = !options.non_contiguous;
  out.budget_seconds = options.budget_seconds;
  return out;
}

struct Scaled {
  bool feasible, proven;
  double lower_bound, objective, gap;
  std::string reason;
  partition::Certificate certificate;
};

Scaled scaled(const partition::PartitionResult& r, double scale) {
  Scaled out{r.feasible, r.proven,     r.lower_bound_ms * scale, r.objective_ms * scale, r.gap,
             r.reason,   r.certificate};
  out.certificate.threshold_ms *= scale;
  return out;
}

void solve_placement(const PartitionOptions& options, const SourcePtr& source,
                     PartitionAnswer* answer) {
  const partition::PlacementInstance p = partition::read_placement(source);
  const double start = cpu_seconds();
  const int gpus = options.gpus > 0 ? options.gpus : p.accelerators;
  const int cpus = options.cpus >= 0 ? options.cpus : p.cpus;
  if (gpus + cpus == 0) refuse("--gpus", "is missing: the file has no devices");
  const Devices devices = devices_of(options, gpus, p.accelerator_bytes, cpus);
  check_graph(options, p.nodes.size(), devices);
  const partition::RawGraph raw = raw_graph(p);
  const partition::PartitionResult r =
      solve_partition(raw, devices.classes, solver_options(options));
  answer->cpu_seconds = cpu_seconds() - start;
  answer->format = "dnn-partitioning";
  answer->unit = "ms";
  answer->task = counted(static_cast<int>(p.nodes.size()), "node", "nodes") + " on " +
                 counted(gpus, "GPU", "GPUs");
  if (cpus > 0) {
    answer->task += " and " + counted(cpus, "CPU", "CPUs");
    if (options.cpus < 0)
      answer->notes.push_back("the file offers " + counted(cpus, "CPU", "CPUs") +
                              " beside the GPUs; --cpus 0 leaves it out");
  }
  take_result(scaled(r, 1), answer);
  add_parts(
      r, devices, 1, true, [&](int v) { return std::to_string(p.nodes[v].id); }, answer);
}

void solve_profile(const PartitionOptions& options, const SourcePtr& source,
                   PartitionAnswer* answer) {
  const partition::ProfileInstance all = partition::read_profile(source);
  const double start = cpu_seconds();
  const partition::ProfileInstance p = partition::without_inputs(all);
  const int gpus = options.gpus > 0 ? options.gpus : 2;
  const Devices devices = devices_of(options, gpus, unlimited, 0);
  check_graph(options, p.nodes.size(), devices);
  partition::PartitionOptions solver = solver_options(options);
  solver.limit_last_part = false;
  const partition::PartitionResult r = solve_partition(raw_graph(p), devices.classes, solver);
  answer->cpu_seconds = cpu_seconds() - start;
  answer->format = "PipeDream";
  answer->unit = "s";
  answer->task = counted(static_cast<int>(p.nodes.size()), "node", "nodes") + " on " +
                 counted(gpus, "GPU", "GPUs");
  if (p.nodes.size() < all.nodes.size())
    answer->notes.push_back(
        counted(static_cast<int>(all.nodes.size() - p.nodes.size()), "input or item node is",
                "input and item nodes are") +
        " left out, transfers cost nothing and the last part's memory is not limited: so the "
        "format's own solver counts");
  take_result(scaled(r, 1e-3), answer);
  add_parts(
      r, devices, 1e-3, false, [&](int v) { return p.nodes[v].id; }, answer);
}

void solve_pipeline(const PartitionOptions& options, const SourcePtr& source,
                    PartitionAnswer* answer) {
  partition::PiperInstance p = partition::read_piper(source);
  if (options.gpus > 0) p.devices = options.gpus;
  if (options.microbatches > 0) p.microbatches = options.microbatches;
  if (!options.gpu_bytes.empty()) p.device_bytes = bytes_value(options.gpu_bytes);
  if (!options.bandwidth.empty()) {
    const Parsed<BytesPerSecond> rate = parse_bytes_per_second(options.bandwidth);
    if (!rate.value || rate.value->value() <= 0)
      refuse("--bandwidth",
             quoted(options.bandwidth) + (rate.value ? " is zero" : " " + rate.problem),
             {"expected for example 25 GiB/s; units: " + bytes_per_second_units()});
    p.bandwidth = rate.value->value();
  }
  check_size(options, "the number of GPUs", p.devices, 64);
  check_size(options, "the number of layers", static_cast<double>(p.nodes.size()), 20'000);
  if (options.non_contiguous) refuse("--non-contiguous", "does not apply to Piper's stages");
  if (!options.gpu_speed.empty()) refuse("--gpu-speed", "does not apply to Piper's stages");
  const double start = cpu_seconds();
  const partition::PiperResult r = solve_piper(p, solver_options(options));
  answer->cpu_seconds = cpu_seconds() - start;
  answer->format = "Piper";
  answer->objective_name = "most time a sample of a stage";
  answer->task = counted(static_cast<int>(p.nodes.size()), "layer", "layers") + " on " +
                 counted(p.devices, "GPU", "GPUs") + ", " +
                 counted(p.microbatches, "micro-batch", "micro-batches") + " a batch";
  take_result(r, answer);
  int gpu = 0;
  for (const partition::PiperStage& stage : r.stages) {
    PartRow row;
    const int count = stage.tensor_degree * stage.data_degree;
    row.device = "GPU " + std::to_string(gpu);
    if (count > 1) row.device += "-" + std::to_string(gpu + count - 1);
    gpu += count;
    int recomputed = 0;
    const std::size_t t = static_cast<std::size_t>(
        std::find(p.tensor_degrees.begin(), p.tensor_degrees.end(), stage.tensor_degree) -
        p.tensor_degrees.begin());
    double own = 0;
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      const partition::PiperInstance::Node& node = p.nodes[stage.nodes[i]];
      row.ids.push_back(std::to_string(node.id));
      own += node.variants[t][stage.variants[i]].time_per_sample / stage.data_degree;
      recomputed += node.variants[t][stage.variants[i]].id != "vanilla";
    }
    row.load = stage.time_per_sample;
    row.latency = own;
    row.communication = stage.time_per_sample - own;
    row.bytes = stage.device_bytes;
    row.details = {{"tp", std::to_string(stage.tensor_degree), true},
                   {"dp", std::to_string(stage.data_degree), true},
                   {"in_flight", std::to_string(stage.in_flight), true},
                   {"recomputed_layers", std::to_string(recomputed), true}};
    answer->parts.push_back(std::move(row));
  }
}

/// What is left of `whole` when sums of the same terms in another order are taken from it: nothing
/// where it is no more than their rounding.
double without_noise(double difference, double whole) {
  return difference <= 1e-9 * whole ? 0 : difference;
}

void solve_chain(const PartitionOptions& options, const SourcePtr& source,
                 PartitionAnswer* answer) {
  const partition::ChainInstance chain = partition::read_chain(source);
  const int gpus = options.gpus > 0 ? options.gpus : 1;
  const double start = cpu_seconds();
  if (options.slots < 1 || options.slots > 10'000) refuse("--slots", "is not from 1 to 10000");
  partition::SlotChain slots = partition::to_slots(chain, options.slots);
  const double unit = slots.unit_bytes;
  const int everything = 2 * options.slots + 2 * chain.length();
  int budget = everything;
  if (!options.gpu_bytes.empty())
    budget = static_cast<int>(
        std::min<double>(everything, std::floor(bytes_value(options.gpu_bytes) / unit)));
  check_size(options, "layers squared times slots",
             static_cast<double>(chain.length()) * chain.length() * everything, 1e8);
  const partition::RecomputeTable table(std::move(slots), budget);
  const int microbatches = options.microbatches > 0 ? options.microbatches : gpus;
  const partition::ChainSplit split = split_chain(table, gpus, budget, microbatches);
  answer->cpu_seconds = cpu_seconds() - start;
  answer->format = "rotor chain";
  answer->unit = "ms";
  answer->objective_name = "most forward and backward time of a stage";
  answer->task =
      counted(chain.length(), "layer", "layers") + " on " + counted(gpus, "GPU", "GPUs") +
      (options.gpu_bytes.empty() ? " with all the memory it takes" : " of " + options.gpu_bytes);
  answer->notes.push_back("sizes are rounded up to slots of " +
                          format_bytes(Bytes(static_cast<std::int64_t>(unit))) +
                          "; within that resolution every cut and recomputation is covered");
  answer->feasible = split.feasible;
  answer->proven = true;
  answer->objective = answer->lower_bound = split.objective_ms;
  answer->certificate.bound = split.feasible ? "dynamic program" : "infeasible";
  answer->certificate.units = chain.length();
  if (!split.feasible) {
    const int fewest = partition::RecomputeTable(table.chain(), everything)
                           .fewest_slots(0, chain.length() - 1, 1e300);
    answer->reason = "one GPU needs at least " +
                     format_bytes(Bytes(static_cast<std::int64_t>(fewest * unit))) +
                     " for the whole chain, however much is recomputed";
  }
  for (std::size_t i = 0; i < split.stages.size(); ++i) {
    const partition::ChainStage& s = split.stages[i];
    PartRow row;
    row.device = "GPU " + std::to_string(i);
    double base = 0;
    for (int l = s.first; l <= s.last; ++l) {
      row.ids.push_back(std::to_string(l));
      base += chain.forward_ms[l] + chain.backward_ms[l];
    }
    row.load = row.latency = s.ms;
    row.bytes = s.slots * unit;
    const std::vector<partition::ChainStep> steps = table.sequence(s.first, s.last, s.slots);
    const partition::ChainRun run = simulate(table.chain(), s.first, s.last, steps);
    row.bytes = run.peak_slots * unit;
    row.details = {{"in_flight", std::to_string(s.in_flight), true},
                   {"recompute_ms", format_exact(without_noise(s.ms - base, base)), true},
                   {"stash",
                    s.in_flight == 1 ? "none"
                    : s.stash_all    ? "all"
                                     : "input",
                    false}};
    answer->parts.push_back(std::move(row));
  }
}

void solve_buffers(const PartitionOptions& options, const SourcePtr& source,
                   PartitionAnswer* answer) {
  const partition::BufferInstance b = partition::read_buffers(source);
  if (b.buffers.empty()) throw InputError(whole_file(options.file), "the instance has no buffers");
  check_size(options, "the number of buffers", static_cast<double>(b.buffers.size()), 10'000);
  const double start = cpu_seconds();
  partition::OffsetOptions search;
  search.budget_seconds = options.budget_seconds;
  if (options.budget_seconds > 0) search.most_steps = std::numeric_limits<std::int64_t>::max();
  const partition::OffsetResult r = assign_offsets(b, search);
  answer->cpu_seconds = cpu_seconds() - start;
  answer->format = "minimalloc";
  answer->objective_name = "arena";
  answer->unit = "units";
  answer->task = counted(static_cast<int>(b.buffers.size()), "buffer", "buffers") + " in one arena";
  answer->proven = r.proven;
  answer->objective = static_cast<double>(r.peak);
  answer->lower_bound = static_cast<double>(r.lower_bound);
  answer->gap = r.gap;
  answer->certificate.bound = r.bound;
  answer->certificate.steps = r.steps;
  answer->feasible = !b.capacity || r.peak <= *b.capacity;
  if (!answer->feasible)
    answer->reason = "the arena found takes " + format_count(r.peak) + " units, the file allows " +
                     format_count(*b.capacity);
  PartRow row;
  row.device = "arena";
  row.numeric_ids = false;
  row.load = answer->objective;
  row.latency = static_cast<double>(r.lower_bound);
  for (const partition::BufferInstance::Buffer& x : b.buffers) row.ids.push_back(x.id);
  answer->offsets = r.offsets;
  answer->parts.push_back(std::move(row));
}

}  // namespace

int partition_command(const PartitionOptions& options, std::ostream& out, std::ostream&) {
  if (options.gpus < 0 || options.gpus > 4096) refuse("--gpus", "is not from 1 to 4096");
  if (options.cpus > 4096) refuse("--cpus", "is not from 0 to 4096");
  if (options.microbatches < 0 || options.microbatches > 1 << 20)
    refuse("--microbatches", "is not from 1 to 1048576");
  if (!(options.budget_seconds >= 0 && options.budget_seconds <= 1e9)) {
    refuse("--budget", "is not from 0 to 1e9 seconds");
  }
  const SourcePtr source = spec::read_source(options.file);
  const std::optional<partition::InstanceFormat> format = partition::detect_format(source);
  if (!format)
    throw InputError(whole_file(options.file), "is no instance of a known format",
                     {"expected the JSON of dnn-partitioning or Piper, PipeDream's graph.txt, a "
                      "rotor chain or minimalloc's CSV"});
  refuse_unused(options, *format);
  PartitionAnswer answer;
  answer.file = options.file;
  answer.objective_name = "largest load";
  switch (*format) {
    case partition::InstanceFormat::placement:
      solve_placement(options, source, &answer);
      break;
    case partition::InstanceFormat::profile:
      solve_profile(options, source, &answer);
      break;
    case partition::InstanceFormat::piper:
      solve_pipeline(options, source, &answer);
      break;
    case partition::InstanceFormat::chain:
      solve_chain(options, source, &answer);
      break;
    case partition::InstanceFormat::buffers:
      solve_buffers(options, source, &answer);
      break;
  }
  if (options.non_contiguous && answer.parts.size() > 1)
    answer.notes.push_back(
        "parts need not be contiguous: a sample may pass a GPU more than once, and the load "
        "holds for a pipeline that is kept full");
  if (options.json)
    write_answer_json(answer, out);
  else
    print_answer(answer, out);
  return answer.feasible ? fits : does_not_fit;
}

}  // namespace shardfit::cli
