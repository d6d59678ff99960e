#include "search/imbalance.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "search/imbalance_cause.h"
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
  out.cause = cause_of_memory(option, *most, *least);
  const std::int64_t sum =
      std::accumulate(option.gpus.begin(), option.gpus.end(), std::int64_t{0},
                      [](std::int64_t all, const Gpu& one) { return all + one.judgement.needed; });
  out.cost_bytes = most->judgement.needed - sum / static_cast<std::int64_t>(option.gpus.size());
  found.push_back(std::move(out));
}

/// A category of which one GPU holds much more than an even share, though its sum may hide it.
constexpr std::int64_t worth_naming = 256 << 20;

/// GPUs whose ranks have the same part of the model.
bool same_part(const Option& option, std::size_t a, std::size_t b) {
  if (a == b) return true;
  return option.split.pipeline > 1 &&
         stage_of(option, option.gpus[a]) == stage_of(option, option.gpus[b]);
}

/// What a GPU holds at any time; of the others only GPUs whose peaks are in one phase compare.
bool is_kept(Category category) {
  return category == Category::parameter || category == Category::gradient ||
         category == Category::optimizer_state;
}

bool peak_together(const Option& option) {
  const auto phase = [](const Gpu& gpu) { return gpu.phases[gpu.worst].name; };
  return std::all_of(option.gpus.begin(), option.gpus.end(),
                     [&](const Gpu& gpu) { return phase(gpu) == phase(option.gpus.front()); });
}

/// Those of one GPU are one imbalance; of the GPU whose need is named already, none.
void shares(const Option& option, double threshold, std::vector<Imbalance>& found) {
  const auto count = static_cast<std::int64_t>(option.gpus.size());
  std::vector<Imbalance> of_gpu(option.gpus.size());
  const bool together = peak_together(option);
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    if (!is_kept(category) && !together) continue;
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
    out.what += (out.what.empty() ? "holds " : ", ") + times(ratio) + " an even share of " +
                category_name(category) + ", " + size(held) + " instead of " + size(even);
    out.categories.push_back(category);
    out.ratio = std::max(out.ratio, ratio);
    out.cost_bytes += held - even;
  }
  const std::size_t named = found.empty() ? option.gpus.size() : found.front().gpu;
  for (std::size_t i = 0; i < of_gpu.size(); ++i) {
    Imbalance& one = of_gpu[i];
    if (one.categories.empty()) continue;
    if (named < option.gpus.size() && same_part(option, named, i)) continue;
    one.kind = Kind::share;
    one.gpu = one.against = i;
    for (std::size_t other = 0; other < option.gpus.size(); ++other) {
      const auto held = [&](std::size_t gpu) { return held_of(option.gpus[gpu], one.categories); };
      if (held(other) < held(one.against)) one.against = other;
    }
    one.cause = cause_of_memory(option, option.gpus[i], option.gpus[one.against]);
    found.push_back(std::move(one));
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
  out.cause = cause_of_time(option, option.gpus[out.gpu], option.gpus[out.against]);
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
  found.push_back(std::move(out));
}

}  // namespace

const char* kind_name(Kind kind) {
  constexpr const char* names[] = {"memory", "share", "time", "context", "link"};
  return names[static_cast<int>(kind)];
}

std::int64_t held_of(const Gpu& gpu, const std::vector<Category>& categories) {
  std::int64_t held = 0;
  for (const Category category : categories) held += of(gpu, category);
  return held;
}

std::vector<Imbalance> find_imbalances(const Option& option, double threshold) {
  std::vector<Imbalance> found;
  if (option.gpus.size() < 2) return found;
  memory(option, threshold, found);
  shares(option, threshold, found);
  contexts(option, found);
  if (option.verdict == Verdict::does_not_fit) return found;  // there is no step to shorten
  time(option, threshold, found);
  links(option, threshold, found);
  return found;
}

std::string imbalance_text(const Option& option, const Imbalance& one) {
  std::string text = "imbalance: " + gpu_name(option.gpus[one.gpu]) + " " + one.what;
  if (!one.cause.empty()) text += "; " + one.cause;
  if (one.cost_seconds > 0) {
    text += "; it costs " + format_seconds(Seconds{one.cost_seconds}) + " a step";
  } else if (one.kind == Kind::memory) {
    text += "; it costs " + size(one.cost_bytes) + " above the mean of the GPUs";
  }
  if (!one.fix) return text;
  text += ". Fix, simulated anew: " + one.fix->words + ": " + verdict_text(one.fix->verdict) +
          ", needs " + size(one.fix->needed) + " at most";
  if (one.fix->held > 0) {
    text += ", where " + size(held_of(option.gpus[one.gpu], one.categories)) +
            " of what is named become " + size(one.fix->held) + " at most";
  }
  if (one.fix->step_seconds) {
    const std::string then = format_seconds(Seconds{*one.fix->step_seconds});
    const std::string now =
        option.timing ? format_seconds(Seconds{option.timing->step_seconds}) : "";
    text += ", a step takes " + then;
    text += now.empty() ? "" : now == then ? " as before" : " instead of " + now;
  }
  return text;
}

}  // namespace shardfit::search
