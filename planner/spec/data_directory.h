#pragma once
#include <string>

namespace shardfit::spec {

/// The folder that holds families/, models/, devices/ and frameworks/: the environment's
/// SHARDFIT_DATA, else model_specs/ of the source tree the program was built from. Found at run
/// time, so a new file there needs no rebuild.
std::string data_directory();

/// Throws InputError where SHARDFIT_DATA names no such folder.
void check_data_directory();

}  // namespace shardfit::spec
