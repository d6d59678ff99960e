#pragma once
// Findings as a device profile (model_specs/devices): read by `shardfit plan --device-profile`.

#include <optional>
#include <string>

#include "calibrate/reading.h"
#include "spec/cluster_spec.h"
#include "spec/node.h"

namespace shardfit::calibrate {

/// The device's own file with what was measured in place of what it said; for a device without a
/// file, one made of what was measured. `name` is the profile's device; date as "2026-11-30".
///
/// Replaced or added, where it was measured: multiprocessors, memory.usable, link.peer_access,
/// achieved_matmul_share_bf16, speed.memory_share and speed.kernel; added: measured (context,
/// launch, latency and bandwidth of copies and exchanges, shares of products by dtype and shape
/// class). Peaks stay the data sheet's: shares are of them. Throws std::logic_error for findings of
/// a stand-in: nothing there was measured.
spec::Node device_profile(const Findings& findings, const spec::Node* base, const std::string& name,
                          const std::string& date);

/// Throws InputError for what would keep a profile from being written: a path, or a device of no
/// name. To be asked before a card is measured for it.
void check_profile(const std::string& path, const std::string& name, const Machine& machine,
                   int device);

/// A tree as YAML, maps and lists in blocks; reading it gives the same tree.
std::string yaml_text(const spec::Node& node);

/// The file of the catalogue for a device of this name and capability, or "".
std::string catalogue_name(const DeviceFacts& facts);
/// Its file, "" where it has none.
std::string catalogue_file(const DeviceFacts& facts);

}  // namespace shardfit::calibrate
