#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace shardfit {

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::vector<std::exception_ptr> thrown(count);
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> others;
  try {
    while (others.size() + 1 < std::min(cores, count)) others.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads to be had: those that run do it all
  }
  work();
  for (std::thread& thread : others) thread.join();
  for (const std::exception_ptr& error : thrown) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace shardfit
