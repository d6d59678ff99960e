#include "run/time_clock.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "model_support.h"
#include "program/training.h"

namespace shardfit {
namespace {

using run::Machine;
using run::RankProgram;
using run::TimeResult;

/// A device without latencies: an operator of 1e9 bytes takes a second, and so does an exchange
/// that sends as many.
Machine plain_machine() {
  Machine machine;
  machine.device.bandwidth = 1e9;
  machine.device.multiprocessors = 1;
  machine.device.bf16 = 1e12;
  machine.speed.memory_share = 1;
  machine.speed.kernel_seconds = 0;
  spec::ProductSpeed products;
  products.cache_bytes = 0;
  products.cache_ratio = 1e12;
  machine.speed.products["bf16"] = products;
  spec::CollectiveSpeed exchange;
  exchange.protocols.fill({0, 0, 1});
  exchange.few_ranks = 0;
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter"}) {
    machine.speed.collectives[kind] = exchange;
  }
  machine.link.bytes_per_second = 1e9;
  machine.host = {0, 0, 0};
  machine.contention = 0;
  return machine;
}

/// A program written by hand.
struct Script {
  Program program;

  explicit Script(std::int32_t rank = 0) {
    program.rank = rank;
    program.modules = {""};
    program.streams = {"compute", "exchange"};
  }
  void compute(double seconds, std::uint8_t stream = 0) {
    Compute c;
    c.kind = "add";
    c.bytes = 1e9 * seconds;
    program.instructions.push_back(
        {Action::compute, stream, static_cast<std::uint32_t>(program.computes.size())});
    program.computes.push_back(c);
  }
  void exchange(CollectiveKind kind, double bytes, std::vector<std::int32_t> ranks,
                std::uint8_t stream = 1, std::int32_t peer = -1) {
    Collective c;
    c.kind = kind;
    c.bytes = static_cast<std::int64_t>(bytes);
    c.peer = peer;
    c.group = static_cast<std::uint32_t>(program.groups.size());
    program.groups.push_back(std::move(ranks));
    program.instructions.push_back(
        {Action::collective, stream, static_cast<std::uint32_t>(program.collectives.size())});
    program.collectives.push_back(c);
  }
  std::uint32_t record(std::uint8_t stream) {
    program.instructions.push_back({Action::record_event, stream, program.events});
    return program.events++;
  }
  void wait(std::uint32_t event, std::uint8_t stream) {
    program.instructions.push_back({Action::wait_event, stream, event});
  }
  void host_wait(std::uint32_t event) {
    program.instructions.push_back({Action::host_wait, 0, event});
  }
  /// As Work.wait(): the compute stream goes on when the exchange is done.
  void join() { wait(record(1), 0); }
  void mark(int step) {
    program.instructions.push_back(
        {Action::phase, 0, static_cast<std::uint32_t>(program.phases.size())});
    program.phases.push_back({"optimizer", step, false});
  }
};

TimeResult play(const std::vector<Script>& scripts, const Machine& machine, bool events = true) {
  std::vector<RankProgram> programs;
  for (const Script& script : scripts) programs.push_back({&script.program, {}});
  return run::run_time(programs, machine, {events});
}

/// One operator after the other on every stream, and the step at least as long as the busiest one.
void check_streams(const TimeResult& result) {
  std::map<std::pair<std::uint32_t, int>, std::vector<run::TimedEvent>> streams;
  for (const run::TimedEvent& event : result.events) {
    CHECK(event.end >= event.start);
    streams[{event.program, event.stream}].push_back(event);
  }
  for (auto& [place, events] : streams) {
    double busy = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      busy += events[i].end - events[i].start;
      if (i > 0) CHECK(events[i].start >= events[i - 1].end - 1e-12);
    }
    CHECK(result.step_seconds >= busy - 1e-9);
  }
  for (const run::RankTime& rank : result.ranks) {
    CHECK(rank.compute_seconds + rank.exposed_seconds + rank.idle_seconds ==
          doctest::Approx(result.step_seconds));
    CHECK(rank.hidden_seconds + rank.exposed_seconds == doctest::Approx(rank.exchange_seconds));
  }
}

TEST_CASE("operators of one stream run one after the other, of two streams side by side") {
  Script script;
  script.compute(1);
  script.compute(2);
  script.compute(4, 1);
  const TimeResult result = play({script}, plain_machine());
  CHECK(result.step_seconds == doctest::Approx(4));
  CHECK(result.ranks[0].streams[0].busy_seconds == doctest::Approx(3));
  CHECK(result.ranks[0].idle_seconds == doctest::Approx(0));
  check_streams(result);
}

