// compare: the person's own run beside the plan; pickles that are more than data are refused.
#include <doctest/doctest.h>
#include <rapidjson/document.h>

#include <cmath>
#include <fstream>
#include <random>

#include "support.h"
#include "text_test.h"
#include "validate/own_run.h"
#include "validate/pickle.h"

using namespace shardfit;
using namespace std::string_literals;
using validate::Pickle;

namespace {

const std::string data = SHARDFIT_SOURCE_DIR "/tests/data/own_runs/";

Pickle read(std::string bytes) { return Pickle(test::source(std::move(bytes), "p.pickle")); }
std::string fault_of(const std::string& bytes) {
  return test::errors_of([&] { read(bytes); });
}

std::string plan_of(const std::string& options) {
  return test::run_command("shardfit plan --model " SHARDFIT_SOURCE_DIR
                           "/tests/data/models/gpt2.json --on h200 --json " +
                           options)
      .out;
}

}  // namespace

TEST_CASE("pickle: dicts, lists, tuples, numbers, strings and shared values are read") {
  // {'a': [1, -2, 70000, 2**40], 'b': (True, None, 1.5), 'c': the same list}
  const std::string bytes = "\x80\x04}(\x8c\x01"s + "a](K\x01J\xfe\xff\xff\xffJ\x70\x11\x01\x00"s +
                            "\x8a\x06\x00\x00\x00\x00\x00\x01"s + "e\x94\x8c\x01"s +
                            "b\x88NG\x3f\xf8"s + "\0\0\0\0\0\0"s + "\x87\x8c\x01"s + "ch\x00u."s;
  const Pickle pickle = read(bytes);
  const auto a = pickle.find(pickle.root(), "a");
  REQUIRE(a != Pickle::missing);
  REQUIRE(pickle.items(a).size() == 4);
  CHECK(pickle.integer(pickle.items(a)[1]) == -2);
  CHECK(pickle.integer(pickle.items(a)[2]) == 70000);
  CHECK(pickle.integer(pickle.items(a)[3]) == std::int64_t{1} << 40);
  const auto b = pickle.find(pickle.root(), "b");
  CHECK(pickle.kind(pickle.items(b)[0]) == Pickle::Kind::boolean);
  CHECK(pickle.kind(pickle.items(b)[1]) == Pickle::Kind::none);
  CHECK(pickle.real(pickle.items(b)[2]) == 1.5);
  CHECK(pickle.find(pickle.root(), "c") == a);
  CHECK(pickle.find(pickle.root(), "d") == Pickle::missing);
}

TEST_CASE("pickle: every opcode that names, calls or builds an object is refused by its name") {
  // What pickle.dumps(os.system-caller) writes.
  const std::string classic = "cos\nsystem\n(S'echo x'\ntR."s;
  CHECK(fault_of(classic).find("an opcode beyond plain data, GLOBAL, and is refused") !=
        std::string::npos);
  const std::string modern =
      "\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x06"s + "echo x\x94\x85\x94R\x94."s;
  CHECK(fault_of(modern).find("STACK_GLOBAL") != std::string::npos);
  struct Case {
    char code;
    const char* name;
  };
  for (const Case& c :
       {Case{'c', "GLOBAL"}, Case{'\x93', "STACK_GLOBAL"}, Case{'R', "REDUCE"}, Case{'b', "BUILD"},
        Case{'i', "INST"}, Case{'o', "OBJ"}, Case{'\x81', "NEWOBJ"}, Case{'\x92', "NEWOBJ_EX"},
        Case{'P', "PERSID"}, Case{'Q', "BINPERSID"}, Case{'\x82', "EXT1"}, Case{'\x83', "EXT2"},
        Case{'\x84', "EXT4"}, Case{'\x97', "NEXT_BUFFER"}, Case{'\x96', "BYTEARRAY8"},
        Case{'S', "STRING"}}) {
    CAPTURE(c.name);
    // In the middle of data that is read by then.
    const std::string fault = fault_of("\x80\x02}K\x01K\x02s]"s + c.code + "x\n"s + "."s);
    CHECK(fault.find(std::string("beyond plain data, ") + c.name + ",") != std::string::npos);
    CHECK(fault.find("(at byte 9)") != std::string::npos);
  }
}

