// shardfit-stand-in [COUNTx]DEVICE [no-peer] COMMAND...: runs a CUDA program on the stand-in
// runtime as if on devices of model_specs/devices. No number it gives is a measurement.
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "base/diagnostic.h"
#include "base/format.h"
#include "search/tables.h"
#include "spec/cluster_spec.h"
#include "spec/data_directory.h"

namespace {

using namespace shardfit;

std::string description(const std::string& on, bool peer) {
  spec::DeviceCatalog devices(spec::data_directory() + "/devices");
  Diagnostics faults;
  const auto cluster = spec::read_on(spec::word(on, whole_file("DEVICE")), devices, faults);
  faults.throw_if_any();
  const spec::DeviceSpec& d = cluster->device;
  if (!d.usable) throw InputError(whole_file("DEVICE"), on + " has no usable bytes");
  std::string text = "name=stand-in for " + d.gpu + ";capability=" + d.compute_capability +
                     ";count=" + std::to_string(cluster->count) + ";peer=" + (peer ? "1" : "0") +
                     ";usable=" + std::to_string(d.usable->value.count()) +
                     ";context=" + std::to_string(search::context_of(d.compute_capability).bytes());
  // As a plan reckons with it (model_specs/runtime.yaml, with sources).
  text += ";communicator=" + std::to_string(search::exchange_of(cluster->count).bytes());
  const auto add = [&](const char* key, double value) {
    text += std::string(";") + key + "=" + format_exact(value);
  };
  if (d.multiprocessors) add("multiprocessors", static_cast<double>(d.multiprocessors->value));
  if (d.bandwidth) add("bandwidth", d.bandwidth->value.value());
  if (d.peak_rates.count("bf16")) add("flops", d.peak_rates.at("bf16").value.value());
  if (d.link.per_pair) add("link", d.link.per_pair->value.value());
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: shardfit-stand-in [COUNTx]DEVICE [no-peer] COMMAND...\n";
    return 2;
  }
  const bool peer = std::string(argv[2]) != "no-peer";
  char** command = argv + (peer ? 2 : 3);
  try {
    setenv("SHARDFIT_STAND_IN", description(argv[1], peer).c_str(), 1);
  } catch (const InputError& error) {
    std::cerr << error.what();
    return 2;
  }
  setenv("LD_PRELOAD", SHARDFIT_STAND_IN_LIBRARY, 1);
  if (*command) execvp(*command, command);
  std::cerr << "shardfit-stand-in: the command cannot be run\n";
  return 2;
}
