#include <ostream>

#include "run/trace.h"

namespace shardfit::run {
namespace {

void write_header(const TraceHeader& header, std::ostream& out) {
  const auto line = [&](const char* key, const auto& value) { out << key << ' ' << value << '\n'; };
  out << "# allocator trace, format 1\n";
  if (!header.name.empty()) line("name", header.name);
  if (!header.about.empty()) line("about", header.about);
  if (!header.torch.empty()) line("torch", header.torch);
  line("total", header.total);
  if (header.has_context) line("context", header.context);
  if (header.conf) line("conf", *header.conf);
  if (header.fraction) line("fraction", *header.fraction);
  if (header.has_streams) line("streams", header.streams);
  if (header.has_every) line("every", header.every);
  if (header.has_layout) line("layout", header.layout_after_each ? "all" : "end");
  if (!header.source.empty()) line("source", header.source);
  out << "events\n";
}

void write_expectation(const Expectation& expectation, std::ostream& out) {
  const auto numbers = [&](const char* word, std::size_t count) {
    out << word;
    for (std::size_t i = 0; i < count; ++i) out << ' ' << expectation.numbers[i];
    out << '\n';
  };
  switch (expectation.kind) {
    case Expectation::Kind::values:
      return numbers("=", 6);
    case Expectation::Kind::peak:
      return numbers("peak", 4);
    case Expectation::Kind::counters:
      return numbers("counters", 4);
    case Expectation::Kind::error:
      out << "! " << expectation.texts.front() << '\n';
      return;
    case Expectation::Kind::layout:
      for (const std::string& text : expectation.texts) out << text << '\n';
      return;
  }
}

}  // namespace

std::string event_text(const Trace& trace, std::size_t event) {
  const TraceEvent& e = trace.events[event];
  const auto id = [&] { return std::to_string(trace.ids[e.target]); };
  const auto label = [&] { return std::to_string(e.target); };
  switch (e.kind) {
    case EventKind::allocate:
      return "a " + id() + " " + std::to_string(e.bytes) + " " + std::to_string(e.stream);
    case EventKind::free:
      return "f " + id();
    case EventKind::record_stream:
      return "r " + id() + " " + std::to_string(e.stream);
    case EventKind::empty_cache:
      return "empty";
    case EventKind::hold:
      return "h";
    case EventKind::complete:
      return "e";
    case EventKind::settings: {
      const std::string& text = trace.settings[static_cast<std::size_t>(e.bytes)].text;
      return text.empty() ? "conf" : "conf " + text;
    }
    case EventKind::fraction:
      return "fraction " + trace.fractions[static_cast<std::size_t>(e.bytes)].text;
    case EventKind::enter_pool:
      return "pool+ " + label() + (e.use_on_oom ? " use_on_oom" : "") +
             (e.no_split ? " no_split" : "");
    case EventKind::leave_pool:
      return "pool- " + label();
    case EventKind::delete_pool:
      return "pooldel " + label();
    case EventKind::reset_peaks:
      return "peak0";
  }
  return "";
}

void write_trace(const Trace& trace, std::ostream& out) {
  write_header(trace.header, out);
  auto expectation = trace.expectations.begin();
  for (std::size_t done = 0; done <= trace.events.size(); ++done) {
    for (; expectation != trace.expectations.end() && expectation->after == done; ++expectation) {
      write_expectation(*expectation, out);
    }
    if (done < trace.events.size()) out << event_text(trace, done) << '\n';
  }
  out << "end\n";
}

}  // namespace shardfit::run
