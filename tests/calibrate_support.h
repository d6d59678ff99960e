#pragma once
// Runs the program shardfit-calibrate as it is built, on the stand-in runtime or on none.

#include <string>

namespace shardfit::test {

struct ProgramResult {
  int code = 0;
  std::string out, err;
  std::string log;  // of the stand-in, where asked for
};

struct StandIn {
  std::string device = {};   // "2xh200 no-peer"; "": no stand-in
  bool log = false;          // every call, and what was left at the end
  std::string fail = {};     // "CALL:N:CODE": the N-th call fails
  std::string hang = {};     // "CALL:N": what the N-th call queues never ends
  std::string without = {};  // titles of libraries that are missing, between commas
  std::string folder = {};   // working directory; "": an own one, removed afterwards
};

/// Why nothing runs here: there is no card, or the program was built without a CUDA compiler.
#ifdef SHARDFIT_CUDA
inline const std::string why_waived = "no CUDA device";
#else
inline const std::string why_waived = "this program has no CUDA part";
#endif

/// `shardfit-calibrate ARGUMENTS`, at most a minute.
ProgramResult run_calibrate(const std::string& arguments, const StandIn& how);

/// A shell command in a directory of its own.
ProgramResult shell(const std::string& command, const std::string& folder = "");

/// The value of a reading in run's JSON; fails the test where it is not there.
double reading(const std::string& json, const std::string& benchmark, const std::string& name,
               const std::string& unit);

}  // namespace shardfit::test
