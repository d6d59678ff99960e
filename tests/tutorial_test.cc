// docs/adding_a_family.md: what it says works, with what it shows and nothing else.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "program/training.h"
#include "spec/data_directory.h"
#include "spec/model_spec.h"

namespace shardfit {
namespace {

namespace fs = std::filesystem;

/// All blocks of a language, one after the other.
std::string blocks(const std::string& language) {
  std::ifstream page(SHARDFIT_SOURCE_DIR "/docs/adding_a_family.md");
  std::string out;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (inside && line == "```") {
      inside = false;
    } else if (inside) {
      out += line + "\n";
    } else {
      inside = line == "```" + language;
    }
  }
  return out;
}

/// A data directory whose only family is the page's.
class Directory {
 public:
  Directory()
      : path_(fs::temp_directory_path() / ("shardfit-tutorial-" + std::to_string(getpid()))) {
    const fs::path shipped = spec::data_directory();
    fs::create_directories(path_ / "families");
    for (const auto& entry : fs::directory_iterator(shipped)) {
      const fs::path name = entry.path().filename();
      if (name != "families") fs::create_symlink(entry.path(), path_ / name);
    }
    std::ofstream(path_ / "families" / "olmo2.yaml") << blocks("yaml");
    std::ofstream(path_ / "config.json") << blocks("json");
    setenv("SHARDFIT_DATA", path_.c_str(), 1);
  }
  ~Directory() {
    unsetenv("SHARDFIT_DATA");
    fs::remove_all(path_);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string file(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

}  // namespace

TEST_CASE("tutorial: OLMo-2 is added with the YAML of the page alone") {
  const Directory directory;
  spec::ModelSpec model = spec::read_model(directory.file("config.json"));
  CHECK(program::Lowering(model, "plain-pytorch").parameter_count() == 7'298'617'344);
  const auto two = std::make_shared<const Source>(Source{"two layers", "2"});
  spec::override_number(model, "num_hidden_layers", spec::word("2", {two, 0, 1}));
  program::TrainingJob job;
  job.parameters = DType::bf16;
  job.sequence = 256;
  const program::Lowering lowering(model, "plain-pytorch");
  const graph::ModelGraph graph = lowering.graph(job);
  const graph::Layer* layer = graph.find_layer("model.layers.1");
  REQUIRE(layer);
  CHECK(layer->saved_bytes > 0);
  CHECK(lowering.lower(job).parameters_total == 2 * 202'391'552 + 2 * 100'352 * 4096 + 4096);
}

}  // namespace shardfit
