#include "calibrate/gpu/library.h"

#include <dlfcn.h>

#include <stdexcept>

namespace shardfit::calibrate {

Library::Library(const char* title, const char* marker, std::initializer_list<const char*> names)
    : title_(title) {
  using Lacks = bool (*)(const char*);
  const auto lacks = reinterpret_cast<Lacks>(dlsym(RTLD_DEFAULT, "shardfit_stand_in_lacks"));
  if (lacks && lacks(title)) {
    missing_ = title_ + " is not there (the stand-in was told so)";
    return;
  }
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

Library cublas() {
  return {"cuBLAS", "cublasCreate_v2", {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}};
}
Library cublas_lt() {
  return {
      "cuBLASLt", "cublasLtCreate", {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}};
}
Library nccl() { return {"NCCL", "ncclGetUniqueId", {"libnccl.so.2", "libnccl.so"}}; }

}  // namespace shardfit::calibrate