TEST_CASE("pickle: of all 256 opcodes only those of plain data are followed") {
  // PROTO, FRAME, MARK, NONE, booleans, numbers, strings, lists, tuples, dicts, memo, STOP.
  const std::string data_opcodes =
      "\x80\x95(N\x88\x89KMJ\x8aG\x8cX\x8d])}aesut\x85\x86\x87\x94qrhj."s;
  REQUIRE(data_opcodes.size() == 31);
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const std::string fault =
        fault_of("\x80\x04]"s + static_cast<char>(code) + std::string(16, '\0') + ".");
    const bool plain = data_opcodes.find(static_cast<char>(code)) != std::string::npos;
    const bool refused = fault.find("(at byte 3)") != std::string::npos &&
                         (fault.find("beyond plain data") != std::string::npos ||
                          fault.find("this is no pickle") != std::string::npos);
    CHECK(refused == !plain);
  }
}

TEST_CASE("pickle: what is cut off, odd or too deep is refused, never followed") {
  CHECK(fault_of("\x80\x04}").find("cut off") != std::string::npos);
  CHECK(fault_of("\x80\x04\x8c\xff").find("cut off") != std::string::npos);
  CHECK(fault_of("\x80\x09N.").find("later protocol") != std::string::npos);
  CHECK(fault_of("\x80\x04K\x01u."s).find("a mark is missing") != std::string::npos);
  CHECK(fault_of("\x80\x04K\x01(K\x01"s + "e."s).find("no list") != std::string::npos);
  CHECK(fault_of("\x80\x04h\x07."s).find("never remembered") != std::string::npos);
  CHECK(fault_of("\x80\x04."s).find("other than one value") != std::string::npos);
  CHECK(fault_of("\x80\x04]r\xff\xff\xff\x7f."s).find("memo of an odd number") !=
        std::string::npos);
  CHECK(fault_of("\xff"s).find("this is no pickle") != std::string::npos);
  // A list that holds itself is no trap: nothing walks it.
  const Pickle own = read("\x80\x04]\x94h\x00"s + "a."s);
  CHECK(own.items(own.root()).front() == own.root());
  // A million lists, one in the other.
  const std::string deep =
      "\x80\x04"s + std::string(1'000'000, ']') + std::string(999'999, 'a') + ".";
  CHECK(read(deep).items(read(deep).root()).size() == 1);
}

TEST_CASE("pickle: no damage to a real snapshot does more than be refused") {
  std::ifstream in(data + "small.pickle", std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  REQUIRE(good.size() > 10'000);
  for (unsigned seed = 1; seed <= test::fuzz_rounds(100); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::string bytes = good;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    const test::TemporaryFile file(bytes, "s.pickle");
    try {
      validate::read_snapshot(file.path, 0);
    } catch (const InputError&) {
    }
  }
}

TEST_CASE("snapshot: peaks of a recorded history are those PyTorch counted") {
  const auto ranks = validate::read_own_run(data + "small.pickle", 3);
  REQUIRE(ranks.size() == 1);
  CHECK(ranks[0].rank == 3);
  CHECK(ranks[0].allocated == 77'685'760);
  CHECK(ranks[0].reserved == 79'691'776);
  // Two linear layers: 256 x 1024 twice, and their biases, in fp32; AdamW has two states of each.
  const std::int64_t parameters = (2 * 256 * 1024 + 1024 + 256) * 4;
  REQUIRE(ranks[0].requested_by.has_value());
  const run::ByCategory& by = *ranks[0].requested_by;
  CHECK(by[static_cast<std::size_t>(Category::parameter)] == parameters);
  CHECK(by[static_cast<std::size_t>(Category::optimizer_state)] >= 2 * parameters);
}

TEST_CASE("snapshot: a pickle of something else is told so") {
  const test::TemporaryFile other("\x80\x04}."s, "s.pickle");
  CHECK(test::errors_of([&] {
          validate::read_own_run(other.path, 0);
        }).find("is no memory snapshot: it has no 'segments'") != std::string::npos);
}

TEST_CASE("compare: the trial of a plan lies on it, phase by phase") {
  struct Case {
    const char* options;
    const char* file;
  };
  for (const Case& c :
       {Case{"--framework plain-pytorch --precision bf16 --micro-batch 2 --sequence 256",
             "gpt2-plain.json"},
        Case{"--framework hf-trainer --precision bf16-mixed --micro-batch 2 --sequence 256 "
             "--accumulation 2",
             "gpt2-hf.json"}}) {
    CAPTURE(c.file);
    const test::TemporaryFile plan(plan_of(c.options), "plan.json");
    const auto result = test::run_command("shardfit compare " + plan.path + " " + data + c.file);
    CHECK(result.code == 0);
    CHECK(result.err == "");
    CHECK(result.out.find("steady_step.backward allocated") != std::string::npos);
    CHECK(result.out.find("within 0.5 %") != std::string::npos);
    // Another plan is not what ran.
    const test::TemporaryFile other(plan_of(std::string(c.options) + " --recompute full"),
                                    "plan.json");
    const auto off = test::run_command("shardfit compare " + other.path + " " + data + c.file);
    CHECK(off.code == 1);
    CHECK(off.out.find("OFF") != std::string::npos);
  }
}

TEST_CASE("compare: every job of calibrate/jobs lies on its plan, on one card and on two") {
  for (const char* job :
       {"llama-3-8b-lora", "llama-3-8b-full", "llama-3.2-1b-full", "gpt2", "vit-base", "resnet50",
        "pair/gpt2-ddp", "pair/gpt2-trainer-ddp", "pair/llama-3.2-1b-fsdp2",
        "pair/llama-3.2-1b-lora-ddp", "pair/llama-3.2-1b-lora-fsdp2"}) {
    CAPTURE(job);
    const std::string name(job);
    const bool pair = name.starts_with("pair/");
    const test::TemporaryFile plan(
        test::run_command("shardfit plan " SHARDFIT_SOURCE_DIR "/calibrate/jobs/" + name +
                          ".yaml --json --on " + (pair ? "2xh200" : "h200"))
            .out,
        "plan.json");
    const auto result = test::run_command("shardfit compare " + plan.path + " " + data +
                                          name.substr(pair ? 5 : 0) + ".json --json");
    rapidjson::Document json;
    json.Parse(result.out.c_str());
    REQUIRE_FALSE(json.HasParseError());
    CHECK(result.code == 0);
    REQUIRE(json["ranks"].Size() == (pair ? 2U : 1U));
    for (const auto& rank : json["ranks"].GetArray()) {
      REQUIRE(rank["notes"].Size() == 1);
      CHECK(rank["notes"][0].GetString() ==
            std::string("on a runtime that runs no kernels: no device bytes and no times"));
      const auto& levels = rank["levels"];
      for (const int level : {0, 1}) {
        const double predicted = static_cast<double>(levels[level]["predicted_bytes"].GetInt64());
        const double measured = static_cast<double>(levels[level]["measured_bytes"].GetInt64());
        CHECK(std::fabs(measured - predicted) / predicted < (level == 0 ? 0.001 : 0.004));
      }
      CHECK(levels[2]["measured_bytes"].IsNull());
    }
  }
}

TEST_CASE("compare: a run that failed, one of another option, one of another version") {
  const test::TemporaryFile plan(
      plan_of("--framework plain-pytorch --precision bf16 --micro-batch 2 --sequence 256"),
      "plan.json");
  const auto with = [&](const std::string& text) {
    const test::TemporaryFile trial(text, "trial.json");
    return test::run_command("shardfit compare " + plan.path + " " + trial.path);
  };
  const auto failed = with(
      R"({"kind": "shardfit-trial", "version": 1, "option": "h200", "ranks": [{"rank": 0,
          "failure": "step 1: CUDA out of memory.", "max_memory_allocated": 1474560000}]})");
  CHECK(failed.code == 1);
  CHECK(failed.out.find("FAILED: step 1: CUDA out of memory.") != std::string::npos);
  const auto other = with(
      R"({"kind": "shardfit-trial", "version": 1, "option": "2xb200",
          "ranks": [{"max_memory_allocated": 5}]})");
  CHECK(other.code == 2);
  CHECK(other.err.find("a run of option '2xb200', not of 'h200'") != std::string::npos);
  const auto later =
      with(R"({"kind": "shardfit-trial", "version": 2, "ranks": [{"max_memory_allocated": 5}]})");
  CHECK(later.code == 2);
  CHECK(later.err.find("the trial is of version 2") != std::string::npos);
}

