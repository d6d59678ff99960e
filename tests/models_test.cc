// Every model that ships counts the parameters its publisher counts.

#include <doctest/doctest.h>

#include <filesystem>

#include "program/training.h"
#include "spec/data_directory.h"
#include "text_test.h"

using namespace shardfit;

TEST_CASE("models: every file of model_specs/models counts its published parameters") {
  const std::vector<std::string> files = spec::data_files("models");
  CHECK(files.size() >= 20);
  for (const std::string& file : files) {
    CAPTURE(file);
    const spec::ModelSpec model = spec::read_model(file);
    CHECK(model.name == std::filesystem::path(file).stem().string());
    CHECK_FALSE(model.source.empty());
    REQUIRE(model.expected_parameters.has_value());
    CHECK(program::Lowering(model, "plain-pytorch").parameter_count() ==
          *model.expected_parameters);
  }
}

TEST_CASE("models: a network whose memory is not modelled is counted, and no plan is made of it") {
  const auto counted = test::run_command("shardfit graph flux2-klein-4b");
  CHECK(counted.code == 0);
  CHECK(counted.out.find("3,875,544,576 parameters") != std::string::npos);
  CHECK(counted.out.find("memory of this network is not modelled") != std::string::npos);
  const auto planned =
      test::run_command("shardfit plan --model flux2-klein-4b --framework plain-pytorch --on h200");
  CHECK(planned.code == 2);
  CHECK(planned.err.find("its parameters alone are counted") != std::string::npos);
}
