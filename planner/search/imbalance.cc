#include "search/imbalance.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "search/plan.h"
#include "search/sharing.h"

namespace shardfit::search {
namespace {

using Kind = Imbalance::Kind;

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }
std::string times(double ratio) { return format_number(ratio) + " times"; }

std::string gpu_name(const Gpu& one) {
  return "GPU " + std::to_string(one.index) + (one.role.empty() ? "" : " (" + one.role + ")");
}

std::int64_t of(const Gpu& gpu, Category category) {
  return gpu.peak.allocated_by[static_cast<std::size_t>(category)];
}

/// Parameters below a module at the peak, with what belongs to them: the GPU holds gradients and
/// states of all its parameters alike.
std::int64_t held_for(const Gpu& gpu, const std::string& module) {
  const Program& program = *gpu.program;
  std::int64_t parameters = 0;
  for (const run::LiveStorage& live : gpu.peak.live) {
    const StorageInfo& storage = program.storages[live.storage];
    if (storage.category != Category::parameter) continue;
    const std::string& path = program.modules[storage.module];
    if (path == module || path.starts_with(module + ".")) parameters += live.block_bytes;
  }
  const std::int64_t all = of(gpu, Category::parameter);
  if (parameters == 0 || all == 0) return 0;
  const std::int64_t with = of(gpu, Category::gradient) + of(gpu, Category::optimizer_state);
  return parameters +
         static_cast<std::int64_t>(static_cast<double>(with) * static_cast<double>(parameters) /
                                   static_cast<double>(all));
}

struct Part {
  std::int64_t bytes;
  std::string text;
};

/// The largest first; those that are nothing left out.
std::string join_parts(std::vector<Part> parts, std::size_t most) {
  std::erase_if(parts, [](const Part& part) { return part.bytes <= 0; });
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.bytes > b.bytes; });
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min(most, parts.size()); ++i) texts.push_back(parts[i].text);
  return join(texts);
}

std::string more_of_categories(const Gpu& more, const Gpu& less) {
  std::vector<Part> parts;
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    const std::int64_t bytes = of(more, category) - of(less, category);
    parts.push_back({bytes, std::string(category_name(category)) + " " + size(bytes)});
  }
  const std::string text = join_parts(std::move(parts), 2);
  return text.empty() ? "" : "more of " + text;
}

std::int64_t in_flight(const Option& option, const Gpu& gpu) {
  const program::MegatronJob& job = *option.job.job.megatron;
  program::PipelineShape shape;
  shape.schedule = job.virtual_stages > 1 ? program::PipelineSchedule::interleaved : job.schedule;
  shape.stages = job.pipeline;
  shape.stage = gpu.rank / (job.tensor * job.data);
  shape.micro_batches = option.job.batch.accumulation;
  shape.chunks = job.virtual_stages;
  return program::passes_in_flight(shape);
}

/// Why a pipeline's stage holds more than another.
std::string cause_in_pipeline(const Option& option, const Gpu& more, const Gpu& less) {
  std::vector<Part> parts;
  const std::int64_t passes = in_flight(option, more), others = in_flight(option, less);
  const std::int64_t activations = of(more, Category::activation) - of(less, Category::activation);
  if (passes > others) {
    const spec::Schedule schedule =
        option.spec->job.schedule ? option.spec->job.schedule->value : spec::Schedule::one_f_one_b;
    parts.push_back({activations, "the schedule (" +
                                      spec::schedule_names()[static_cast<std::size_t>(schedule)] +
                                      ") holds " + std::to_string(passes) +
                                      " passes in flight there, " + std::to_string(others) +
                                      " here: " + size(activations) + " of activations"});
  }
  for (const auto& [module, name] :
       {std::pair<const char*, const char*>{"embedding", "embedding"}, {"output_layer", "head"}}) {
    const std::int64_t held = held_for(more, module) - held_for(less, module);
    parts.push_back(
        {held, "the " + std::string(name) + " with its gradients and states: " + size(held)});
  }
  const std::string text = join_parts(std::move(parts), 3);
  return text.empty() ? more_of_categories(more, less) : text;
}

