#pragma once
// Programs as files: what one rank allocates, frees, computes and exchanges, for `calibrate
// confirm` and for whoever wants to read it. Text, one line each:
//
//   shardfit-program 1
//   option h200                    which option of the plan, and of which rank
//   rank 0
//   parameters 8030261248 8030261248
//   stream NAME                    numbered from 0, as groups, modules, kinds and all below
//   group 0 1                      ranks of a communicator
//   module PATH                    "-" for the whole program
//   kind NAME
//   storage BYTES CATEGORY STREAM KIND MODULE BACKWARD
//   compute KIND MODULE BACKWARD DTYPE FLOPS BYTES M N K GROUPS
//   collective NAME DTYPE BYTES GROUP PEER MODULE BACKWARD
//   phase NAME STEP LIVE
//   events 12                      events that there are
//   run                            instructions from here on
//   a 5 0                          allocate storage 5 from stream 0's pool; then:
//                                  f release, p phase, e empty_cache, r reset_peaks, c compute,
//                                  x collective, v record_event, w wait_event, h host_wait,
//                                  s record_stream
//   end                            the last line

#include <iosfwd>
#include <memory>
#include <string>

#include "base/diagnostic.h"
#include "tensor/program.h"

namespace shardfit::run {

/// A program as it was read. Kinds are names that live as long as this object.
struct ProgramFile {
  std::string option;
  Program program;
  std::shared_ptr<const std::vector<std::string>> kinds;
};

/// Largest file that is read.
inline constexpr std::int64_t largest_program = 1 << 30;

/// "h200-rank0.program": where the program of a rank of an option lies; what is no letter, digit,
/// '.', '-' or '_' becomes '_'.
std::string program_file_name(const std::string& option, int rank);

void write_program(const Program& program, const std::string& option, std::ostream& out);

/// The program of a text. Throws InputError at the first line that is not of this form, names what
/// is not there, frees what is not alive or allocates what is.
ProgramFile read_program(const SourcePtr& source);

}  // namespace shardfit::run
