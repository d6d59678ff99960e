#include "run/time_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "run/busy_time.h"

namespace shardfit::run {
namespace {

constexpr double unknown = -1;

/// An exchange that several programs come to.
struct Rendezvous {
  CollectiveKind kind = CollectiveKind::all_reduce;
  double bytes = 0;
  std::size_t arrived = 0;
  double ready = 0;  // of the last one
  double start = 0;
  double end = unknown;
};

/// The exchanges between the same programs, in the order in which each comes to them.
struct Channel {
  std::vector<std::uint32_t> programs;
  std::vector<Rendezvous> meetings;
  std::vector<std::size_t> next;  // of each program
};

/// What is sent from one program to another, in order.
struct Wire {
  std::vector<double> done;
  std::size_t taken = 0;
};

/// Where the steps of a program lie: the last one and, before it, the one that warms up.
struct Window {
  std::size_t begin = 0, steady = 0, end = 0;
};

Window window_of(const Program& program) {
  int last = 0;
  std::vector<std::size_t> ends;  // of each step, the instruction behind its last mark
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.action != Action::phase) continue;
    const int step = program.phases[instruction.id].step;
    last = std::max(last, step);
    ends.resize(std::max(ends.size(), static_cast<std::size_t>(step) + 1), 0);
    ends[static_cast<std::size_t>(step)] = i + 1;
  }
  const std::size_t size = program.instructions.size();
  if (last == 0) return {ends.empty() ? 0 : ends[0], ends.empty() ? 0 : ends[0], size};
  const auto n = static_cast<std::size_t>(last);
  return {last > 1 ? ends[n - 2] : ends[0], ends[n - 1], size};
}

/// One program on its way.
struct Player {
  const Program* program = nullptr;
  std::vector<std::int32_t> ranks;
  Window window;
  std::size_t at = 0;
  double host = 0;
  double host_busy = 0;
  std::vector<double> streams;          // when each has done what it was given
  std::vector<double> events;           // when each event was done
  std::vector<float> seconds;           // of each compute; unknown until asked for
  std::vector<std::uint32_t> channels;  // of each group
  std::vector<Interval> exchanges;      // that computes may meet
  std::size_t first_exchange = 0;
  double steady_from = 0;  // the end of the step before
  std::vector<TimedEvent> done;

  bool ended() const { return at >= window.end; }
  bool steady() const { return at >= window.steady; }
  double all_done() const {
    double end = 0;
    for (const double t : streams) end = std::max(end, t);
    return end;
  }
};

class Game {
 public:
  Game(std::span<const RankProgram> programs, const Machine& machine)
      : machine_(machine), times_(machine.speed, machine.device, machine.capability_major) {
    for (const RankProgram& one : programs) add(one);
    for (Player& player : players_) {
      for (const auto& group : player.program->groups) {
        player.channels.push_back(channel_of(player, group));
      }
    }
  }

  void play() {
    while (true) {
      bool moved = false;
      bool all_ended = true;
      for (Player& player : players_) {
        moved = run(player) || moved;
        all_ended = all_ended && player.ended();
      }
      if (all_ended) return;
      if (!moved) throw TimeError(stuck());
    }
  }

  std::vector<Player>& players() { return players_; }

 private:
  void add(const RankProgram& one) {
    Player player;
    player.program = one.program;
    player.ranks = one.ranks.empty() ? std::vector<std::int32_t>{one.program->rank} : one.ranks;
    player.window = window_of(*one.program);
    player.at = player.window.begin;
    player.streams.assign(one.program->streams.size(), 0);
    player.events.assign(one.program->events, 0);
    player.seconds.assign(one.program->computes.size(), static_cast<float>(unknown));
    const auto number = static_cast<std::uint32_t>(players_.size());
    for (const std::int32_t rank : player.ranks) owner_.emplace(rank, number);
    players_.push_back(std::move(player));
  }

  std::uint32_t number_of(const Player& player) const {
    return static_cast<std::uint32_t>(&player - players_.data());
  }

