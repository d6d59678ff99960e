#include "spec/data_directory.h"

#include <cstdlib>

namespace shardfit::spec {

std::string data_directory() {
  const char* chosen = std::getenv("SHARDFIT_DATA");
  return chosen && *chosen ? chosen : SHARDFIT_SOURCE_DIR "/model_specs";
}

}  // namespace shardfit::spec
