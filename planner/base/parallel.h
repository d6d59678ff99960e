#pragma once
// Independent pieces of work on all cores.

#include <cstddef>
#include <functional>

namespace shardfit {

/// Calls body(i) once for every i below `count`, on as many threads as the machine has cores, in
/// any order; returns when all are done. What a body throws reaches the caller: of several, that of
/// the lowest i.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& body);

}  // namespace shardfit
