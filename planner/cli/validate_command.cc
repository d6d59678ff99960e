#include "cli/validate_command.h"

#include <algorithm>
#include <filesystem>
#include <ostream>

#include "base/diagnostic.h"
#include "cli/cli.h"
#include "spec/data_directory.h"
#include "spec/reader.h"
#include "validate/compare.h"
#include "validate/operator_tables.h"

namespace shardfit::cli {
namespace {

namespace fs = std::filesystem;

/// The first bytes of a case list: an item with an id, or a map with `cases`.
bool is_case_list(const fs::path& path) {
  const SourcePtr source = spec::read_source(path.string(), spec::largest_file * 8);
  return source->text.find("\"measured\"") != std::string::npos ||
         source->text.find("measured:") != std::string::npos;
}

std::vector<std::string> case_lists(const std::string& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    const std::string file = entry.path().string();
    const auto extension = entry.path().extension();
    if ((extension == ".yaml" && is_case_list(entry.path())) ||
        (extension == ".csv" && validate::is_operator_table(file))) {
      files.push_back(file);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int validate_command(const std::vector<std::string>& paths, bool json, std::ostream& out,
                     std::ostream& err) {
  int code = fits;
  std::vector<validate::CaseResult> results;
  std::vector<validate::OperatorErrors> operators;
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  for (const std::string& path : paths) {
    try {
      const std::vector<std::string> files = case_lists(path);
      if (files.empty())
        throw InputError(whole_file(path), "no case lists or operator tables below this directory");
      for (const std::string& file : files) {
        if (validate::is_operator_table(file)) {
          operators.push_back(validate::compare_operators(validate::read_operator_table(file),
                                                          devices, json ? &out : nullptr));
          continue;
        }
        for (auto& result : validate::predict(validate::read_cases(file))) {
          results.push_back(std::move(result));
        }
      }
    } catch (const InputError& error) {
      err << error.what();
      code = bad_input;
    }
  }
  if (json) {
    validate::print_json(results, out);
  } else {
    if (!results.empty()) validate::print_table(results, out);
    validate::print_operators(operators, out);
  }
  return code;
}

}  // namespace shardfit::cli
