#include "program/repeat.h"

#include <doctest/doctest.h>

#include <string>

#include "model_support.h"
#include "program/training.h"
#include "validate/cases.h"

using namespace shardfit;
using test::sequence;

TEST_CASE("repeated steps: copying a step gives what running it gives") {
  const std::string data = std::string(SHARDFIT_SOURCE_DIR) + "/tests/data/validate/plain.yaml";
  int compared = 0;
  for (auto c : validate::read_cases(data)) {
    const bool chosen = c.id.find("l1b") != std::string::npos || c.job.fsdp2 || c.job.fsdp1;
    if (!c.skipped.empty() || !chosen) continue;
    CAPTURE(c.id);
    spec::ModelSpec model = validate::model_of(c);
    test::set_number(model, "num_hidden_layers", 2);
    const program::Lowering lowering(std::move(model), c.job.framework);
    c.job.repeat_steps = true;
    const std::string copied = sequence(lowering.lower(c.job));
    c.job.repeat_steps = false;
    CHECK(copied == sequence(lowering.lower(c.job)));
    ++compared;
  }
  CHECK(compared > 86);
}
