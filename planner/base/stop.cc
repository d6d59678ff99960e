#include "base/stop.h"

#include <time.h>

namespace shardfit {

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

StopCheck::StopCheck(double deadline, const volatile std::sig_atomic_t* flag)
    : deadline_(deadline), flag_(flag) {}

StopCheck::Why StopCheck::why() const {
  if (flag_ && *flag_ != 0) return Why::interrupt;
  return cpu_seconds() > deadline_ ? Why::budget : Why::no;
}

void StopCheck::check() const {
  if (why() != Why::no) throw Stopped();
}

}  // namespace shardfit
