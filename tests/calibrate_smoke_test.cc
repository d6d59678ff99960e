// calibrate smoke: every operator kind has a test; the code of its kernels, run on the host, gives
// what the references say.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "calibrate/small/operators.h"
#include "calibrate/smoke.h"
#include "calibrate_support.h"
#include "graph/operator_kinds.h"
#include "support.h"
#include "text_test.h"

using namespace shardfit;
using namespace shardfit::calibrate;
using namespace shardfit::test;

namespace {

constexpr DType dtypes[] = {DType::f64, DType::f32, DType::bf16,   DType::f16,
                            DType::i64, DType::i32, DType::boolean};

/// Inputs as the device's kernels read them.
template <class A>
struct HostReader {
  std::vector<A> inputs[4];
  explicit HostReader(const SmokeCase& c) {
    for (int input = 0; input < 4; ++input) {
      for (std::int64_t i = 0; i < c.small.rows * input_a_row(c.small, input); ++i) {
        inputs[input].push_back(static_cast<A>(smoke_input(c, input, i)));
      }
    }
  }
  A operator()(int input, std::int64_t index) const {
    return inputs[input].at(static_cast<std::size_t>(index));
  }
};

template <class A>
std::vector<double> on_host_as(const SmokeCase& c) {
  const HostReader<A> reader(c);
  const DType result = small_result(c.small.what, c.dtype);
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < c.small.rows * result_a_row(c.small); ++i) {
    const auto number = static_cast<double>(small_operator<A>(c.small, reader, i));
    numbers.push_back(is_half(result) ? rounded_to(result, number) : number);
  }
  return numbers;
}

/// What gpu/small_kernels.cu does with a case, on the host.
std::vector<double> on_host(const SmokeCase& c) {
  if (c.dtype == DType::f64) return on_host_as<double>(c);
  const bool floats = is_floating(c.dtype) || is_floating(small_result(c.small.what, c.dtype));
  return floats ? on_host_as<float>(c) : on_host_as<std::int64_t>(c);
}

SmokeCase small_case(Small what, DType dtype, bool backward = false) {
  SmokeCase c;
  c.dtype = dtype;
  c.test = SmokeTest::small;
  c.small.what = what;
  c.small.backward = backward;
  if (what == Small::attention) {
    c.small.tokens = 7;
    c.small.rows = 14;
    c.small.columns = 32;
    c.small.backward = true;
  }
  return c;
}

SmokeCase of_kind(const char* kind, DType dtype, bool backward) {
  Compute compute;
  compute.kind = kind;
  compute.dtype = dtype;
  compute.backward = backward;
  return smoke_case_of(compute);
}

/// Results that are wrong by a sign, a place or the size of a rounding too many are seen.
void check_seen(const SmokeCase& c, const std::vector<double>& right) {
  const Reference reference = reference_of(c);
  auto wrong = right;
  const auto largest = std::max_element(
      wrong.begin(), wrong.end(), [](double x, double y) { return std::fabs(x) < std::fabs(y); });
  if (*largest == 0) return;  // nothing but zeros has no sign
  *largest = -*largest;
  CHECK(worst_error(reference, wrong) > 1);
  *largest = -*largest * (is_half(c.dtype) ? 1.05 : 1.002);
  CHECK(worst_error(reference, wrong) > 1);
}

}  // namespace

TEST_CASE("smoke: references are what the formulas say, rounded as the dtype is") {
  CHECK(rounded_to(DType::bf16, 1.0 + 0x1p-9) == 1.0);
  CHECK(rounded_to(DType::bf16, 1.0 + 0x1p-7) == 1.0 + 0x1p-7);
  CHECK(rounded_to(DType::bf16, 1.0 + 3 * 0x1p-8) == 1.0 + 0x1p-6);  // to even
  CHECK(rounded_to(DType::f16, 1.0 + 0x1p-11) == 1.0);
  CHECK(rounded_to(DType::f16, 0x1p-25) == 0);
  CHECK(rounded_to(DType::f16, 3 * 0x1p-25) == 0x1p-23);
  CHECK(rounded_to(DType::f32, 0.1) == static_cast<double>(0.1F));
  SmokeCase softmax = small_case(Small::softmax, DType::bf16);
  softmax.small.rows = 3;
  softmax.small.columns = 50;
  const Reference reference = reference_of(softmax);
  REQUIRE(reference.values.size() == 150);
  double sum = 0;
  for (int i = 0; i < 50; ++i) sum += reference.values[static_cast<std::size_t>(i)];
  CHECK(sum == doctest::Approx(1).epsilon(1e-12));
  // A product with a wrong sign, a lost group or a number that is none is seen.
  SmokeCase product;
  product.dtype = DType::bf16;
  product.test = SmokeTest::product;
  product.shape = {"bf16", 8, 8, 64, 2};
  const Reference right = reference_of(product);
  CHECK(worst_error(right, right.values) == 0);
  auto wrong = right.values;
  for (std::size_t i = 64; i < 128; ++i) wrong[i] = 0;
  CHECK(worst_error(right, wrong) > 10);
  wrong = right.values;
  wrong[5] = std::nan("");
  CHECK(std::isinf(worst_error(right, wrong)));
  wrong.pop_back();
  CHECK(std::isinf(worst_error(right, wrong)));
  // Rounding the right result to bf16 is within what is allowed.
  auto rounded = right.values;
  for (double& value : rounded) value = rounded_to(DType::bf16, value);
  CHECK(worst_error(right, rounded) <= 1);
  CHECK(worst_error(right, rounded) > 0);
}