/// Ranks of ZeroRedundancyOptimizer get whole parameters.
std::string cause_of_share(const Option& option, const Gpu& gpu, std::int64_t even_states) {
  if (option.parallel != spec::Parallel::zero1 || option.job.job.megatron) return "";
  std::int64_t largest = 0;
  std::string name;
  const Program& program = *gpu.program;
  for (const run::LiveStorage& live : gpu.peak.live) {
    const StorageInfo& storage = program.storages[live.storage];
    if (storage.category != Category::parameter || live.block_bytes <= largest) continue;
    largest = live.block_bytes;
    name = program.modules[storage.module];
  }
  std::string text =
      "ZeroRedundancyOptimizer deals out whole parameters, the largest first: " + name +
      " alone has " + size(largest);
  return even_states > 0 ? text + ", and its states go to one rank" : text;
}

void memory(const Option& option, double threshold, std::vector<Imbalance>& found) {
  const auto by_need = [](const Gpu& a, const Gpu& b) {
    return a.judgement.needed < b.judgement.needed;
  };
  const auto [least, most] = std::minmax_element(option.gpus.begin(), option.gpus.end(), by_need);
  const auto need = [](const Gpu& one) { return static_cast<double>(one.judgement.needed); };
  if (need(*most) <= need(*least) * (1 + threshold)) return;
  Imbalance out;
  out.gpu = static_cast<std::size_t>(most - option.gpus.begin());
  out.against = static_cast<std::size_t>(least - option.gpus.begin());
  out.ratio = need(*most) / need(*least);
  out.what = "needs " + size(most->judgement.needed) + ", " + times(out.ratio) + " the " +
             size(least->judgement.needed) + " of " + gpu_name(*least);
  out.cause = option.split.pipeline > 1 ? cause_in_pipeline(option, *most, *least)
                                        : more_of_categories(*most, *least);
  const std::int64_t sum =
      std::accumulate(option.gpus.begin(), option.gpus.end(), std::int64_t{0},
                      [](std::int64_t all, const Gpu& one) { return all + one.judgement.needed; });
  out.cost_bytes = most->judgement.needed - sum / static_cast<std::int64_t>(option.gpus.size());
  found.push_back(std::move(out));
}

/// A category of which one GPU holds much more than an even share, though its sum may hide it.
constexpr std::int64_t worth_naming = 256 << 20;

/// Those of one GPU are one imbalance; of the GPU whose need is named already, none.
void shares(const Option& option, double threshold, std::vector<Imbalance>& found) {
  const auto count = static_cast<std::int64_t>(option.gpus.size());
  std::vector<Imbalance> of_gpu(option.gpus.size());
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    std::int64_t sum = 0;
    std::size_t most = 0;
    for (std::size_t i = 0; i < option.gpus.size(); ++i) {
      sum += of(option.gpus[i], category);
      if (of(option.gpus[i], category) > of(option.gpus[most], category)) most = i;
    }
    const std::int64_t held = of(option.gpus[most], category), even = sum / count;
    const double ratio =
        static_cast<double>(held) / static_cast<double>(std::max<std::int64_t>(1, even));
    if (held - even < worth_naming || ratio < 1 + threshold) continue;
    Imbalance& out = of_gpu[most];
    out.what += (out.what.empty() ? "holds " : ", ") + times(ratio) + " an even share of the " +
                category_name(category) + ", " + size(held) + " instead of " + size(even);
    if (category == Category::optimizer_state) {
      out.cause = cause_of_share(option, option.gpus[most], even);
    }
    out.ratio = std::max(out.ratio, ratio);
    out.cost_bytes += held - even;
  }
  const bool named = !found.empty();
  for (std::size_t i = 0; i < of_gpu.size(); ++i) {
    if (of_gpu[i].what.empty() || (named && found.front().gpu == i)) continue;
    of_gpu[i].kind = Kind::share;
    of_gpu[i].gpu = i;
    of_gpu[i].against = i;
    found.push_back(std::move(of_gpu[i]));
  }
}

