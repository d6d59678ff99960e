// How each number of a plan comes about, down to factors and sources.

#include <algorithm>
#include <functional>
#include <sstream>

#include "base/format.h"
#include "report/report.h"

namespace shardfit::report {
namespace {

using search::Gpu;
using search::Option;

std::string exact(std::int64_t bytes) {
  return format_bytes_exact(Bytes(bytes)) + " (" + format_bytes(Bytes(bytes)) + ")";
}

/// One option's numbers, to be explained term by term.
struct Subject {
  const Option& option;
  const Gpu& gpu;
  std::ostream& out;

  const Program& program() const { return *gpu.program; }
  const search::Phase& worst() const { return gpu.phases[gpu.worst]; }
  std::int64_t tokens() const { return option.job.job.micro_batch * option.job.job.sequence; }
  void line(const std::string& text) const {
    const std::size_t indent = text.find_first_not_of(' ');
    out << std::string(indent + 2, ' ') << wrapped(text.substr(indent), indent + 6, indent + 2);
  }
};

std::int64_t alive(const run::Census& census, Category category) {
  return census.allocated_by[static_cast<std::size_t>(category)];
}

/// The groups of one category: count x bytes each = bytes, and per token where asked for.
void list_groups(const Subject& s, const run::Census& census, Category category, bool per_token) {
  constexpr std::size_t most = 40;
  const std::vector<Group> groups = group_by_kind(s.program(), census, category);
  for (std::size_t i = 0; i < groups.size() && i < most; ++i) {
    const Group& g = groups[i];
    std::string text = format_bytes_exact(Bytes(g.bytes)) + " = " + format_count(g.count) + " x ";
    const bool even = g.bytes % g.count == 0;
    text += (even ? "" : "about ") + format_bytes_exact(Bytes(g.bytes / g.count));
    if (per_token && s.tokens() > 0) {
      text += " = " + format_exact(static_cast<double>(g.bytes) / static_cast<double>(s.tokens())) +
              " B a token";
    }
    s.line("  " + text + "  " + g.kind + (g.module.empty() ? "" : " in " + g.module));
  }
  if (groups.size() > most) s.line("  and " + std::to_string(groups.size() - most) + " more kinds");
}

void at_the_peak(const Subject& s, Category category, bool per_token) {
  s.line(std::string(category_name(category)) + " = " + exact(alive(s.gpu.peak, category)) +
         " at the peak, in " + s.worst().name);
  list_groups(s, s.gpu.peak, category, per_token);
}

std::string dtype_words(DType dtype) {
  return std::to_string(element_size(dtype)) + " B (" + dtype_name(dtype) + ")";
}

void parameters(const Subject& s) {
  const Program& p = s.program();
  s.line("count: " + format_count(p.parameters_total) +
         (s.option.parameters == p.parameters_total
              ? std::string()
              : " of the model's " + format_count(s.option.parameters) + " on this rank") +
         ", of them trained " + format_count(p.parameters_trainable) + "; each " +
         dtype_words(s.option.job.job.parameters) + " by the precision asked for" +
         (s.option.job.job.lora && s.option.job.job.lora->fp32_adapters
              ? ", adapters 4 B (PEFT's autocast_adapter_dtype)"
              : ""));
  at_the_peak(s, Category::parameter, false);
  s.line("source: the model's file " + s.option.spec->job.model.value +
         " and its family's modules; blocks are rounded up to 512 bytes by the allocator; tied "
         "parameters stand once");
}

void gradients(const Subject& s) {
  s.line("one gradient a trained parameter, of its dtype: " +
         format_count(s.program().parameters_trainable) +
         " trained; the first of a step is kept as it comes, later ones are added in place; all "
         "are freed by zero_grad (set_to_none)");
  at_the_peak(s, Category::gradient, false);
  s.line("source: pytorch torch/csrc/autograd/functions/accumulate_grad.h");
}

void optimizer_states(const Subject& s) {
  s.line("optimizer " + spec::optimizer_names()[static_cast<std::size_t>(s.option.job.optimizer)] +
         ": states of each trained parameter, made in the first step");
  at_the_peak(s, Category::optimizer_state, false);
  const std::int64_t bytes = alive(s.gpu.peak, Category::optimizer_state);
  if (s.program().parameters_trainable > 0) {
    s.line("per trained parameter: " +
           format_exact(static_cast<double>(bytes) /
                        static_cast<double>(s.program().parameters_trainable)) +
           " B");
  }
  s.line("source: pytorch torch/optim");
}

/// Everything autograd keeps when the forward of the last step's last micro-batch is done.
void activations(const Subject& s) {
  const Program& program = s.program();
  std::int64_t end = -1;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.action != Action::phase) continue;
    if (program.phases[instruction.id].name == "forward") end = static_cast<std::int64_t>(i);
  }
  at_the_peak(s, Category::activation, true);
  if (end < 0) return;
  const run::Census census = live_after(program, s.gpu.judgement.unlimited, end);
  s.line("kept for the backward when a forward is done: " +
         exact(alive(census, Category::activation)) + ", over " + format_count(s.tokens()) +
         " tokens of a micro-batch:");
  list_groups(s, census, Category::activation, true);
  s.line("source: what each operator's autograd node saves, as pytorch's derivatives.yaml says");
}

