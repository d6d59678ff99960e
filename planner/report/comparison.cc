// Options side by side, one a column: what a person about to rent reads first.

#include <algorithm>
#include <functional>
#include <optional>
#include <ostream>

#include "base/format.h"
#include "report/report.h"
#include "search/sharing.h"

namespace shardfit::report {
namespace {

using search::Gpu;
using search::Money;
using search::Option;
using search::Rent;

constexpr std::size_t label_width = 20;
constexpr std::size_t column_width = 15;
constexpr std::size_t most_columns = 4;

std::string size(std::int64_t bytes) { return format_bytes(Bytes(bytes)); }
std::string time(double seconds) { return format_seconds(Seconds{seconds}); }

std::string fitted(std::string text, std::size_t columns) {
  if (text.size() >= columns) text = ".." + text.substr(text.size() - columns + 3);
  return std::string(columns - text.size(), ' ') + text;
}

std::string money(const Money& money) {
  const std::string low = format_number(money.low), high = format_number(money.high);
  return low == high ? low : low + "-" + high;
}

const Money* window(const Option& option, std::size_t i) {
  return option.rent ? &option.rent->windows[i].work.cost : nullptr;
}

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1);
}

class Comparison {
 public:
  Comparison(const Report& report, std::ostream& out) : report_(report), out_(out) {}

  void write() {
    const std::vector<Option>& all = report_.plan.options;
    for (std::size_t first = 0; first < all.size(); first += most_columns) {
      options_.clear();
      for (std::size_t i = first; i < std::min(all.size(), first + most_columns); ++i) {
        options_.push_back(&all[i]);
      }
      out_ << "\n";
      verdicts();
      memory();
      speed();
      rent();
    }
  }

 private:
  using Cell = std::function<std::string(const Option&)>;

  /// A line of cells; none where all of them are empty.
  void row(const std::string& label, const Cell& cell) {
    std::string line = label + std::string(label_width - std::min(label_width, label.size()), ' ');
    bool filled = false;
    for (const Option* option : options_) {
      const std::string text = cell(*option);
      filled = filled || !text.empty();
      line += fitted(text, column_width);
    }
    while (line.back() == ' ') line.pop_back();
    if (filled) out_ << line << "\n";
  }
  void memory_row(const std::string& label, const std::function<std::int64_t(const Gpu&)>& bytes) {
    row(label, [&](const Option& option) { return size(bytes(option.worst_gpu())); });
  }
  void heading(const std::string& text) { out_ << text << "\n"; }

  void verdicts() {
    row("", [](const Option& o) { return o.spec->name; });
    row("verdict", [](const Option& o) { return search::verdict_text(o); });
    row("cards share by", [](const Option& o) { return search::name_of(o.parallel, o.split); });
    row("micro-batch", [](const Option& o) { return format_count(o.job.batch.micro); });
    row("accumulation", [](const Option& o) { return format_count(o.job.batch.accumulation); });
    row("global batch", [](const Option& o) {
      return (o.runs() > 1 ? std::to_string(o.runs()) + " x " : "") +
             format_count(o.job.batch.global);
    });
  }

  void memory() {
    heading("each GPU (the fullest)");
    memory_row("  usable", [](const Gpu& g) { return g.card.usable; });
    memory_row("  needed", [](const Gpu& g) { return g.judgement.needed; });
    memory_row("  headroom", [](const Gpu& g) { return g.judgement.headroom(); });
    memory_row("  allocated", [](const Gpu& g) { return g.peak.allocated; });
    memory_row("  reserved", [](const Gpu& g) { return g.judgement.unlimited.reserved_peak; });
    memory_row("  device", [](const Gpu& g) { return g.device_bytes(); });
    heading("  at its peak");
    for (int c = 0; c < category_count; ++c) {
      const auto category = static_cast<std::size_t>(c);
      row(std::string("    ") + category_name(static_cast<Category>(c)), [&](const Option& o) {
        const std::int64_t bytes = o.worst_gpu().peak.allocated_by[category];
        return bytes == 0 ? std::string() : size(bytes);
      });
    }
    const auto worst = [](const Option& o) -> const search::Phase& {
      return o.worst_gpu().phases[o.worst_gpu().worst];
    };
    row("  worst phase", [&](const Option& o) { return last_part(worst(o).name); });
    row("  its operator", [&](const Option& o) { return worst(o).cause.kind; });
  }

