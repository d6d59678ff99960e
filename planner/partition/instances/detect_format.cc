#include "partition/instances/instances.h"

namespace shardfit::partition {

std::optional<InstanceFormat> detect_format(const SourcePtr& source) {
  const std::string& text = source->text;
  std::size_t at = text.find_first_not_of(" \t\r\n");
  if (at == std::string::npos) return std::nullopt;
  if (text[at] == '{' || text[at] == '[') {
    auto holds = [&](const char* key) { return text.find(key) != std::string::npos; };
    if (holds("\"maxSizePerFPGA\"") || holds("\"maxFPGAs\"")) return InstanceFormat::placement;
    if (holds("\"TMPCs\"") || holds("\"maxMemoryPerDevice\"")) return InstanceFormat::piper;
    if (holds("\"fw_ms\"")) return InstanceFormat::chain;
    return std::nullopt;
  }
  if (text.compare(at, 8, "id,lower") == 0) return InstanceFormat::buffers;
  if (text.find(" -- ") != std::string::npos) return InstanceFormat::profile;
  return std::nullopt;
}

}  // namespace shardfit::partition