TEST_CASE("compare: plans that are cut off, of another version or of odd numbers are refused") {
  const std::string plan =
      plan_of("--framework plain-pytorch --precision bf16 --micro-batch 2 --sequence 256");
  const auto with = [&](const std::string& text) {
    const test::TemporaryFile file(text, "plan.json");
    return test::run_command("shardfit compare " + file.path + " " + data + "gpt2-plain.json");
  };
  CHECK(with(plan).code == 0);
  for (const std::size_t end : {std::size_t{0}, std::size_t{1}, plan.size() / 2, plan.size() - 3}) {
    CAPTURE(end);
    const auto cut = with(plan.substr(0, end));
    CHECK(cut.code == 2);
    CHECK(cut.err.find("plan.json:") != std::string::npos);
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = plan;
    text.replace(text.find(from), from.size(), to);
    return with(text);
  };
  CHECK(
      changed("\"version\": \"1\"", "\"version\": \"7\"").err.find("the plan is of version '7'") !=
      std::string::npos);
  CHECK(changed("\"allocated_bytes\": ", "\"allocated_bytes\": -").code == 2);
  CHECK(changed("\"rank\": 0", "\"rank\": 70000").code == 2);
}

TEST_CASE("compare: statistics as JSON, one object a rank") {
  const test::TemporaryFile plan(
      plan_of("--framework plain-pytorch --precision bf16 --micro-batch 2 --sequence 256"),
      "plan.json");
  const test::TemporaryFile stats(
      R"({"allocated_bytes.all.peak": 1474560000, "reserved_bytes.all.peak": 1790967808})",
      "stats.json");
  const auto result =
      test::run_command("shardfit compare " + plan.path + " " + stats.path + " --json");
  CHECK(result.out.find("\"measured_bytes\": 1790967808") != std::string::npos);
  const test::TemporaryFile two(R"([{"max_memory_allocated": 5}, {"max_memory_allocated": 5}])",
                                "two.json");
  const auto more = test::run_command("shardfit compare " + plan.path + " " + two.path);
  CHECK(more.code == 2);
  CHECK(more.err.find("it is of rank 1; option 'h200' has 1 ranks") != std::string::npos);
  const test::TemporaryFile nothing(R"({"loss": 3})", "none.json");
  CHECK(test::run_command("shardfit compare " + plan.path + " " + nothing.path)
            .err.find("says nothing of memory") != std::string::npos);
  CHECK(test::run_command("shardfit compare " + plan.path).code == 2);
  for (const char* text : {"[]", R"({"kind": "shardfit-trial", "version": 1, "ranks": []})"}) {
    CAPTURE(text);
    const test::TemporaryFile empty(text, "empty.json");
    const auto none = test::run_command("shardfit compare " + plan.path + " " + empty.path);
    CHECK(none.code == 2);
    CHECK(none.err.find("the run is of no rank") != std::string::npos);
  }
  // Phases are shown, not judged: they alone would be within whatever they say.
  const test::TemporaryFile phases(R"({"phases": {"loaded": {"allocated_bytes": 5}}})", "p.json");
  CHECK(test::run_command("shardfit compare " + plan.path + " " + phases.path).code == 2);
}

TEST_CASE("compare: each rank once; those that nothing is said of are counted") {
  const test::TemporaryFile plan(
      test::run_command("shardfit plan --model " SHARDFIT_SOURCE_DIR
                        "/tests/data/models/gpt2.json --framework plain-pytorch --precision bf16 "
                        "--on 2xh200 --parallel ddp --json")
          .out,
      "plan.json");
  const test::TemporaryFile first(R"({"max_memory_allocated": 5})", "first.json");
  const test::TemporaryFile second(R"({"max_memory_allocated": 5, "rank": 1})", "second.json");
  const auto of = [&](const std::string& files) {
    return test::run_command("shardfit compare " + plan.path + " " + files);
  };
  CHECK(of(first.path).out.find("\nof 2 ranks, 1 compared\n") != std::string::npos);
  const auto both = of(first.path + " " + second.path);
  CHECK(both.out.find("rank 1: ") != std::string::npos);
  CHECK(both.out.find(" compared\n") == std::string::npos);
  const auto twice = of(second.path + " " + second.path);
  CHECK(twice.code == 2);
  CHECK(twice.err.find("it is of rank 1, as is " + second.path) != std::string::npos);
}