TEST_CASE("smoke: the code of the small kernels, run on the host, gives what the references say") {
  for (int i = 0; i <= static_cast<int>(Small::attention); ++i) {
    const auto what = static_cast<Small>(i);
    if (what == Small::dropout) continue;  // random: below
    for (const DType dtype : dtypes) {
      if (what == Small::adamw && !is_floating(dtype)) continue;
      const SmokeCase c = small_case(what, dtype);
      CAPTURE(test_name(c));
      CAPTURE(dtype_name(dtype));
      const std::vector<double> numbers = on_host(c);
      CHECK(worst_error(reference_of(c), numbers) <= 1);
      check_seen(c, numbers);
    }
  }
}

TEST_CASE("smoke: the gradients of the small kernels are the slopes of the references") {
  int gradients = 0;
  for (const graph::OperatorKind& kind : graph::operator_kinds()) {
    for (const DType dtype : dtypes) {
      if (!is_floating(dtype)) continue;
      const SmokeCase c = of_kind(kind.name, dtype, true);
      if (c.test != SmokeTest::small || !c.small.backward) continue;
      CAPTURE(kind.name);
      CAPTURE(dtype_name(dtype));
      const std::vector<double> numbers = on_host(c);
      CHECK(worst_error(reference_of(c), numbers) <= 1);
      check_seen(c, numbers);
      ++gradients;
    }
  }
  CHECK(gradients >= 4 * 35);
}

TEST_CASE("smoke: dropout is right by its share, its scale and its mask") {
  // Known answers of Random123 (kat_vectors: philox4x32, 10 rounds).
  const Philox zero = philox({{0, 0, 0, 0}}, 0, 0);
  CHECK(zero.word[0] == 0x6627e8d5U);
  CHECK(zero.word[1] == 0xe169c58dU);
  CHECK(zero.word[2] == 0xbc57ac4cU);
  CHECK(zero.word[3] == 0x9b00dbd8U);
  const std::uint32_t ones = 0xffffffffU;
  const Philox full = philox({{ones, ones, ones, ones}}, ones, ones);
  CHECK(full.word[0] == 0x408f276dU);
  CHECK(full.word[3] == 0x6d5451fdU);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const SmokeCase c = of_kind("dropout", dtype, false);
    const auto n = static_cast<std::size_t>(c.small.columns);
    const std::vector<double> right = on_host(c);
    CHECK(dropout_error(c, right) <= 1);
    auto wrong = right;  // one number is dropped and its mask says that it is not
    const auto kept = static_cast<std::size_t>(
        std::find(wrong.begin() + static_cast<std::ptrdiff_t>(n), wrong.end(), 1.0) -
        wrong.begin());
    REQUIRE(kept < 2 * n);
    wrong[kept - n] = 0;
    CHECK(dropout_error(c, wrong) > 1);
    wrong = right;
    wrong[kept] = 0.5;
    CHECK(std::isinf(dropout_error(c, wrong)));
    wrong = right;
    for (double& number : wrong) number *= 1 - dropout_share;  // not scaled
    CHECK(dropout_error(c, wrong) > 1);
    SmokeCase twice = c;  // a fifth more is dropped
    auto fewer = right;
    for (std::size_t i = 0; i < fewer.size(); i += 2 * n) {
      for (std::size_t j = 0; j < n; j += 50) fewer[i + j] = fewer[i + j + n] = 0;
    }
    CHECK(dropout_error(twice, fewer) > 1);
    fewer.pop_back();
    CHECK(std::isinf(dropout_error(c, fewer)));
  }
}

