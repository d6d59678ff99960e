#pragma once
// Devices as data, and how many of one a job runs on.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostic.h"
#include "base/units.h"
#include "spec/measured_spec.h"
#include "spec/node.h"
#include "spec/speed_spec.h"

namespace shardfit::spec {

/// A number of a device file with its origin.
template <class T>
struct Sourced {
  T value{};
  std::string source;
  std::string date;  // when the source was read or the measurement made; "" where unknown
  std::string note;
  Location where;
};

/// How sure the memory total of a device is.
enum class Confidence { measured, assumed, unknown };

struct Link {
  std::string type;                                 // "NVLink4 + NVSwitch"; "" where unknown
  std::optional<Sourced<BytesPerSecond>> per_gpu;   // one direction, all peers together
  std::optional<Sourced<BytesPerSecond>> per_pair;  // one direction, between two devices
  bool peer_access = true;  // false: what one device sends another passes through the host
};

/// Prices somebody printed, for orientation; a plan reckons with the person's own price file only.
struct PriceSeen {
  std::optional<double> low_usd_per_hour;
  std::optional<double> high_usd_per_hour;
  std::string source;
};

/// One kind of GPU. Numbers nobody has sourced are absent, never guessed.
struct DeviceSpec {
  std::string name;                                      // the short name: "h200"
  std::string gpu;                                       // the part: "H200-SXM-141GB"
  std::vector<std::string> aliases;                      // other spellings
  std::string compute_capability;                        // "9.0", "gfx942"
  std::optional<Sourced<std::int64_t>> multiprocessors;  // kernels size their scratch space by it
  Confidence confidence = Confidence::unknown;

  std::optional<Sourced<Bytes>> marketed;  // as the part is called, powers of ten
  std::optional<Sourced<Bytes>> total;     // as the driver's tool prints it
  std::optional<Sourced<Bytes>>
      usable;                      // as the runtime reports the total: what a program can have
  std::vector<Bytes> usable_seen;  // single sightings of `usable`, by driver
  std::optional<Sourced<BytesPerSecond>> bandwidth;
  std::map<std::string, Sourced<FlopsPerSecond>> peak_rates;  // by dtype: "bf16", dense
  std::optional<Sourced<double>> achieved_matmul_share_bf16;  // of the peak, large products
  Link link;
  std::optional<SpeedSpec> speed;  // what explains measured operators; absent: built-in shares
  std::optional<MeasuredSpec> measured;  // by calibrate, on one machine
  std::string host_link;                 // "PCIe 5"
  std::optional<std::int64_t> power_watts;
  std::string least_runtime;  // "CUDA 12.8"
  std::string least_pytorch;  // "2.7 (cu128)"
  std::optional<PriceSeen> price_seen;
  std::string caveats;

  Location where;  // the file
};

/// One device file as a device; faults go to `faults`.
DeviceSpec read_device(const Node& root, Diagnostics& faults);

/// The devices of model_specs/devices and those a person adds. Files are read when they are asked
/// for.
class DeviceCatalog {
 public:
  /// `folder` holds one *.yaml a device.
  explicit DeviceCatalog(std::string folder);

  /// Reads a device file that adds a device, or replaces the one of the same name.
  void add_profile(const std::string& path, Diagnostics& faults);

  /// The device with this name or alias (case and the difference of '-', '_' and ' ' aside), or
  /// null.
  const DeviceSpec* find(const std::string& name, Diagnostics& faults);

  /// Every device, by name.
  std::vector<const DeviceSpec*> all(Diagnostics& faults);

  /// Short names, sorted, for suggestions; from file names, without reading them.
  std::vector<std::string> names() const;

 private:
  const DeviceSpec* load(const std::string& name, Diagnostics& faults);
  void inherit_speed(DeviceSpec& spec, Diagnostics& faults);

  std::string folder_;
  std::map<std::string, std::string> files_;  // name -> path
  std::map<std::string, DeviceSpec> loaded_;  // by name
};

/// `count` GPUs of one kind in one machine.
struct ClusterSpec {
  DeviceSpec device;
  std::int64_t count = 1;
  std::string text;  // as written: "2xb200"
  Location where;
};

/// Most GPUs of one job.
inline constexpr std::int64_t most_gpus = 65'536;

/// "[COUNTx]DEVICE": "h200", "2xb200". Reports an unknown device with the nearest name.
std::optional<ClusterSpec> read_on(const Node& node, DeviceCatalog& devices, Diagnostics& faults);

}  // namespace shardfit::spec
