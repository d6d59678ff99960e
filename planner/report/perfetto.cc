#include "report/perfetto.h"

#include <rapidjson/ostreamwrapper.h>
#include <rapidjson/writer.h>

#include <ostream>
#include <string>

namespace shardfit::report {
namespace {

using run::TimedEvent;

class Trace {
 public:
  Trace(std::span<const run::RankProgram> programs, std::ostream& out)
      : programs_(programs), stream_(out), json_(stream_) {}

  void write(const run::TimeResult& result) {
    json_.StartObject();
    text("displayTimeUnit", "ms");
    json_.Key("traceEvents");
    json_.StartArray();
    for (std::size_t i = 0; i < result.ranks.size(); ++i) names(i, result.ranks[i]);
    for (const TimedEvent& event : result.events) complete(event);
    json_.EndArray();
    json_.EndObject();
  }

 private:
  void text(const char* key, const std::string& value) {
    json_.Key(key);
    json_.String(value.c_str(), static_cast<rapidjson::SizeType>(value.size()));
  }
  void number(const char* key, double value) {
    json_.Key(key);
    json_.Double(value);
  }
  void whole(const char* key, std::int64_t value) {
    json_.Key(key);
    json_.Int64(value);
  }

  void metadata(const char* kind, std::size_t process, std::int64_t thread,
                const std::string& name) {
    json_.StartObject();
    text("name", kind);
    text("ph", "M");
    whole("pid", static_cast<std::int64_t>(process));
    whole("tid", thread);
    json_.Key("args");
    json_.StartObject();
    text("name", name);
    json_.EndObject();
    json_.EndObject();
  }

  void names(std::size_t process, const run::RankTime& rank) {
    std::string ranks = rank.ranks.size() == 1 ? "rank" : "ranks";
    for (const std::int32_t one : rank.ranks) ranks += " " + std::to_string(one);
    metadata("process_name", process, 0, ranks);
    for (std::size_t i = 0; i < rank.streams.size(); ++i) {
      metadata("thread_name", process, static_cast<std::int64_t>(i), rank.streams[i].name);
    }
  }

  void complete(const TimedEvent& event) {
    const Program& program = *programs_[event.program].program;
    json_.StartObject();
    if (event.collective) {
      const Collective& c = program.collectives[event.index];
      head(event, collective_name(c.kind), "exchange");
      json_.Key("args");
      json_.StartObject();
      text("module", program.modules[c.module]);
      whole("bytes", c.bytes);
      whole("ranks", static_cast<std::int64_t>(program.groups[c.group].size()));
    } else {
      const Compute& c = program.computes[event.index];
      head(event, c.kind, c.backward ? "backward" : "forward");
      json_.Key("args");
      json_.StartObject();
      text("module", program.modules[c.module]);
      number("bytes", c.bytes);
      number("flops", c.flops);
    }
    json_.EndObject();
    json_.EndObject();
  }

  void head(const TimedEvent& event, const char* name, const char* category) {
    text("name", name);
    text("cat", category);
    text("ph", "X");
    whole("pid", event.program);
    whole("tid", event.stream);
    number("ts", 1e6 * event.start);
    number("dur", 1e6 * (event.end - event.start));
  }

  std::span<const run::RankProgram> programs_;
  rapidjson::OStreamWrapper stream_;
  rapidjson::Writer<rapidjson::OStreamWrapper> json_;
};

}  // namespace

void write_perfetto(const run::TimeResult& result, std::span<const run::RankProgram> programs,
                    std::ostream& out) {
  Trace(programs, out).write(result);
  out << "\n";
}

}  // namespace shardfit::report
