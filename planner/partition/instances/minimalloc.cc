// CSV of github.com/google/minimalloc: id,lower,upper,size; the capacity stands in the file name.

#include <unordered_set>

#include "partition/instances/instances.h"
#include "partition/instances/text_lines.h"

namespace shardfit::partition {
namespace {

constexpr std::int64_t most = std::int64_t{1} << 50;

/// The number in NAME.CAPACITY.csv.
std::optional<std::int64_t> capacity_of(std::string_view name) {
  if (std::size_t slash = name.rfind('/'); slash != std::string_view::npos)
    name.remove_prefix(slash + 1);
  std::vector<Piece> parts = split({name, 0}, ".");
  if (parts.size() < 3 || parts.back().text != "csv") return std::nullopt;
  std::optional<std::int64_t> n = parse_whole(parts[parts.size() - 2].text);
  if (!n || *n < 1 || *n > most) return std::nullopt;
  return n;
}

}  // namespace

BufferInstance read_buffers(const SourcePtr& source) {
  BufferInstance out;
  out.capacity = capacity_of(source->name);
  std::vector<Piece> lines = lines_of(source->text);
  if (lines.empty() || trimmed(lines[0]).text != "id,lower,upper,size") {
    Piece where = lines.empty() ? Piece{source->text, 0} : lines[0];
    fail_at(source, where,
            "found " + quoted(where.text) + ", expected the header 'id,lower,upper,size'");
  }
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (trimmed(lines[i]).text.empty()) continue;
    std::vector<Piece> fields = split(lines[i], ",");
    if (fields.size() != 4)
      fail_at(
          source, lines[i],
          "found " + std::to_string(fields.size()) + " fields, expected 4: id,lower,upper,size");
    for (Piece& f : fields) f = trimmed(f);
    auto whole = [&](int field, const char* name, std::int64_t least) {
      std::optional<std::int64_t> n = parse_whole(fields[field].text);
      if (!n || *n < least || *n > most)
        fail_at(source, fields[field],
                "found " + quoted(fields[field].text) + " as " + name +
                    ", expected a whole number from " + std::to_string(least) + " to " +
                    std::to_string(most));
      return *n;
    };
    BufferInstance::Buffer b{std::string(fields[0].text), whole(1, "lower", -most),
                             whole(2, "upper", -most), whole(3, "size", 0)};
    if (b.id.empty()) fail_at(source, lines[i], "a buffer has no id");
    if (!seen.insert(fields[0].text).second)
      fail_at(source, fields[0], "buffer " + quoted(b.id) + " is given twice");
    if (b.lower >= b.upper)
      fail_at(
          source, fields[2],
          "upper " + std::to_string(b.upper) + " is not above lower " + std::to_string(b.lower));
    out.buffers.push_back(std::move(b));
  }
  return out;
}

}  // namespace shardfit::partition
