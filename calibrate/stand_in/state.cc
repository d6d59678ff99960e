#include "calibrate/stand_in/state.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace stand_in {
namespace {

double number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

Profile read_profile() {
  Profile p;
  const char* text = std::getenv("SHARDFIT_STAND_IN");
  std::string rest = text ? text : "";
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(';'), rest.size());
    const std::string item = rest.substr(0, end);
    rest.erase(0, std::min(end + 1, rest.size()));
    const std::size_t sign = item.find('=');
    if (sign == std::string::npos) continue;
    const std::string key = item.substr(0, sign), value = item.substr(sign + 1);
    if (key == "name") p.name = value;
    if (key == "capability") std::sscanf(value.c_str(), "%d.%d", &p.major, &p.minor);
    if (key == "multiprocessors") p.multiprocessors = static_cast<int>(number(value));
    if (key == "count") p.count = static_cast<int>(number(value));
    if (key == "peer") p.peer = value == "1";
    if (key == "usable") p.usable = std::strtoll(value.c_str(), nullptr, 10);
    if (key == "context") p.context = std::strtoll(value.c_str(), nullptr, 10);
    if (key == "communicator") p.communicator = std::strtoll(value.c_str(), nullptr, 10);
    if (key == "bandwidth") p.bandwidth = number(value);
    if (key == "flops") p.flops = number(value);
    if (key == "link") p.link = number(value);
    if (key == "host_link") p.host_link = number(value);
  }
  return p;
}

/// "CALL:N:CODE:TIMES" of an environment variable: from the N-th call on, counted from 1, so many
/// calls; once where TIMES is left out.
struct Injection {
  explicit Injection(const char* variable) {
    const char* text = std::getenv(variable);
    if (!text) return;
    char name[64] = {};
    if (std::sscanf(text, "%63[^:]:%ld:%d:%ld", name, &at, &code, &times) >= 2) call = name;
  }
  bool meets(const char* other, std::int64_t nth) const {
    return call == other && nth >= at && nth < at + times;
  }
  std::string call;
  long at = 0, times = 1;
  int code = 0;
};

/// The log, closed with what was left at the end of the process.
struct Log {
  Log() {
    const char* path = std::getenv("SHARDFIT_STAND_IN_LOG");
    if (path) file = std::fopen(path, "a");
  }
  ~Log() {
    if (!file) return;
    State& s = state();
    std::int64_t bytes = 0;
    for (const auto& [address, block] : s.blocks) bytes += block.bytes;
    std::fprintf(file, "left %zu allocations, %lld bytes, %zu streams, %zu events, %zu graphs\n",
                 s.blocks.size(), static_cast<long long>(bytes),
                 s.streams.size() - s.streams.count(nullptr), s.events.size(), s.graphs.size());
    std::fclose(file);
  }
  std::FILE* file = nullptr;
};

/// Errors after which a device answers nothing else: illegal address, launch failure, ECC and the
/// like (cudaError_t: "the process must be terminated and relaunched").
bool sticks(int code) { return code == 214 || code == 700 || (code >= 710 && code <= 719); }

}  // namespace

thread_local int current = 0;
thread_local int last_error = 0;

const Profile& profile() {
  static const Profile found = read_profile();
  return found;
}

State& state() {
  static State* const all = [] {
    auto* made = new State;  // lives to the very end: destructors of others call in
    made->devices.resize(static_cast<std::size_t>(profile().count));
    made->pools.reserve(256);
    for (int d = 0; d < profile().count; ++d) {
      made->pools.push_back({});
      made->pools.back().device = d;
    }
    return made;
  }();
  return *all;
}

int enter(const char* call, std::int64_t detail) {
  static const Injection injection("SHARDFIT_STAND_IN_FAIL");
  static Log log;
  State& s = state();
  const std::int64_t nth = ++s.calls[call];
  if (log.file) {
    std::fprintf(log.file, "%d %s %lld\n", current, call, static_cast<long long>(detail));
  }
  if (injection.meets(call, nth)) {
    if (sticks(injection.code)) s.lost = injection.code;
    return injection.code;
  }
  return s.lost;
}

bool hangs(const char* call) {
  static const Injection injection("SHARDFIT_STAND_IN_HANG");
  return injection.meets(call, state().calls[call]);
}

int leave(int error) {
  if (error != 0) last_error = error;
  return error;
}

bool take(int device, std::int64_t bytes) {
  Device& d = state().devices[static_cast<std::size_t>(device)];
  Device after = d;
  if (bytes < (1 << 20)) {
    after.small += (bytes + 511) / 512 * 512;
  } else {
    after.large += (bytes + page - 1) / page * page;
  }
  if (after.used() + profile().context > profile().usable) return false;
  d.large = after.large;
  d.small = after.small;
  return true;
}

void give(int device, std::int64_t bytes) {
  Device& d = state().devices[static_cast<std::size_t>(device)];
  if (bytes < (1 << 20)) {
    d.small -= (bytes + 511) / 512 * 512;
  } else {
    d.large -= (bytes + page - 1) / page * page;
  }
}

std::uint64_t new_address(int device, std::int64_t bytes) {
  Device& d = state().devices[static_cast<std::size_t>(device)];
  const std::uint64_t address =
      first_address + (static_cast<std::uint64_t>(device) << address_bits) + d.next;
  d.next += static_cast<std::uint64_t>((bytes + page - 1) / page * page);
  return address;
}

void* new_handle() {
  static std::uint64_t next = 0x1000;
  return reinterpret_cast<void*>(next += 16);
}

std::int64_t free_bytes(int device) {
  return profile().usable - profile().context -
         state().devices[static_cast<std::size_t>(device)].used();
}

void queue(void* stream, double seconds) {
  Stream& s = state().streams[stream];
  if (s.captured >= 0) {
    ++s.captured;
  } else {
    s.time += seconds;
  }
}

}  // namespace stand_in