TEST_CASE("a stream waits for an event, the host for one too") {
  Script script;
  script.compute(2, 1);
  script.wait(script.record(1), 0);
  script.compute(1);
  CHECK(play({script}, plain_machine()).step_seconds == doctest::Approx(3));

  Script host;
  host.compute(2, 1);
  host.host_wait(host.record(1));
  host.compute(1);
  CHECK(play({host}, plain_machine()).step_seconds == doctest::Approx(3));
}

TEST_CASE("a program of small operators is as slow as its host") {
  Machine machine = plain_machine();
  machine.host.operator_seconds = 0.5;
  Script script;
  for (int i = 0; i < 10; ++i) script.compute(0.1);
  const TimeResult result = play({script}, machine);
  CHECK(result.step_seconds == doctest::Approx(5.1));
  CHECK(result.ranks[0].idle_seconds == doctest::Approx(4.1));
  CHECK(result.ranks[0].host_seconds == doctest::Approx(5));
}

TEST_CASE("an exchange begins when its last rank arrives") {
  Script fast(0), slow(1);
  for (Script* script : {&fast, &slow}) {
    script->compute(script == &fast ? 1 : 3);
    script->wait(script->record(0), 1);
    script->exchange(CollectiveKind::all_reduce, 2e9, {0, 1});  // a pair sends each byte once
    script->join();
    script->compute(1);
  }
  const TimeResult result = play({fast, slow}, plain_machine());
  CHECK(result.step_seconds == doctest::Approx(6));
  CHECK(result.ranks[0].idle_seconds == doctest::Approx(2));
  CHECK(result.ranks[1].idle_seconds == doctest::Approx(0));
  CHECK(result.ranks[0].exposed_seconds == doctest::Approx(2));
  CHECK(result.ranks[0].exchange_bytes == doctest::Approx(2e9));
  check_streams(result);
}

TEST_CASE("an exchange beside operators is hidden, and slows them by the stated factor") {
  Machine machine = plain_machine();
  Script script;
  script.compute(1);
  script.wait(script.record(0), 1);
  script.exchange(CollectiveKind::all_reduce, 2e9, {0, 1});
  script.compute(5);
  script.join();
  for (const double contention : {0.0, 0.1}) {
    machine.contention = contention;
    const TimeResult result = play({script}, machine);
    CHECK(result.step_seconds == doctest::Approx(6 + 2 * contention));
    CHECK(result.ranks[0].hidden_seconds == doctest::Approx(2));
    CHECK(result.ranks[0].exposed_seconds == doctest::Approx(0));
    check_streams(result);
  }
}

TEST_CASE("one program for equal ranks takes as long as one for each") {
  Script zero(0), one(1);
  for (Script* script : {&zero, &one}) {
    script->compute(1);
    script->wait(script->record(0), 1);
    script->exchange(CollectiveKind::reduce_scatter, 4e9, {0, 1});
    script->join();
  }
  const double apart = play({zero, one}, plain_machine()).step_seconds;
  const RankProgram shared{&zero.program, {0, 1}};
  CHECK(run::run_time({&shared, 1}, plain_machine()).step_seconds == doctest::Approx(apart));
}

TEST_CASE("the last step counts, after the one before it") {
  Script script;
  script.compute(100);
  script.mark(0);
  script.compute(50);
  script.mark(1);
  for (int step = 2; step <= 3; ++step) {
    script.compute(1);
    script.compute(2, 1);
    script.mark(step);
  }
  CHECK(play({script}, plain_machine()).step_seconds == doctest::Approx(2));
}

TEST_CASE("ranks that wait for each other, and exchanges that differ, are faults") {
  Script zero(0), one(1);
  zero.exchange(CollectiveKind::all_gather, 8, {0, 1});
  CHECK_THROWS_AS(play({zero, one}, plain_machine()), run::TimeError);
  one.exchange(CollectiveKind::all_gather, 16, {0, 1});
  CHECK_THROWS_AS(play({zero, one}, plain_machine()), run::TimeError);
}

enum class Schedule { gpipe, one_forward_one_backward };

/// Stage `stage` of a pipeline of equal stages: a forward takes 1 s, a backward 2, a send nothing.
Script stage_script(Schedule schedule, int stages, int stage, int microbatches) {
  Script script(stage);
  script.program.streams = {"compute", "to_next", "to_previous", "from_next", "from_previous"};
  const auto ranks = [&](int other) {
    return std::vector<std::int32_t>{std::min(stage, other), std::max(stage, other)};
  };
  const auto receive = [&](int from, std::uint8_t stream) {
    script.exchange(CollectiveKind::receive, 0, ranks(from), stream, from);
    script.wait(script.record(stream), 0);
  };
  const auto send = [&](int to, std::uint8_t stream) {
    script.wait(script.record(0), stream);
    script.exchange(CollectiveKind::send, 0, ranks(to), stream, to);
  };
  const auto forward = [&] {
    if (stage > 0) receive(stage - 1, 4);
    script.compute(1);
    if (stage + 1 < stages) send(stage + 1, 1);
  };
  const auto backward = [&] {
    if (stage + 1 < stages) receive(stage + 1, 3);
    script.compute(2);
    if (stage > 0) send(stage - 1, 2);
  };
  const int ahead =
      schedule == Schedule::gpipe ? microbatches : std::min(microbatches, stages - 1 - stage);
  for (int i = 0; i < ahead; ++i) forward();
  for (int i = ahead; i < microbatches; ++i) {
    forward();
    backward();
  }
  for (int i = 0; i < ahead; ++i) backward();
  return script;
}

