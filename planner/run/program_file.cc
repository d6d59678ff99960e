#include "run/program_file.h"

#include <array>
#include <charconv>
#include <limits>

#include "base/format.h"

namespace shardfit::run {
namespace {

constexpr std::string_view letters = "afpercxvwhs";
constexpr std::int64_t most_bytes = std::int64_t{1} << 60;

/// Goes through the text line by line, word by word; every fault is thrown with its place.
class Reader {
 public:
  explicit Reader(SourcePtr source) : source_(std::move(source)), text_(source_->text) {}

  /// Starts the next line; false at the end of the text.
  bool next_line() {
    at_ = end_of_line_ + (started_ ? 1 : 0);
    started_ = true;
    if (at_ >= text_.size()) return false;
    end_of_line_ = std::min(text_.find('\n', at_), text_.size());
    return true;
  }
  std::string_view word() {
    if (at_ >= end_of_line_) fault("the line ends too early");
    word_at_ = at_;
    const std::size_t end = std::min(text_.find(' ', at_), end_of_line_);
    const std::string_view found = text_.substr(at_, end - at_);
    if (found.empty()) fault("a word is missing");
    at_ = end + 1;
    return found;
  }
  bool more() const { return at_ < end_of_line_; }
  /// What is left of the line.
  std::string rest() {
    if (at_ >= end_of_line_) fault("the line ends too early");
    const std::string found(text_.substr(at_, end_of_line_ - at_));
    at_ = end_of_line_;
    return found;
  }
  std::int64_t integer(std::int64_t least, std::int64_t most) {
    const std::string_view found = word();
    const auto value = parse_integer(found);
    if (!value || *value < least || *value > most) {
      fault("expected a whole number from " + format_count(least) + " to " + format_count(most));
    }
    return *value;
  }
  /// A number below `count`: an index into what came before.
  std::uint32_t index(std::size_t count, const char* what) {
    const std::string_view found = word();
    const auto value = parse_integer(found);
    if (!value || *value < 0 || static_cast<std::size_t>(*value) >= count) {
      fault(std::string("there is no ") + what + " of this number");
    }
    return static_cast<std::uint32_t>(*value);
  }
  double real() {
    const auto value = parse_real(word());
    if (!value || *value < 0) fault("expected a number that is not negative");
    return *value;
  }
  bool boolean() { return integer(0, 1) == 1; }
  template <class Name>
  auto name(int count, Name name_of, const char* what) {
    const std::string_view found = word();
    for (int i = 0; i < count; ++i) {
      if (found == name_of(i)) return i;
    }
    fault(std::string("unknown ") + what + " " + quoted(found));
  }
  void end_line() {
    if (more()) {
      word_at_ = at_;
      fault("more words than expected");
    }
  }
  [[noreturn]] void fault(const std::string& message) {
    throw InputError({source_, std::min(word_at_, text_.size()), 1}, message);
  }

 private:
  SourcePtr source_;
  std::string_view text_;
  std::size_t at_ = 0, end_of_line_ = 0, word_at_ = 0;
  bool started_ = false;
};

const char* category_of(int i) { return category_name(static_cast<Category>(i)); }
const char* dtype_of(int i) { return dtype_name(static_cast<DType>(i)); }
const char* collective_of(int i) { return collective_name(static_cast<CollectiveKind>(i)); }
constexpr int dtypes = 10;
constexpr int collectives = 8;

class ProgramReader {
 public:
  explicit ProgramReader(const SourcePtr& source) : in_(source) {}

  ProgramFile read() {
    if (!in_.next_line() || in_.rest() != "shardfit-program 1") {
      in_.fault("expected the first line 'shardfit-program 1'");
    }
    p_.streams.clear();
    bool running = false;
    while (in_.next_line()) {
      if (ended_) in_.fault("expected nothing behind 'end'");
      if (running) {
        instruction();
      } else {
        running = declaration(in_.word());
      }
      in_.end_line();
    }
    if (!ended_) in_.fault("the file ends before 'end'");
    for (const std::string& kind : *kinds_) names_.push_back(kind.c_str());
    for (std::size_t i = 0; i < storage_kinds_.size(); ++i) {
      p_.storages[i].kind = names_[storage_kinds_[i]];
    }
    for (std::size_t i = 0; i < compute_kinds_.size(); ++i) {
      p_.computes[i].kind = names_[compute_kinds_[i]];
    }
    file_.program = std::move(p_);
    file_.kinds = std::move(kinds_);
    return std::move(file_);
  }

