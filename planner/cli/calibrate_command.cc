#include "cli/calibrate_command.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <ostream>

#include "base/diagnostic.h"

namespace shardfit::cli {
namespace {

/// Both ends of a pipe, closed with the object.
struct Pipe {
  Pipe() {
    if (pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_write() {
    close(ends[1]);
    ends[1] = -1;
  }
  std::array<int, 2> ends{};
};

/// What comes from a pipe now; false at its end.
bool forward(int from, std::ostream& to) {
  std::array<char, 4096> part{};
  const ssize_t count = read(from, part.data(), part.size());
  if (count <= 0) return false;
  to.write(part.data(), count);
  to.flush();
  return true;
}

void forward_both(Pipe& out_pipe, Pipe& err_pipe, std::ostream& out, std::ostream& err) {
  std::array<pollfd, 2> ends{{{out_pipe.ends[0], POLLIN, 0}, {err_pipe.ends[0], POLLIN, 0}}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (poll(ends.data(), ends.size(), -1) < 0) break;
    if (ends[0].revents && !forward(ends[0].fd, out)) ends[0].fd = -1;
    if (ends[1].revents && !forward(ends[1].fd, err)) ends[1].fd = -1;
  }
}

}  // namespace

int calibrate_command(const std::vector<std::string>& arguments, std::ostream& out,
                      std::ostream& err) {
  const std::string program = SHARDFIT_CALIBRATE;
  if (access(program.c_str(), X_OK) != 0) {
    throw InputError(whole_file(program), "the program is not built",
                     {"./shardfit calibrate builds it; without a CUDA compiler it can list and "
                      "plan, and measures nothing"});
  }
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  Pipe out_pipe, err_pipe;
  out.flush();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process for shardfit-calibrate");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // a card is not kept by what nobody waits for
    if (getppid() != parent) _exit(3);
    dup2(out_pipe.ends[1], STDOUT_FILENO);
    dup2(err_pipe.ends[1], STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(3);
  }
  out_pipe.close_write();
  err_pipe.close_write();
  forward_both(out_pipe, err_pipe, out, err);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

}  // namespace shardfit::cli