void temporaries(const Subject& s) {
  s.line("tensors that nothing keeps beyond the statement that made them");
  at_the_peak(s, Category::temporary, true);
}
void communication(const Subject& s) {
  s.line(s.option.gpus.size() > 1 ? "buffers of the exchange between GPUs"
                                  : "no collectives on one GPU");
  at_the_peak(s, Category::communication, false);
}
void workspace(const Subject& s) {
  s.line("cuBLAS takes " + format_bytes_exact(Bytes(s.option.job.job.device.blas_workspace())) +
         " a thread through the allocator on capability " +
         s.option.spec->cluster.device.compute_capability);
  at_the_peak(s, Category::workspace, false);
  s.line(
      "source: pytorch aten/src/ATen/cuda/CublasHandlePool.cpp; one for the main thread, one for "
      "autograd's");
}

void requested(const Subject& s) {
  s.line("requested = " + exact(s.gpu.peak.requested) +
         " at the peak: bytes asked for, before rounding");
  for (int c = 0; c < category_count; ++c) {
    s.line("  " + format_bytes_exact(Bytes(s.gpu.peak.requested_by[static_cast<std::size_t>(c)])) +
           "  " + category_name(static_cast<Category>(c)));
  }
}
void allocated(const Subject& s) {
  s.line("allocated = " + exact(s.gpu.peak.allocated) +
         ": the highest sum of blocks handed out, in " + s.worst().name);
  for (int c = 0; c < category_count; ++c) {
    s.line("  " + format_bytes_exact(Bytes(s.gpu.peak.allocated_by[static_cast<std::size_t>(c)])) +
           "  " + category_name(static_cast<Category>(c)));
  }
  s.line("requested " + format_bytes_exact(Bytes(s.gpu.peak.requested)) +
         "; the rest is rounding to 512 bytes and blocks not split");
}
void reserved(const Subject& s) {
  const auto& unlimited = s.gpu.judgement.unlimited;
  s.line("reserved = " + exact(unlimited.reserved_peak) +
         ": segments taken from the driver, with no limit on the card");
  s.line("  allocated at the peak " + exact(s.gpu.peak.allocated) +
         "; the rest is cached blocks and fragments");
  s.line("it decides nothing: under a limit cached blocks are given back; see needed");
  s.line("source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.13, replayed on this program");
}
/// What is outside the allocator beside the process's own context.
std::string exchange_term(const Subject& s, const std::string& sign) {
  const search::Card& card = s.gpu.card;
  std::string text;
  if (card.exchange.high > 0) text += sign + "exchange " + exact(card.exchange.bytes());
  if (card.stray.high > 0) text += sign + "stray " + exact(card.stray.bytes());
  return text;
}

void stray(const Subject& s) {
  const search::Context& c = s.gpu.card.stray;
  if (c.high == 0) return s.line("stray = 0: no other process has a context on this card");
  s.line("stray = " + exact(c.bytes()) + ", contexts of other processes, the middle of " +
         format_bytes(Bytes(c.low)) + " to " + format_bytes(Bytes(c.high)));
  s.line("source: " + c.source);
}

void exchange(const Subject& s) {
  const search::Context& c = s.gpu.card.exchange;
  if (c.high == 0) return s.line("exchange = 0: nothing is exchanged with another card");
  s.line("exchange = " + exact(c.bytes()) + ", the middle of " + format_bytes(Bytes(c.low)) +
         " to " + format_bytes(Bytes(c.high)) + ": " + c.source);
}

