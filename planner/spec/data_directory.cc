#include "spec/data_directory.h"

#include <cstdlib>
#include <filesystem>

#include "base/diagnostic.h"

namespace shardfit::spec {

std::string data_directory() {
  const char* chosen = std::getenv("SHARDFIT_DATA");
  return chosen && *chosen ? chosen : SHARDFIT_SOURCE_DIR "/model_specs";
}

void check_data_directory() {
  std::error_code error;
  const std::string folder = data_directory();
  if (std::filesystem::is_directory(folder + "/families", error)) return;
  const bool there = std::filesystem::exists(folder, error);
  throw InputError(
      whole_file("SHARDFIT_DATA"),
      shardfit::quoted(folder) + (there ? " has no folder 'families'" : " is not there"),
      {"expected a folder like model_specs/, with families, models, devices and "
       "frameworks; or leave SHARDFIT_DATA unset"});
}

}  // namespace shardfit::spec