  /// The channel of a group of ranks. Ranks nobody gave a program for do as this one does.
  std::uint32_t channel_of(const Player& player, const std::vector<std::int32_t>& group) {
    std::vector<std::uint32_t> programs{number_of(player)};
    for (const std::int32_t rank : group) {
      const auto found = owner_.find(rank);
      if (found != owner_.end()) programs.push_back(found->second);
    }
    std::sort(programs.begin(), programs.end());
    programs.erase(std::unique(programs.begin(), programs.end()), programs.end());
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      if (channels_[i].programs == programs) return static_cast<std::uint32_t>(i);
    }
    channels_.push_back({programs, {}, std::vector<std::size_t>(players_.size(), 0)});
    return static_cast<std::uint32_t>(channels_.size() - 1);
  }

  /// Plays on until the program ends or waits for another. False where it could not move.
  bool run(Player& p) {
    const std::size_t from = p.at;
    while (!p.ended()) {
      if (p.at == p.window.steady) p.steady_from = p.all_done();
      if (!step(p, p.program->instructions[p.at])) break;
      ++p.at;
    }
    return p.at != from;
  }

  bool step(Player& p, const Instruction& instruction) {
    switch (instruction.action) {
      case Action::compute:
        compute(p, instruction);
        return true;
      case Action::collective:
        return collective(p, instruction);
      case Action::record_event:
        p.events[instruction.id] = std::max(p.streams[instruction.stream], p.host);
        return true;
      case Action::wait_event: {
        double& stream = p.streams[instruction.stream];
        stream = std::max(stream, p.events[instruction.id]);
        return true;
      }
      case Action::host_wait:
        p.host = std::max(p.host, p.events[instruction.id]);
        return true;
      default:
        return true;
    }
  }

  void queue(Player& p, double seconds) const {
    p.host += seconds;
    if (p.steady()) p.host_busy += seconds;
  }

  void compute(Player& p, const Instruction& instruction) const {
    const Compute& c = p.program->computes[instruction.id];
    float& seconds = p.seconds[instruction.id];
    if (seconds < 0) seconds = static_cast<float>(times_.seconds(c));
    const double more = c.m > 0 ? 0 : static_cast<double>(std::max<std::int64_t>(c.groups, 1) - 1);
    queue(p, machine_.host.operator_seconds + more * machine_.host.launch_seconds);
    double& stream = p.streams[instruction.stream];
    const double start = std::max(stream, p.host);
    double end = start + static_cast<double>(seconds);
    while (p.first_exchange < p.exchanges.size() && p.exchanges[p.first_exchange].end <= start) {
      ++p.first_exchange;
    }
    for (std::size_t i = p.first_exchange; i < p.exchanges.size(); ++i) {
      end += machine_.contention * overlap(p.exchanges[i], {start, end});
    }
    stream = end;
    if (p.steady()) {
      p.done.push_back({number_of(p), instruction.stream, false, instruction.id, start, end});
    }
  }

  /// The exchange ran from `start` to `end`; what computes there goes on more slowly.
  void exchanged(Player& p, const Instruction& instruction, double start, double end) const {
    p.streams[instruction.stream] = end;
    if (instruction.stream != 0 && p.streams[0] > start) {
      p.streams[0] += machine_.contention * overlap({start, end}, {start, p.streams[0]});
    }
    if (end > start) p.exchanges.push_back({start, end});
    if (p.steady()) {
      p.done.push_back({number_of(p), instruction.stream, true, instruction.id, start, end});
    }
  }

  const spec::CollectiveSpeed& speed_of(CollectiveKind kind) const {
    const bool pair = kind == CollectiveKind::send || kind == CollectiveKind::receive;
    auto found = machine_.speed.collectives.find(pair ? "send" : collective_name(kind));
    if (found == machine_.speed.collectives.end() &&
        (pair || kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce)) {
      found = machine_.speed.collectives.find("all_gather");
    }
    static const spec::CollectiveSpeed usual;
    return found == machine_.speed.collectives.end() ? usual : found->second;
  }

  bool collective(Player& p, const Instruction& instruction) {
    const Collective& c = p.program->collectives[instruction.id];
    const double ready =
        std::max(p.streams[instruction.stream], p.host + machine_.host.collective_seconds);
    if (c.kind == CollectiveKind::send) return send(p, instruction, c, ready);
    if (c.kind == CollectiveKind::receive) return receive(p, instruction, c, ready);
    const auto& group = p.program->groups[c.group];
    Channel& channel = channels_[p.channels[c.group]];
    const std::uint32_t number = number_of(p);
    const std::size_t turn = channel.next[number];
    if (turn >= channel.meetings.size()) {
      channel.meetings.push_back({c.kind, static_cast<double>(c.bytes), 0, 0, 0, unknown});
      waiting_.resize(players_.size(), 0);
    }
    Rendezvous& meeting = channel.meetings[turn];
    if (meeting.kind != c.kind || meeting.bytes != static_cast<double>(c.bytes)) {
      throw TimeError(
          "the ranks of an exchange disagree: " + std::string(collective_name(meeting.kind)) +
          " and " + collective_name(c.kind) + " in " + p.program->modules[c.module]);
    }
    if (!waiting_[number]) {
      waiting_[number] = 1;
      ++meeting.arrived;
      meeting.ready = std::max(meeting.ready, ready);
      if (meeting.arrived == channel.programs.size()) {
        meeting.start = meeting.ready;
        meeting.end =
            meeting.start + collective_seconds(speed_of(c.kind), machine_.link, c.kind,
                                               meeting.bytes, static_cast<int>(group.size()));
      }
    }
    if (meeting.end < 0) return false;
    waiting_[number] = 0;
    ++channel.next[number];
    queue(p, machine_.host.collective_seconds);
    exchanged(p, instruction, meeting.start, meeting.end);
    return true;
  }

  std::uint32_t owner_of(std::int32_t rank, const Player& p) const {
    const auto found = owner_.find(rank);
    return found == owner_.end() ? number_of(p) : found->second;
  }

  /// A send goes out as soon as its stream comes to it: the receiver's buffer is there.
  bool send(Player& p, const Instruction& instruction, const Collective& c, double ready) {
    const double end = ready + collective_seconds(speed_of(c.kind), machine_.link, c.kind,
                                                  static_cast<double>(c.bytes), 2);
    wires_[{number_of(p), owner_of(c.peer, p)}].done.push_back(end);
    queue(p, machine_.host.collective_seconds);
    exchanged(p, instruction, ready, end);
    return true;
  }

  bool receive(Player& p, const Instruction& instruction, const Collective& c, double ready) {
    Wire& wire = wires_[{owner_of(c.peer, p), number_of(p)}];
    if (wire.taken >= wire.done.size()) return false;
    const double sent = wire.done[wire.taken++];
    queue(p, machine_.host.collective_seconds);
    const double seconds = collective_seconds(speed_of(c.kind), machine_.link, c.kind,
                                              static_cast<double>(c.bytes), 2);
    const double start = std::max(ready, sent - seconds);
    exchanged(p, instruction, start, std::max(sent, start));
    return true;
  }

  std::string stuck() const {
    std::string text = "the ranks wait for each other:";
    for (const Player& p : players_) {
      if (p.ended()) continue;
      const Instruction& instruction = p.program->instructions[p.at];
      const Collective& c = p.program->collectives[instruction.id];
      text += " rank " + std::to_string(p.ranks.front()) + " in " + collective_name(c.kind) +
              " of " + p.program->modules[c.module] + ";";
    }
    text.pop_back();
    return text;
  }

  const Machine& machine_;
  OperatorTimes times_;
  std::vector<Player> players_;
  std::map<std::int32_t, std::uint32_t> owner_;
  std::vector<Channel> channels_;
  std::vector<char> waiting_;  // programs that have arrived where they are
  std::map<std::pair<std::uint32_t, std::uint32_t>, Wire> wires_;
};