TEST_CASE("smoke: every operator kind is tested in the dtypes it comes in, or is a view") {
  std::set<std::string> views;
  for (const graph::OperatorKind& kind : graph::operator_kinds()) {
    CAPTURE(kind.name);
    for (const DType dtype : dtypes) {
      for (const bool backward : {false, true}) {
        const std::string name = kind.name;
        Compute compute;
        compute.kind = kind.name;
        compute.dtype = dtype;
        compute.backward = backward;
        const bool product =
            name.ends_with("mm") || name.ends_with("attention") || name == "convolution";
        if (product) compute.m = compute.n = compute.k = 64;
        const SmokeCase c = smoke_case_of(compute);
        if (c.why == "a view, which launches nothing") views.insert(name);
        const bool other = product && dtype != DType::f32 && !is_half(dtype);
        CHECK((c.test != SmokeTest::none || views.count(name) || other));
        CHECK((c.test == SmokeTest::none) == !c.why.empty());
        CHECK((c.test == SmokeTest::none) == tested_by(c).empty());
      }
    }
  }
  CHECK(views.count("view"));
  CHECK_FALSE(views.count("clone"));
  const SmokeCase unknown = of_kind("fft", DType::f32, false);
  CHECK(unknown.test == SmokeTest::none);
  CHECK(unknown.why == "no kernel of ours is like it");
}

TEST_CASE("smoke: sizes that no card has are cut down before anything is reckoned with them") {
  for (const char* kind : {"mm", "flash_attention"}) {
    for (const bool backward : {false, true}) {
      Compute compute;
      compute.kind = kind;
      compute.dtype = DType::bf16;
      compute.backward = backward;
      compute.m = compute.n = compute.k = compute.groups = INT64_MAX;
      const SmokeCase c = smoke_case_of(compute);
      CHECK(c.shape.k <= 256);
      CHECK(c.small.columns <= 128);
      CHECK(reference_of(c).values.size() < 100000);
    }
  }
}

TEST_CASE("smoke: nothing that a plan of ours launches is left untested") {
  const TemporaryFile file("", "plan.json");
  const std::string folder = file.path.substr(0, file.path.rfind('/'));
  std::vector<std::string> jobs{
      "--model stable-diffusion-1.5-unet --framework plain-pytorch --micro-batch 2 --on h200",
      "--model mixtral-8x7b --task lora --on h200 --sequence 512 --micro-batch 1",
      "--model llama-3-8b --framework torchtitan --task pretrain --on 2xb200 --sequence 1024",
      "--model llama-3.2-1b --framework deepspeed --on 2xh200 --sequence 1024"};
  const std::string ours = SHARDFIT_SOURCE_DIR "/calibrate/jobs";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ours)) {
    if (entry.path().extension() != ".yaml") continue;
    const bool pair = entry.path().parent_path().filename() == "pair";
    jobs.push_back(entry.path().string() + (pair ? " --on 2xh200" : " --on h200"));
  }
  CHECK(jobs.size() >= 15);
  std::set<std::string> kinds;
  for (const std::string& job : jobs) {
    CAPTURE(job);
    const CommandResult plan =
        run_command("shardfit plan " + job + " --json --export-program " + folder);
    REQUIRE(plan.code <= 1);
    std::ofstream(file.path) << plan.out;
    const std::string on = job.substr(job.find("--on ") + 5);
    for (const SmokeCase& c :
         smoke_cases(read_planned(file.path, on.substr(0, on.find(' ')), ""))) {
      CAPTURE(c.kind);
      CHECK(c.test != SmokeTest::none);
      kinds.insert(c.kind);
    }
  }
  for (const char* kind : {"dropout", "sort", "max_pool", "foreach_norm", "topk", "upsample"}) {
    CHECK(kinds.count(kind));
  }
}

#ifdef SHARDFIT_CUDA

TEST_CASE("smoke: on the stand-in every operator is launched and none compared; failures count") {
  const TemporaryFile file("", "plan.json");
  const std::string folder = file.path.substr(0, file.path.rfind('/'));
  const CommandResult made = run_command(
      "shardfit plan --model gpt2 --framework plain-pytorch --precision bf16 --micro-batch 2 "
      "--sequence 128 --on h200 --json --export-program " +
      folder);
  REQUIRE(made.code == 0);
  std::ofstream(file.path) << made.out;
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const ProgramResult run = run_calibrate("smoke plan.json", {.device = "h200", .folder = folder});
  CHECK(run.code == 0);
  CHECK(has(run.out, "launched, not compared"));
  CHECK(has(run.out, "operators launched, none compared, 0 failed"));
  CHECK_FALSE(has(run.out, "right,"));
  CHECK_FALSE(has(run.out, "not tested"));
  const ProgramResult failed = run_calibrate(
      "smoke plan.json", {.device = "h200", .fail = "cublasGemm:1:7", .folder = folder});
  CHECK(failed.code == 1);
  // A device that gives nothing from the start is no bug of ours.
  for (const char* call : {"cublasCreate:1:3", "cudaStreamCreate:1:2"}) {
    CAPTURE(call);
    const ProgramResult start = run_calibrate(
        "smoke plan.json", {.device = "h200", .log = true, .fail = call, .folder = folder});
    CHECK(start.code == 1);
    CHECK(has(start.out, "FAILED at the start: "));
    CHECK(has(start.log, "left 0 allocations, 0 bytes, 0 streams"));
  }
  CHECK(has(failed.out, "FAILED: cublasGemmStridedBatchedEx failed with cuBLAS status 7"));
}

#endif
