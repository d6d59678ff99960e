#pragma once
// The GPUs of an option as the time clock sees them: one kind of device, its link, its host.

#include <string>

#include "run/collective_time.h"
#include "run/operator_time.h"
#include "spec/cluster_spec.h"

namespace shardfit::run {

/// What the host's thread needs. Planning values: PyTorch in eager mode queues an operator in 4 to
/// 10 us on a server's core (docs/time.md); small models are bound by it.
struct HostRates {
  double operator_seconds = 5.5e-6;   // to run and queue one operator
  double launch_seconds = 2.5e-6;     // for every further kernel of the same operator
  double collective_seconds = 25e-6;  // to queue an exchange
};

struct Machine {
  std::string name;
  DeviceRates device;
  spec::SpeedSpec speed;
  int capability_major = 9;
  LinkRates link;
  HostRates host;
  /// Operators that run beside an exchange take this much longer: its kernels hold some
  /// multiprocessors and some bandwidth (docs/time.md).
  double contention = 0.08;
  double interval = 0.3;  // half width of a predicted step, relative
  /// Why a step cannot be timed: a number nobody has sourced. Empty: it can.
  std::string missing;
};

/// What calibrate measured on the device (its file's `measured`) takes the place of what was fitted
/// or assumed: launches, the time of matrix products of each dtype by a factor, exchanges between
/// as many ranks as the cluster has devices.
Machine machine_of(const spec::ClusterSpec& cluster);

/// The factors and rates that machine_of() took from measurements, in words; "" where none.
std::string measured_words(const spec::ClusterSpec& cluster);

}  // namespace shardfit::run
