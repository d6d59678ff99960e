// Pages that are written from tables of the code.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cli/graph_command.h"
#include "model_support.h"

namespace shardfit {
namespace {

const std::string docs = SHARDFIT_SOURCE_DIR "/docs/";

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Rewrites the page where SHARDFIT_UPDATE is set, as the texts of the command line.
void check_page(const std::string& name, const std::string& wanted) {
  if (std::getenv("SHARDFIT_UPDATE")) std::ofstream(docs + name) << wanted;
  CHECK(text_of(docs + name) == wanted);
}

}  // namespace

TEST_CASE("docs/operators.md is the table of operator kinds") {
  std::ostringstream page;
  cli::write_operator_page(page);
  check_page("operators.md", page.str());
}

TEST_CASE("docs/model_language.md lists the functions of the language") {
  const std::string page = text_of(docs + "model_language.md");
  const std::string heading = "## Functions\n";
  const std::size_t section = page.find(heading);
  REQUIRE(section != std::string::npos);
  const std::size_t start = page.find("```\n", section);
  REQUIRE(start != std::string::npos);
  const std::size_t end = page.find("```\n", start + 4);
  REQUIRE(end != std::string::npos);
  std::ostringstream functions;
  cli::write_functions(functions);
  check_page("model_language.md", page.substr(0, start + 4) + functions.str() + page.substr(end));
}

TEST_CASE("docs/graphs.md lists the kinds of a graph's operators") {
  const std::string page = text_of(docs + "graphs.md");
  const std::string heading = "keep it.\n\n";
  const std::size_t end = page.find(heading);
  REQUIRE(end != std::string::npos);
  std::ostringstream kinds;
  cli::write_graph_kinds(kinds);
  check_page("graphs.md", page.substr(0, end + heading.size()) + kinds.str());
}

TEST_CASE("the graph of docs/graphs.md works") {
  const std::string page = text_of(docs + "graphs.md");
  const std::size_t start = page.find("```yaml\n") + 8;
  const test::TemporaryFile file(page.substr(start, page.find("```\n", start) - start));
  const program::Lowering lowering(spec::read_model(file.path), "plain-pytorch");
  CHECK(lowering.parameter_count() > 0);
  program::TrainingJob job;
  job.micro_batch = 2;
  CHECK(lowering.graph(job).total.saved_bytes > 0);
}

}  // namespace shardfit