  void speed() {
    if (std::none_of(options_.begin(), options_.end(),
                     [](const Option* o) { return o->timing.has_value(); })) {
      return;
    }
    const auto timed = [](std::string (*cell)(const Option&)) -> Cell {
      return [cell](const Option& o) {
        if (o.timing) return cell(o);
        return std::string(o.verdict == search::Verdict::does_not_fit ? "" : "not known");
      };
    };
    heading("a steady step");
    row("  time", timed([](const Option& o) { return time(o.timing->step_seconds); }));
    row("    from", timed([](const Option& o) { return time(o.timing->low_seconds); }));
    row("    to", timed([](const Option& o) { return time(o.timing->high_seconds); }));
    row("  exchanged", timed([](const Option& o) {
          return o.timing->exchange_bytes == 0 ? std::string() : size(o.timing->exchange_bytes);
        }));
    row("    takes", timed([](const Option& o) {
          return o.timing->exchange_bytes == 0 ? std::string() : time(o.timing->exchange_seconds);
        }));
    row("    not hidden", timed([](const Option& o) {
          return o.timing->exchange_bytes == 0 ? std::string() : time(o.timing->exposed_seconds);
        }));
    row("  GPU busy", timed([](const Option& o) {
          const auto& busy = o.timing->busy_seconds;
          const double least = *std::min_element(busy.begin(), busy.end());
          return format_percent(least / o.timing->step_seconds);
        }));
    row("  samples a second",
        timed([](const Option& o) { return format_number(o.samples_per_second()); }));
  }

  void rent() {
    const Rent* any = nullptr;
    for (const Option* option : options_) {
      if (option->rent) any = &*option->rent;
    }
    if (!any) return;
    heading("rent in " + any->currency + ", prices of " + any->date);
    const auto cost = [&](const std::string& label,
                          const std::function<const Money*(const Option&)>& of) {
      row(label, [&](const Option& o) {
        const Money* found = of(o);
        return found ? money(*found) : std::string();
      });
    };
    cost("  an hour", [](const Option& o) { return o.rent ? &o.rent->hour : nullptr; });
    row("  1,000 steps", [](const Option& o) {
      if (!o.rent || !o.rent->step) return std::string();
      return money({1000 * o.rent->step->low, 1000 * o.rent->step->high});
    });
    cost("  an epoch",
         [](const Option& o) { return o.rent && o.rent->epoch ? &o.rent->epoch->cost : nullptr; });
    row("    takes", [](const Option& o) {
      return o.rent && o.rent->epoch ? time(o.rent->epoch->hours * 3600) : std::string();
    });
    for (std::size_t i = 0; i < any->windows.size(); ++i) {
      cost("  " + std::to_string(any->windows[i].days) + " days",
           [&](const Option& o) { return window(o, i); });
      row("    samples", [&](const Option& o) {
        const bool known = o.rent && o.rent->windows[i].work.samples > 0;
        return known
                   ? format_count_short(static_cast<std::int64_t>(o.rent->windows[i].work.samples))
                   : std::string();
      });
      row("    epochs", [&](const Option& o) {
        const bool known = o.rent && o.rent->windows[i].work.epochs;
        return known ? format_number(*o.rent->windows[i].work.epochs) : std::string();
      });
    }
  }

  const Report& report_;
  std::ostream& out_;
  std::vector<const Option*> options_;
};

}  // namespace

void write_comparison(const Report& report, std::ostream& out) { Comparison(report, out).write(); }

}  // namespace shardfit::report