void time(const Option& option, double threshold, std::vector<Imbalance>& found) {
  if (!option.timing) return;
  const auto& busy = option.timing->busy_seconds;
  const auto [idle, full] = std::minmax_element(busy.begin(), busy.end());
  if (*full <= *idle * (1 + threshold)) return;
  Imbalance out;
  out.kind = Kind::time;
  out.gpu = static_cast<std::size_t>(full - busy.begin());
  out.against = static_cast<std::size_t>(idle - busy.begin());
  out.ratio = *idle > 0 ? *full / *idle : 0;
  out.what = "computes " + format_seconds(Seconds{*full}) + " of a step of " +
             format_seconds(Seconds{option.timing->step_seconds}) + ", " +
             gpu_name(option.gpus[out.against]) + " " + format_seconds(Seconds{*idle});
  if (option.split.pipeline > 1) {
    const Gpu& gpu = option.gpus[out.gpu];
    if (held_for(gpu, "output_layer") > 0) {
      out.cause = "the head and the loss beside the stage's layers";
    }
  }
  const double sum = std::accumulate(busy.begin(), busy.end(), 0.0);
  out.cost_seconds = *full - sum / static_cast<double>(busy.size());
  found.push_back(std::move(out));
}

/// Processes that leave a context on the first GPU beside the one on their own.
void contexts(const Option& option, std::vector<Imbalance>& found) {
  const Gpu& first = option.gpus.front();
  const std::int64_t bytes = first.card.stray.bytes();
  if (bytes == 0) return;
  const std::int64_t others =
      first.card.stray.high / std::max<std::int64_t>(1, first.card.context.high);
  Imbalance out;
  out.kind = Kind::context;
  out.against = 1;
  out.ratio = static_cast<double>(first.device_bytes()) /
              static_cast<double>(std::max<std::int64_t>(1, option.gpus[1].device_bytes()));
  out.what = "holds contexts of " + std::to_string(others) +
             (others == 1 ? " other process: " : " other processes: ") + size(bytes);
  out.cause =
      "they used the first GPU before they chose their own (a tensor on 'cuda', torch.load without "
      "map_location, torch.cuda.mem_get_info before set_device)";
  out.cost_bytes = bytes;
  found.push_back(std::move(out));
}

/// A card whose link to the host is slower: all wait for its part of an exchange.
void links(const Option& option, double threshold, std::vector<Imbalance>& found) {
  const auto& given = option.spec->job.host_links;
  if (!given || !option.timing || option.timing->exchange_seconds <= 0) return;
  const auto& rates = given->value;
  const auto slower = [](BytesPerSecond a, BytesPerSecond b) { return a.value() < b.value(); };
  const auto [slow, fast] = std::minmax_element(rates.begin(), rates.end(), slower);
  if (fast->value() <= slow->value() * (1 + threshold)) return;
  Imbalance out;
  out.kind = Kind::link;
  out.gpu = static_cast<std::size_t>(slow - rates.begin());
  out.against = static_cast<std::size_t>(fast - rates.begin());
  out.ratio = fast->value() / slow->value();
  out.what = "reaches the host at " + format_rate(*slow) + ", " +
             gpu_name(option.gpus[out.against]) + " at " + format_rate(*fast);
  out.cause = "its slot is slower, and without peer access the exchange passes through the host";
  out.cost_seconds = option.timing->exchange_seconds * (1 - slow->value() / fast->value());
  found.push_back(std::move(out));
}

}  // namespace

const char* kind_name(Kind kind) {
  constexpr const char* names[] = {"memory", "share", "time", "context", "link"};
  return names[static_cast<int>(kind)];
}

std::vector<Imbalance> find_imbalances(const Option& option, double threshold) {
  std::vector<Imbalance> found;
  if (option.gpus.size() < 2) return found;
  memory(option, threshold, found);
  shares(option, threshold, found);
  time(option, threshold, found);
  contexts(option, found);
  links(option, threshold, found);
  return found;
}

std::string imbalance_text(const Option& option, const Imbalance& one) {
  std::string text = "imbalance: " + gpu_name(option.gpus[one.gpu]) + " " + one.what;
  if (!one.cause.empty()) text += "; " + one.cause;
  if (one.kind == Kind::time || one.kind == Kind::link) {
    text += "; it costs " + format_seconds(Seconds{one.cost_seconds}) + " a step";
  } else if (one.kind == Kind::memory) {
    text += "; it costs " + size(one.cost_bytes) + " above the mean of the GPUs";
  }
  if (!one.fix) return text;
  text += ". Fix, simulated anew: " + one.fix->words + ": " + verdict_text(one.fix->verdict) +
          ", needs " + size(one.fix->needed) + " at most";
  if (one.fix->step_seconds) {
    text += ", a step takes " + format_seconds(Seconds{*one.fix->step_seconds}) + " instead of " +
            format_seconds(Seconds{option.timing->step_seconds});
  }
  return text;
}

}  // namespace shardfit::search
