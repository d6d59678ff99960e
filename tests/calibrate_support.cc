#include "calibrate_support.h"

#include <doctest/doctest.h>
#include <rapidjson/document.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support.h"

namespace shardfit::test {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

ProgramResult shell(const std::string& command, const std::string& folder) {
  const TemporaryFile script("", "files");
  const std::string own = script.path.substr(0, script.path.rfind('/'));
  const std::string out = own + "/out", err = own + "/err";
  const std::string where = folder.empty() ? own : folder;
  const int status = std::system(
      ("cd '" + where + "' && { " + command + "; } >'" + out + "' 2>'" + err + "'").c_str());
  ProgramResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  result.out = text_of(out);
  result.err = text_of(err);
  return result;
}

ProgramResult run_calibrate(const std::string& arguments, const StandIn& how) {
  const TemporaryFile log("", "log");
  // Sanitizers want to be loaded first; a preloaded library is not.
  std::string command = "export ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0; ";
  if (how.log) command += "export SHARDFIT_STAND_IN_LOG='" + log.path + "'; ";
  if (!how.fail.empty()) command += "export SHARDFIT_STAND_IN_FAIL='" + how.fail + "'; ";
  if (!how.without.empty()) {
    command += "export SHARDFIT_STAND_IN_WITHOUT='" + how.without + "'; ";
  }
  if (!how.hang.empty()) command += "export SHARDFIT_STAND_IN_HANG='" + how.hang + "'; ";
  command += "timeout 60 ";
  if (!how.device.empty()) command += SHARDFIT_BINARY_DIR "/shardfit-stand-in " + how.device + " ";
  command += SHARDFIT_BINARY_DIR "/shardfit-calibrate " + arguments;
  ProgramResult result = shell(command, how.folder);
  result.log = text_of(log.path);
  return result;
}

double reading(const std::string& json, const std::string& benchmark, const std::string& name,
               const std::string& unit) {
  rapidjson::Document document;
  document.Parse(json.c_str());
  REQUIRE_FALSE(document.HasParseError());
  for (const auto& row : document["readings"].GetArray()) {
    if (row["benchmark"].GetString() == benchmark && row["name"].GetString() == name) {
      REQUIRE(row.HasMember(unit.c_str()));
      return row[unit.c_str()].GetDouble();
    }
  }
  FAIL("no reading ", name, " of ", benchmark);
  return 0;
}

}  // namespace shardfit::test