 private:
  /// True when the instructions begin.
  bool declaration(std::string_view word) {
    if (word == "option") {
      file_.option = in_.rest();
    } else if (word == "rank") {
      p_.rank = static_cast<std::int32_t>(in_.integer(0, 1 << 20));
    } else if (word == "parameters") {
      p_.parameters_total = in_.integer(0, most_bytes);
      p_.parameters_trainable = in_.integer(0, most_bytes);
    } else if (word == "stream") {
      p_.streams.push_back(in_.rest());
      if (p_.streams.size() > 255) in_.fault("more than 255 streams");
    } else if (word == "group") {
      group();
    } else if (word == "module") {
      std::string path = in_.rest();
      p_.modules.push_back(path == "-" ? "" : std::move(path));
    } else if (word == "kind") {
      std::string kind = in_.rest();
      kinds_->push_back(kind == "-" ? "" : std::move(kind));
    } else if (word == "storage") {
      storage();
    } else if (word == "compute") {
      compute();
    } else if (word == "collective") {
      collective();
    } else if (word == "phase") {
      PhaseMark mark;
      mark.name = in_.word();
      mark.step = static_cast<int>(in_.integer(0, 1000));
      mark.live = in_.boolean();
      p_.phases.push_back(std::move(mark));
    } else if (word == "events") {
      p_.events = static_cast<std::uint32_t>(in_.integer(0, 1 << 30));
    } else if (word == "run") {
      alive_.assign(p_.storages.size(), false);
      return true;
    } else {
      in_.fault("unknown word " + quoted(word));
    }
    return false;
  }

  void group() {
    std::vector<std::int32_t> ranks;
    while (in_.more()) ranks.push_back(static_cast<std::int32_t>(in_.integer(0, 1 << 20)));
    for (std::size_t i = 1; i < ranks.size(); ++i) {
      if (ranks[i] <= ranks[i - 1]) in_.fault("ranks of a group ascend");
    }
    if (ranks.empty()) in_.fault("a group without ranks");
    p_.groups.push_back(std::move(ranks));
  }

  void storage() {
    StorageInfo s;
    s.bytes = in_.integer(0, most_bytes);
    s.category = static_cast<Category>(in_.name(category_count, category_of, "category"));
    s.stream = static_cast<std::uint8_t>(in_.index(p_.streams.size(), "stream"));
    storage_kinds_.push_back(in_.index(kinds_->size(), "kind"));
    s.module = in_.index(p_.modules.size(), "module");
    s.backward = in_.boolean();
    p_.storages.push_back(s);
  }

  void compute() {
    Compute c;
    compute_kinds_.push_back(in_.index(kinds_->size(), "kind"));
    c.module = in_.index(p_.modules.size(), "module");
    c.backward = in_.boolean();
    c.dtype = static_cast<DType>(in_.name(dtypes, dtype_of, "dtype"));
    c.flops = in_.real();
    c.bytes = in_.real();
    for (std::int64_t* size : {&c.m, &c.n, &c.k, &c.groups}) *size = in_.integer(0, most_bytes);
    p_.computes.push_back(c);
  }

  void collective() {
    Collective c;
    c.kind = static_cast<CollectiveKind>(in_.name(collectives, collective_of, "collective"));
    c.dtype = static_cast<DType>(in_.name(dtypes, dtype_of, "dtype"));
    c.bytes = in_.integer(0, most_bytes);
    c.group = in_.index(p_.groups.size(), "group");
    c.peer = static_cast<std::int32_t>(in_.integer(-1, 1 << 20));
    c.module = in_.index(p_.modules.size(), "module");
    c.backward = in_.boolean();
    p_.collectives.push_back(c);
  }

  void instruction() {
    const std::string_view word = in_.word();
    if (word == "end") {
      ended_ = true;
      return;
    }
    const std::size_t letter = word.size() == 1 ? letters.find(word) : std::string_view::npos;
    if (letter == std::string_view::npos) in_.fault("unknown instruction " + quoted(word));
    Instruction i{static_cast<Action>(letter), 0, 0};
    i.id = target(i.action);
    i.stream = static_cast<std::uint8_t>(in_.index(p_.streams.size(), "stream"));
    p_.instructions.push_back(i);
  }

  /// What an instruction acts on; holds that storages are alive when they are used.
  std::uint32_t target(Action action) {
    switch (action) {
      case Action::allocate:
      case Action::release:
      case Action::record_stream: {
        const std::uint32_t id = in_.index(p_.storages.size(), "storage");
        if (alive_[id] == (action == Action::allocate)) {
          in_.fault(action == Action::allocate ? "the storage is alive already"
                                               : "the storage is not alive");
        }
        alive_[id] = action != Action::release;
        return id;
      }
      case Action::phase:
        return in_.index(p_.phases.size(), "phase");
      case Action::compute:
        return in_.index(p_.computes.size(), "compute");
      case Action::collective:
        return in_.index(p_.collectives.size(), "collective");
      case Action::record_event:
      case Action::wait_event:
      case Action::host_wait:
        return in_.index(p_.events, "event");
      case Action::empty_cache:
      case Action::reset_peaks:
        break;
    }
    return static_cast<std::uint32_t>(in_.integer(0, 0));
  }

  Reader in_;
  Program p_;
  ProgramFile file_;
  std::shared_ptr<std::vector<std::string>> kinds_ = std::make_shared<std::vector<std::string>>();
  std::vector<const char*> names_;
  std::vector<std::uint32_t> storage_kinds_, compute_kinds_;
  std::vector<bool> alive_;
  bool ended_ = false;
};

}  // namespace

ProgramFile read_program(const SourcePtr& source) { return ProgramReader(source).read(); }

}  // namespace shardfit::run
