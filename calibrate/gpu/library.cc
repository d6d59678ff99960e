#include "calibrate/gpu/library.h"

#include <dlfcn.h>

#include <stdexcept>

namespace shardfit::calibrate {

Library::Library(const char* title, const char* marker, std::initializer_list<const char*> names)
    : title_(title) {
  if (dlsym(RTLD_DEFAULT, marker) != nullptr) {
    handle_ = dlopen(nullptr, RTLD_LAZY);
    return;
  }
  for (const char* name : names) {
    handle_ = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (handle_) return;
    const char* error = dlerror();
    if (missing_.empty()) missing_ = title_ + " is not there (" + (error ? error : name) + ")";
  }
}

void* Library::symbol(const char* name, bool required) const {
  void* found = handle_ ? dlsym(handle_, name) : nullptr;
  if (!found && required) {
    throw std::runtime_error(handle_ ? title_ + " has no function " + name : missing_);
  }
  return found;
}

}  // namespace shardfit::calibrate