TEST_CASE("equal stages idle for (p - 1) / (m + p - 1) of the step") {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_forward_one_backward}) {
    for (int stages = 1; stages <= 5; ++stages) {
      for (int microbatches : {1, 2, 4, 7}) {
        CAPTURE(stages);
        CAPTURE(microbatches);
        if (schedule == Schedule::one_forward_one_backward && microbatches < stages) continue;
        std::vector<Script> scripts;
        for (int stage = 0; stage < stages; ++stage) {
          scripts.push_back(stage_script(schedule, stages, stage, microbatches));
        }
        const TimeResult result = play(scripts, plain_machine());
        const double bubble = static_cast<double>(stages - 1) / (microbatches + stages - 1);
        for (const run::RankTime& rank : result.ranks) {
          CHECK(rank.idle_seconds / result.step_seconds == doctest::Approx(bubble));
        }
        check_streams(result);
      }
    }
  }
}

/// Two ranks whose programs are drawn at random, exchanges at the same places.
std::vector<Script> random_scripts(std::mt19937& random, int ranks) {
  std::vector<Script> scripts;
  std::vector<std::int32_t> group;
  for (int rank = 0; rank < ranks; ++rank) {
    scripts.emplace_back(rank);
    group.push_back(rank);
  }
  const auto seconds = [&] { return std::uniform_real_distribution<double>(0, 3)(random); };
  for (int i = 0; i < 40; ++i) {
    const auto choice = random() % 4;
    const double bytes = 1e9 * seconds();
    for (Script& script : scripts) {
      if (choice == 0) {
        script.wait(script.record(0), 1);
        script.exchange(CollectiveKind::all_gather, bytes, group);
      } else if (choice == 1) {
        script.join();
      } else {
        script.compute(seconds());
      }
    }
  }
  return scripts;
}

TEST_CASE("no two events of a stream overlap, and no step is shorter than its busiest stream") {
  Machine machine = plain_machine();
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    machine.contention = seed % 2 == 0 ? 0 : 0.2;
    machine.host.operator_seconds = seed % 3 == 0 ? 0.7 : 0;
    const std::vector<Script> scripts = random_scripts(random, 1 + static_cast<int>(seed % 3));
    const TimeResult result = play(scripts, machine);
    check_streams(result);
    // The chain of a rank's own operators and the exchanges it waits for is a path.
    for (std::size_t i = 0; i < scripts.size(); ++i) {
      CHECK(result.step_seconds >= result.ranks[i].streams[0].busy_seconds - 1e-9);
      CHECK(result.step_seconds >= result.ranks[i].host_seconds - 1e-9);
    }
    // Faster links never make a step longer where nothing is slowed.
    if (machine.contention > 0) continue;
    Machine faster = machine;
    faster.link.bytes_per_second *= 4;
    CHECK(play(scripts, faster).step_seconds <= result.step_seconds + 1e-9);
  }
}

TEST_CASE("a real step: every operator is timed, work grows with the batch, steps repeat") {
  const program::Lowering lowering(test::model_named("gpt2"), "plain-pytorch");
  program::TrainingJob job;
  job.sequence = 512;
  job.record_computes = true;
  Machine machine = plain_machine();
  machine.device = {3.35e12, 132, 989e12, 989e12, 494e12, 67e12, 0, 0};
  machine.speed = {};
  double before = 0;
  for (const std::int64_t micro : {1, 2, 4}) {
    job.micro_batch = micro;
    const Program program = lowering.lower(job);
    const RankProgram rank{&program, {}};
    const TimeResult result = run::run_time({&rank, 1}, machine, {true});
    check_streams(result);
    CHECK(result.step_seconds > before);
    before = result.step_seconds;
    program::TrainingJob every = job;
    every.repeat_steps = false;
    const Program run_all = lowering.lower(every);
    const RankProgram other{&run_all, {}};
    CHECK(run::run_time({&other, 1}, machine).step_seconds ==
          doctest::Approx(result.step_seconds).epsilon(1e-6));
  }
}

}  // namespace
}  // namespace shardfit
