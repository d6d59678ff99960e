#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>

#include "base/format.h"
#include "base/utf8.h"
#include "spec/formats.h"
#include "spec/reader.h"

namespace shardfit::spec {
namespace {

[[noreturn]] void refuse(const std::string& path, std::string why,
                         std::vector<std::string> notes = {}) {
  throw InputError(whole_file(path), std::move(why), std::move(notes));
}

/// A pipe that somebody writes to, as a shell's <(command) is; one without a writer would block for
/// ever.
std::FILE* open_pipe(const std::string& path) {
  constexpr int patience = 10'000;  // milliseconds to the first byte
  const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  pollfd waiting{descriptor, POLLIN, 0};
  if (poll(&waiting, 1, patience) == 0 || !(waiting.revents & POLLIN)) {
    close(descriptor);
    refuse(path, "is a pipe that nobody writes to");
  }
  fcntl(descriptor, F_SETFL, 0);  // from here on wait for the writer's end
  return fdopen(descriptor, "rb");
}

/// What a pipe held: it can be read once, while a file may be asked for as a plan and then as the
/// model it turns out to be. Kept for the process, by the pipe's own number.
class Pipes {
 public:
  static Pipes& all() {
    static auto& pipes = *new Pipes;  // never taken down
    return pipes;
  }
  std::optional<std::string> find(const std::string& path, const struct stat& info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = texts_.find({path, info.st_dev, info.st_ino});
    if (known == texts_.end()) return {};
    return known->second;
  }
  void keep(const std::string& path, const struct stat& info, const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts_[{path, info.st_dev, info.st_ino}] = text;
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::string, dev_t, ino_t>, std::string> texts_;
};

/// Reads up to `most` bytes and one more, so that pipes and endless devices are bounded as well.
std::string slurp(const std::string& path, std::size_t most) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    refuse(path, errno == ENOENT ? "no such file"
                                 : std::string("cannot be read: ") + std::strerror(errno));
  }
  if (S_ISDIR(info.st_mode)) {
    const std::string config = path + "/config.json";
    const bool model = stat(config.c_str(), &info) == 0;
    refuse(path, "is a directory, not a file",
           {model ? "it holds a config.json: give " + config : "expected a file in YAML or JSON"});
  }
  const std::string too_large = "is larger than " +
                                format_bytes(Bytes(static_cast<std::int64_t>(most))) +
                                ", the most that is read";
  if (S_ISREG(info.st_mode) && static_cast<std::uintmax_t>(info.st_size) > most) {
    refuse(path, too_large);
  }
  if (S_ISFIFO(info.st_mode)) {
    if (auto known = Pipes::all().find(path, info)) return *std::move(known);
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      S_ISFIFO(info.st_mode) ? open_pipe(path) : std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) refuse(path, std::string("cannot be read: ") + std::strerror(errno));
  std::string text;
  // All of a file and the end behind it, with no room that stays empty for as long as it is kept.
  std::size_t piece = S_ISREG(info.st_mode) ? static_cast<std::size_t>(info.st_size) + 1 : 1 << 16;
  for (;; piece = 1 << 16) {
    const std::size_t size = text.size();
    text.resize(size + piece);
    const std::size_t got = std::fread(text.data() + size, 1, piece, file.get());
    text.resize(size + got);
    if (text.size() > most) refuse(path, too_large);
    if (got < piece) break;
  }
  if (std::ferror(file.get())) refuse(path, "cannot be read");
  if (S_ISFIFO(info.st_mode)) Pipes::all().keep(path, info, text);
  return text;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

SourcePtr read_source(const std::string& path, Bytes most) {
  std::string text = slurp(path, static_cast<std::size_t>(most.count()));
  if (text.empty()) refuse(path, "is empty", {"expected text, such as YAML or JSON"});
  if (text.find('\0') != std::string::npos) {
    refuse(path, "is a binary file, not text", {"expected YAML or JSON in UTF-8"});
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (const std::size_t at = end_of_utf8(text); at < text.size()) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(at), '\n');
    refuse(path,
           "is not UTF-8 text: byte " + std::to_string(at) + ", line " + std::to_string(line));
  }
  return std::make_shared<const Source>(Source{path, std::move(text)});
}

namespace {

/// Other formats that YAML's or JSON's own complaints would not help with.
void refuse_other_formats(const Source& source) {
  const char* format = nullptr;
  if (ends_with(source.name, ".toml")) format = "TOML";
  if (ends_with(source.name, ".ini")) format = "INI";
  if (source.text.starts_with("#!") || ends_with(source.name, ".sh") ||
      ends_with(source.name, ".py")) {
    format = "a script";
  }
  if (!format) return;
  refuse(source.name, std::string("is ") + format + ", not YAML or JSON");
}

}  // namespace

Node read_text(const SourcePtr& source, Diagnostics& faults) {
  refuse_other_formats(*source);
  const std::size_t first = source->text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw InputError({source, 0, 0}, "holds no data");
  const bool yaml = ends_with(source->name, ".yaml") || ends_with(source->name, ".yml");
  const bool json = ends_with(source->name, ".json") ||
                    (!yaml && (source->text[first] == '{' || source->text[first] == '['));
  return json ? read_json(source, faults) : read_yaml(source, faults);
}

Node read_file(const std::string& path, Diagnostics& faults) {
  return read_text(read_source(path), faults);
}

namespace {

/// What `read` makes of a file, kept under `name` for as long as the file does not change.
template <class Read>
std::shared_ptr<const Node> kept_of(const std::string& name, const std::string& path,
                                    Diagnostics& faults, Read read) {
  struct Kept {
    timespec changed{};
    off_t size = 0;
    std::shared_ptr<const Node> root;
  };
  static std::mutex mutex;
  static auto& files = *new std::map<std::string, Kept>;  // never taken down
  struct stat info {};
  const bool there = stat(path.c_str(), &info) == 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = files.find(name); there && found != files.end()) {
    const Kept& kept = found->second;
    if (kept.size == info.st_size && kept.changed.tv_sec == info.st_mtim.tv_sec &&
        kept.changed.tv_nsec == info.st_mtim.tv_nsec) {
      return kept.root;
    }
  }
  const std::size_t before = faults.size();
  auto root = std::make_shared<const Node>(read());
  if (faults.size() == before) files[name] = {info.st_mtim, info.st_size, root};
  return root;
}

/// Of a map in lines its entries with one of `keys`, where each begins with its key; all of another
/// text.
std::string entries_of(const std::string& text, std::span<const std::string_view> keys) {
  if (text.starts_with('{')) return text;
  std::string out;
  bool wanted = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.find_first_of(" -#\r\n") != 0) {
      wanted = std::any_of(keys.begin(), keys.end(), [&](std::string_view key) {
        return line.starts_with(key) && line.substr(key.size()).starts_with(':');
      });
    }
    if (wanted) out += line;
    at = end;
  }
  return out;
}

}  // namespace

std::shared_ptr<const Node> read_data(const std::string& path, Diagnostics& faults) {
  return kept_of(path, path, faults, [&] { return read_file(path, faults); });
}

std::shared_ptr<const Node> read_data_entries(const std::string& path,
                                              std::initializer_list<std::string_view> keys,
                                              Diagnostics& faults) {
  std::string name = path;
  for (const std::string_view key : keys) name.append("\n").append(key);
  return kept_of(name, path, faults, [&] {
    const SourcePtr whole = read_source(path);
    const std::string part = entries_of(whole->text, {keys.begin(), keys.size()});
    if (part.empty()) return read_text(whole, faults);
    return read_text(std::make_shared<const Source>(Source{path, part}), faults);
  });
}

}  // namespace shardfit::spec
