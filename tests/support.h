#pragma once
// What several tests need.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/diagnostic.h"
#include "spec/reader.h"

namespace shardfit::test {

inline SourcePtr source(std::string text, std::string name = "t.yaml") {
  return std::make_shared<const Source>(Source{std::move(name), std::move(text)});
}

/// The tree of a text without faults.
inline spec::Node parse_node(const std::string& text, const std::string& name = "t.yaml") {
  Diagnostics faults;
  spec::Node node = spec::read_text(source(text, name), faults);
  faults.throw_if_any();
  return node;
}

/// What a call complains of, "" where it does not.
template <class Call>
std::string errors_of(Call call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// A file that lives as long as the object.
struct TemporaryFile {
  explicit TemporaryFile(const std::string& text, const std::string& name = "test.yaml") {
    std::string folder = (std::filesystem::temp_directory_path() / "shardfit-XXXXXX").string();
    if (!mkdtemp(folder.data())) throw std::runtime_error("no temporary directory");
    folder_ = folder;
    path = folder + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  /// Extends the file with zeros that take no disk.
  void grow(std::uintmax_t size) const { std::filesystem::resize_file(path, size); }

  std::string path;

 private:
  std::string folder_;
};

/// Rounds of a seeded loop: `usual`, or as many times more as SHARDFIT_FUZZ_FACTOR says.
inline unsigned fuzz_rounds(unsigned usual) {
  const char* factor = std::getenv("SHARDFIT_FUZZ_FACTOR");
  return usual * (factor ? static_cast<unsigned>(std::atoi(factor)) : 1U);
}

}  // namespace shardfit::test
