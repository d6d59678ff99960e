#pragma once
// The rows of tests/data/solver/anchors.tsv: instance, optimum as printed, the peer's CPU seconds.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace shardfit::test {

struct Anchor {
  std::string set, instance, devices, cap, unit, optimum, kind, noncontiguous, peer, peer_cpu;
  int digits = 0;
};

inline std::vector<Anchor> read_anchors(const std::string& folder) {
  std::vector<Anchor> out;
  std::ifstream in(folder + "/anchors.tsv");
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::vector<std::string> f;
    std::stringstream fields(line);
    for (std::string field; std::getline(fields, field, '\t');) f.push_back(field);
    f.resize(13);
    out.push_back(
        {f[0], f[1], f[2], f[3], f[4], f[5], f[7], f[8], f[10], f[11], std::atoi(f[6].c_str())});
  }
  return out;
}

/// The instance's file under the data folder.
inline std::string file_of(const Anchor& a) {
  std::string name = a.instance;
  std::string folder = "layer/";
  if (std::size_t bracket = name.find('('); bracket != std::string::npos) {
    if (name.substr(bracket) == "(op)") folder = "operator/";
    name.resize(bracket);
  }
  if (a.set == "dnn-partitioning") return a.set + "/" + folder + name + ".json";
  if (a.set == "pipedream") return a.set + "/" + name + ".graph.txt";
  if (a.set == "piper") return a.set + "/" + name + ".json";
  return a.set + "/" + name + ".1048576.csv";
}

/// A number with that many significant digits, zeros kept.
inline std::string digits_of(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%#.*g", digits, value);
  std::string out = text;
  if (!out.empty() && out.back() == '.') out.pop_back();
  return out;
}

}  // namespace shardfit::test
