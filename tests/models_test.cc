// Every model that ships counts the parameters its publisher counts.

#include <doctest/doctest.h>

#include <filesystem>

#include "program/training.h"
#include "spec/data_directory.h"

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
