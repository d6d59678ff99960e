#pragma once
// Libraries that need not be there, opened when they are asked for.

#include <initializer_list>
#include <string>

namespace shardfit::calibrate {

class Library {
 public:
  /// Takes what the process already has (a stand-in) where `marker` is defined, else the first name
  /// that loads. Never closed: CUDA's libraries do not like to be.
  Library(const char* title, const char* marker, std::initializer_list<const char*> names);

  bool there() const { return handle_ != nullptr; }
  /// "cuBLAS is not there (libcublas.so.13: cannot open ...)".
  const std::string& missing() const { return missing_; }
  /// The function; throws std::runtime_error where the library lacks it.
  template <class Function>
  void get(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name, true));
  }
  /// As get, but null where the library lacks it.
  template <class Function>
  void get_optional(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name, false));
  }

 private:
  void* symbol(const char* name, bool required) const;

  std::string title_, missing_;
  void* handle_ = nullptr;
};

// The names they are looked for by.
Library cublas();
Library cublas_lt();
Library nccl();

}  // namespace shardfit::calibrate