RankTime summary(const Player& p, double step_seconds) {
  RankTime time;
  time.ranks = p.ranks;
  time.host_seconds = p.host_busy;
  std::vector<Interval> computing, exchanging;
  for (const std::string& name : p.program->streams) time.streams.push_back({name, 0});
  for (const TimedEvent& event : p.done) {
    time.streams[event.stream].busy_seconds += event.end - event.start;
    (event.collective ? exchanging : computing).push_back({event.start, event.end});
    if (!event.collective) continue;
    const Collective& c = p.program->collectives[event.index];
    const int ranks = c.peer >= 0 ? 2 : static_cast<int>(p.program->groups[c.group].size());
    if (c.kind != CollectiveKind::receive) {
      time.exchange_bytes += bytes_on_link(c.kind, static_cast<double>(c.bytes), ranks);
    }
  }
  unite(computing);
  unite(exchanging);
  time.compute_seconds = length(computing);
  time.exchange_seconds = length(exchanging);
  time.hidden_seconds = common(computing, exchanging);
  time.exposed_seconds = time.exchange_seconds - time.hidden_seconds;
  time.idle_seconds = std::max(0.0, step_seconds - time.compute_seconds - time.exposed_seconds);
  return time;
}

}  // namespace

const RankTime& TimeResult::busiest_exchange() const {
  return *std::max_element(ranks.begin(), ranks.end(), [](const RankTime& a, const RankTime& b) {
    return a.exchange_seconds < b.exchange_seconds;
  });
}

TimeResult run_time(std::span<const RankProgram> programs, const Machine& machine,
                    const TimeSettings& settings) {
  if (!machine.missing.empty()) throw TimeError(machine.missing);
  Game game(programs, machine);
  game.play();
  double from = 0, to = 0;
  for (const Player& p : game.players()) {
    from = std::max(from, p.steady_from);
    to = std::max(to, p.all_done());
  }
  TimeResult result;
  result.step_seconds = to - from;
  result.low_seconds = result.step_seconds / (1 + machine.interval);
  result.high_seconds = result.step_seconds * (1 + machine.interval);
  for (const Player& p : game.players()) {
    result.ranks.push_back(summary(p, result.step_seconds));
    if (!settings.events) continue;
    for (TimedEvent event : p.done) {
      event.start -= from;
      event.end -= from;
      result.events.push_back(event);
    }
  }
  return result;
}

}  // namespace shardfit::run
