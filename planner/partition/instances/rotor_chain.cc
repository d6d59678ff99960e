// Chains for rotor-class recomputation: name, length, fw_ms, bw_ms, out_bytes, saved_bytes.

#include "partition/instances/graph_checks.h"
#include "partition/instances/instances.h"

namespace shardfit::partition {

ChainInstance read_chain(const SourcePtr& source) {
  Diagnostics faults;
  const spec::Node tree = spec::read_text(source, faults);
  faults.throw_if_any();
  spec::MapView root(tree, "the chain", faults);
  ChainInstance out;
  out.name = root.require_string("name").value;
  const std::size_t length =
      static_cast<std::size_t>(root.require_integer("length", {1, 4096}).value);
  auto list = [&](const char* key) {
    std::vector<double> values;
    const spec::Node* node = root.require_list(key);
    if (!node) return values;
    for (const spec::Node& item : node->children) {
      const std::string what = "entry " + std::to_string(values.size()) + " of " + quoted(key);
      values.push_back(spec::as_real(item, what, amount_range, faults).value_or(0));
    }
    if (values.size() != length)
      faults.error(node->where, quoted(key) + " has " + std::to_string(values.size()) +
                                    " entries, expected " + std::to_string(length) +
                                    " as 'length' says");
    return values;
  };
  out.forward_ms = list("fw_ms");
  out.backward_ms = list("bw_ms");
  out.out_bytes = list("out_bytes");
  out.saved_bytes = list("saved_bytes");
  root.finish();
  faults.throw_if_any();
  return out;
}

}  // namespace shardfit::partition
