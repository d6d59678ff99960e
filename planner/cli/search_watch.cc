#include "cli/search_watch.h"

#include <unistd.h>

#include <iostream>

#include "base/format.h"

namespace shardfit::cli {
namespace {

constexpr double quiet_seconds = 0.5;

volatile std::sig_atomic_t interrupted = 0;

void interrupt(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

SearchWatch::SearchWatch(std::ostream& err) : err_(err) {
  interrupted = 0;
  before_ = std::signal(SIGINT, interrupt);
  controls_.stop = &interrupted;
  if (&err != &std::cerr || isatty(STDERR_FILENO) == 0) return;
  controls_.progress = [this](const search::SearchProgress& now) {
    if (now.cpu_seconds < quiet_seconds) return;
    shown_ = true;
    err_ << "\r\033[K" << now.option << ": " << now.run << " of " << now.configurations
         << " configurations run, " << now.left << " left, gap "
         << (now.gap < 1 ? format_percent(now.gap) : "not known") << " (Ctrl-C: the best so far)"
         << std::flush;
  };
}

SearchWatch::~SearchWatch() {
  if (shown_) err_ << "\r\033[K" << std::flush;
  std::signal(SIGINT, before_ == SIG_ERR ? SIG_DFL : before_);
}

}  // namespace shardfit::cli