void context(const Subject& s) {
  const search::Context& c = s.gpu.card.context;
  s.line("context = " + exact(c.bytes()) + ", the middle of " + format_bytes(Bytes(c.low)) +
         " to " + format_bytes(Bytes(c.high)));
  s.line("source: " + c.source);
}
void device(const Subject& s) {
  s.line("device = reserved " + exact(s.gpu.judgement.unlimited.reserved_peak) + " + context " +
         exact(s.gpu.card.context.bytes()) + exchange_term(s, " + ") + " = " +
         exact(s.gpu.device_bytes()));
}
void usable(const Subject& s) {
  const spec::DeviceSpec& device = s.option.spec->cluster.device;
  s.line("usable = " + exact(s.gpu.card.usable) + ": what the runtime reports as total on " +
         device.gpu);
  s.line("source: " + device.usable->source +
         (device.usable->date.empty() ? "" : " (" + device.usable->date + ")") + " at " +
         device.usable->where.text());
  for (const Bytes seen : device.usable_seen) s.line("  seen: " + format_bytes(seen));
  if (device.marketed) s.line("marketed as " + exact(device.marketed->value.count()));
}
void budget(const Subject& s) {
  s.line("budget = usable " + exact(s.gpu.card.usable) + " - context " +
         exact(s.gpu.card.context.bytes()) + exchange_term(s, " - ") + " = " +
         exact(s.gpu.judgement.budget));
}
void needed(const Subject& s) {
  s.line("needed = " + exact(s.gpu.judgement.needed) +
         ": the least the allocator must be able to reserve for loading and three steps to run; 2 "
         "MiB less ends in its error (found by replays on this card; where cached blocks are given "
         "back, a smaller amount still may do). Allocated at the peak: " +
         exact(s.gpu.peak.allocated));
}
void headroom(const Subject& s) {
  s.line("headroom = budget " + exact(s.gpu.judgement.budget) + " - needed " +
         exact(s.gpu.judgement.needed) + " = " + exact(s.gpu.judgement.headroom()));
}
void interval(const Subject& s) {
  const search::Accuracy& a = s.option.accuracy;
  s.line("interval = " + exact(s.gpu.judgement.low) + " to " + exact(s.gpu.judgement.high));
  s.line("  allocated " + exact(s.gpu.peak.allocated) + ", " + format_exact(a.low * 100) +
         " % to +" + format_exact(a.high * 100) + " %, over " + format_count(a.readings) +
         " readings");
  s.line("source: " + a.source);
}
void verdict(const Subject& s) {
  s.line(std::string("verdict = ") + verdict_text(s.option.verdict) + ": " + s.option.reason);
  s.line("the program was replayed through the allocator with " +
         format_bytes(Bytes(s.gpu.judgement.budget)) + " to reserve, then");
  s.line("  with what is outside the allocator at " +
         format_bytes(Bytes(s.gpu.card.most_outside())) + " and " +
         format_bytes(Bytes(s.gpu.judgement.high - s.gpu.peak.allocated)) +
         " set aside for the interval's upper end");
}
void peak(const Subject& s) {
  const search::Phase& worst = s.worst();
  s.line("peak = " + exact(worst.allocated) + " in " + worst.name);
  if (worst.instruction >= 0) {
    s.line("  reached when " + worst.cause.kind +
           (worst.cause.layer.empty() ? "" : " in " + worst.cause.layer) + " took its " +
           category_name(worst.cause.category));
  }
}

struct Term {
  const char* name;
  void (*explain)(const Subject&);
};
constexpr Term terms[] = {
    {"verdict", verdict},
    {"peak", peak},
    {"parameters", parameters},
    {"gradients", gradients},
    {"optimizer_states", optimizer_states},
    {"activations", activations},
    {"temporaries", temporaries},
    {"communication", communication},
    {"workspace", workspace},
    {"requested", requested},
    {"allocated", allocated},
    {"reserved", reserved},
    {"device", device},
    {"usable", usable},
    {"context", context},
    {"exchange", exchange},
    {"stray", stray},
    {"budget", budget},
    {"needed", needed},
    {"headroom", headroom},
    {"interval", interval},
};

}  // namespace

std::span<const std::string> explain_terms() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Term& term : terms) out.push_back(term.name);
    return out;
  }();
  return names;
}

void check_terms(std::span<const std::string> asked, Diagnostics& faults) {
  const std::span<const std::string> known = explain_terms();
  for (const std::string& term : asked) {
    std::string wanted = term;
    std::replace(wanted.begin(), wanted.end(), '-', '_');
    if (std::find(known.begin(), known.end(), wanted) != known.end()) continue;
    const auto source = std::make_shared<const Source>(Source{"--explain", term});
    faults.error({source, 0, term.size()}, "no term " + shardfit::quoted(term),
                 suggest(wanted, known));
  }
}

std::string explain(const Report& report, const std::string& term) {
  std::string wanted = term;
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  for (const Term& candidate : terms) {
    if (wanted != candidate.name) continue;
    std::ostringstream out;
    for (const Option& option : report.plan.options) {
      out << option.spec->name << "\n";
      candidate.explain({option, option.worst_gpu(), out});
    }
    return out.str();
  }
  Diagnostics faults;
  check_terms(std::vector<std::string>{term}, faults);
  faults.throw_if_any();
  return "";
}

}  // namespace shardfit::report
