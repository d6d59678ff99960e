#pragma once
// Long work that can be given up: what does it asks now and then whether to go on.

#include <csignal>
#include <exception>
#include <limits>

namespace shardfit {

/// CPU time of the process so far.
double cpu_seconds();

/// Thrown out of work that was given up.
struct Stopped : std::exception {
  const char* what() const noexcept override { return "stopped"; }
};

/// A point in CPU time, and a flag that a signal sets; both may be missing.
class StopCheck {
 public:
  enum class Why { no, budget, interrupt };

  StopCheck() = default;
  /// `deadline` on the clock of cpu_seconds(); `flag`: not 0 asks to stop.
  StopCheck(double deadline, const volatile std::sig_atomic_t* flag);

  Why why() const;
  /// Throws Stopped where it is time to; costs a system call.
  void check() const;

 private:
  double deadline_ = std::numeric_limits<double>::infinity();
  const volatile std::sig_atomic_t* flag_ = nullptr;
};

/// check(), where there is one.
inline void check(const StopCheck* stop) {
  if (stop) stop->check();
}

}  // namespace shardfit
