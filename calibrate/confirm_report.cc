// A confirmation as text and as JSON.
#include <algorithm>

#include "base/format.h"
#include "calibrate/confirm.h"
#include "calibrate/json.h"
#include "calibrate/report.h"

namespace shardfit::calibrate {
namespace {

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string bytes_words(std::int64_t bytes) { return bytes < 0 ? "-" : format_bytes(Bytes(bytes)); }

std::string level_line(const char* name, std::int64_t predicted, std::int64_t measured) {
  std::string line = "    " + padded(name, 11) + padded(bytes_words(predicted), 12) +
                     padded(bytes_words(measured), 12);
  if (predicted > 0) {
    const double off = static_cast<double>(measured - predicted) / static_cast<double>(predicted);
    line += (off >= 0 ? "+" : "") + format_percent(off);
  }
  return line + "\n";
}

double last(const std::vector<double>& seconds) { return seconds.empty() ? 0 : seconds.back(); }

std::string rank_text(const Confirmation& c, const ConfirmedRank& r) {
  std::string text = "  rank " + std::to_string(r.rank) + " on device " + std::to_string(r.device) +
                     "\n    " + padded("", 11) + padded("predicted", 12) + "measured\n";
  text += level_line("allocated", r.predicted.allocated, r.measured.allocated);
  text += level_line("reserved", r.predicted.reserved, r.measured.reserved);
  text += level_line("device", r.predicted.device, r.measured.device);
  if (r.process_bytes >= 0) text += level_line("by NVML", r.predicted.device, r.process_bytes);
  text += "    in use before the replay: " + format_bytes(Bytes(r.before)) + "\n";
  if (!r.step_seconds.empty()) {
    text += "    step " + format_seconds(Seconds(last(r.step_seconds))) + " of " +
            std::to_string(r.step_seconds.size()) + " measured";
    if (c.planned_step_seconds) {
      text += ", predicted " + format_seconds(Seconds(*c.planned_step_seconds));
    }
    text += "\n";
  }
  if (r.exchanges > 0) {
    text += "    exchange " + format_seconds(Seconds(r.exchange_seconds)) + " in " +
            std::to_string(r.exchanges) + " collectives";
    if (c.planned_exchange_seconds) {
      text += ", predicted " + format_seconds(Seconds(*c.planned_exchange_seconds));
    }
    text += "\n";
  }
  text += "    launched: " + format_count(r.products) + " products, " + format_count(r.attentions) +
          " attentions, " + format_count(r.others) + " operators that memory bounds\n";
  if (r.without_room > 0) {
    text += "    " + format_count(r.without_room) +
            " products found no live storage large enough and moved their bytes instead\n";
  }
  if (r.retries > 0) text += "    retries of the allocator: " + std::to_string(r.retries) + "\n";
  if (!r.stopped.empty()) text += "    stopped: " + r.stopped + "\n";
  if (!r.failure.empty()) text += "    FAILED: " + r.failure + "\n";
  if (r.left > r.libraries) {
    text += "    NOT GIVEN BACK: " + format_bytes(Bytes(r.left)) + "\n";
  } else if (r.left > 0) {
    text += "    given back, but for " + format_bytes(Bytes(r.left)) +
            " that libraries keep once they are loaded\n";
  } else if (r.left == 0) {
    text += "    everything was given back\n";
  }
  return text;
}

std::string phases_text(const ConfirmedRank& r) {
  std::string text = "    " + padded("phase", 28) + padded("allocated", 24) + "reserved\n";
  for (const ConfirmedPhase& p : r.phases) {
    text +=
        "    " + padded(p.name, 28) +
        padded(bytes_words(p.predicted_allocated) + " / " + bytes_words(p.measured.allocated), 24) +
        bytes_words(p.predicted_reserved) + " / " + bytes_words(p.measured.reserved) + "\n";
  }
  return text;
}

std::string imbalance_text(const ConfirmedWay& way) {
  if (way.ranks.size() < 2) return "";
  double slowest = 0, sum = 0;
  for (const ConfirmedRank& rank : way.ranks) {
    slowest = std::max(slowest, last(rank.step_seconds));
    sum += last(rank.step_seconds);
  }
  if (sum <= 0) return "";
  const double mean = sum / static_cast<double>(way.ranks.size());
  return "  imbalance: the slowest rank's step is " + format_percent(slowest / mean - 1) +
         " above the mean\n";
}

void write_levels(Json& json, const char* key, const Levels& levels) {
  json.object(key, [&] {
    json.number("allocated_bytes", levels.allocated);
    json.number("reserved_bytes", levels.reserved);
    json.number("device_bytes", levels.device);
  });
}

void write_rank(Json& json, const ConfirmedRank& r) {
  json.object([&] {
    json.number("rank", r.rank);
    json.number("device", r.device);
    write_levels(json, "predicted", r.predicted);
    write_levels(json, "measured", r.measured);
    json.number("nvml_process_bytes", r.process_bytes);
    json.number("before_bytes", r.before);
    json.number("left_bytes", r.left);
    json.number("libraries_may_keep_bytes", r.libraries);
    json.number("retries", r.retries);
    json.number("products", r.products);
    json.number("attentions", r.attentions);
    json.number("others", r.others);
    json.number("products_without_room", r.without_room);
    json.array("step_seconds", r.step_seconds, [&](double seconds) { json.real(seconds); });
    json.real("exchange_seconds", r.exchange_seconds);
    json.number("exchanges", r.exchanges);
    json.text("stopped", r.stopped);
    json.text("failure", r.failure);
    json.array("phases", r.phases, [&](const ConfirmedPhase& p) {
      json.object([&] {
        json.text("name", p.name);
        json.number("predicted_allocated_bytes", p.predicted_allocated);
        json.number("predicted_reserved_bytes", p.predicted_reserved);
        write_levels(json, "measured", p.measured);
      });
    });
  });
}

}  // namespace

std::string confirmation_text(const Confirmation& c) {
  std::string text;
  if (c.machine.stand_in) text += std::string(stand_in_words) + "\n";
  text += "option " + c.option + "\n";
  for (const ConfirmedWay& way : c.ways) {
    text += std::string("\n") + way_name(way.way) + "\n";
    for (const ConfirmedRank& rank : way.ranks) {
      text += rank_text(c, rank);
      if (way.way == Way::caching) text += phases_text(rank);
    }
    text += imbalance_text(way);
  }
  const ConfirmVerdict verdict = judge(c);
  text += std::string("\n") + (verdict.confirmed ? "confirmed" : "OFF");
  if (c.machine.stand_in) text += " on the stand-in, which confirms the replay and no card";
  text += "\n";
  for (const std::string& reason : verdict.because) text += "  " + reason + "\n";
  text +=
      "This replays the plan's own list of storages and operators: that the list is the real "
      "program's,\nonly the real program shows (calibrate/trial). Times are those of products, of "
      "attention as products\nof as many flops, and of kernels that move as many bytes; kernels of "
      "PyTorch are not called.\n";
  return text;
}

std::string confirmation_json(const Confirmation& c) {
  const ConfirmVerdict verdict = judge(c);
  Json json;
  json.object([&] {
    json.text("version", "1");
    json.boolean("stand_in", c.machine.stand_in);
    json.text("option", c.option);
    json.boolean("confirmed", verdict.confirmed);
    json.array("because", verdict.because, [&](const std::string& text) { json.text(text); });
    json.array("ways", c.ways, [&](const ConfirmedWay& way) {
      json.object([&] {
        json.text("way", way_name(way.way));
        json.array("ranks", way.ranks, [&](const ConfirmedRank& rank) { write_rank(json, rank); });
      });
    });
  });
  return json.result();
}

}  // namespace shardfit::calibrate
