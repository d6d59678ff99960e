#pragma once
// When two parts of a program are the same but for the names in them.

#include <cstring>

#include "tensor/program.h"

namespace shardfit::program {

inline bool on_storage(Action action) {
  return action == Action::allocate || action == Action::release || action == Action::record_stream;
}

inline bool on_event(Action action) {
  return action == Action::record_event || action == Action::wait_event ||
         action == Action::host_wait;
}

/// Something runs, on the device or between devices.
inline bool runs(Action action) {
  return action == Action::compute || action == Action::collective;
}

/// All but the module and, as strategies and savers set it later, the category.
inline bool alike_made(const StorageInfo& a, const StorageInfo& b) {
  return a.bytes == b.bytes && a.stream == b.stream && a.backward == b.backward &&
         std::strcmp(a.kind, b.kind) == 0;
}

inline bool alike(const StorageInfo& a, const StorageInfo& b) {
  return alike_made(a, b) && a.category == b.category && a.module == b.module;
}

/// All but the module.
inline bool alike_run(const Compute& a, const Compute& b) {
  return std::strcmp(a.kind, b.kind) == 0 && a.backward == b.backward && a.dtype == b.dtype &&
         a.flops == b.flops && a.bytes == b.bytes && a.m == b.m && a.n == b.n && a.k == b.k &&
         a.groups == b.groups;
}

/// All but the module.
inline bool alike_sent(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.bytes == b.bytes && a.group == b.group &&
         a.peer == b.peer && a.backward == b.backward;
}

}  // namespace shardfit::program
