// Fits what explains a device's speed (spec/speed_spec.h) to tables of measured operators and
// prints it as the 'speed' of a device file, with the errors on rows that were fitted and on rows
// that were kept apart (every fifth shape).
//
//   fit_speed FOLDER DEVICE [TABLE...]     FOLDER holds gemm/, attention_forward/, collectives/

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "run/collective_time.h"
#include "run/machine.h"
#include "run/operator_time.h"
#include "spec/reader.h"

namespace {

using namespace shardfit;

/// A number that is fitted, within bounds.
struct Parameter {
  std::string name;
  double* place;
  double low, high;
};

/// Positive numbers by their logarithm, kept inside their bounds.
void set(const std::vector<Parameter>& parameters, const Eigen::VectorXd& x) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    *p.place = std::clamp(std::exp(x[static_cast<Eigen::Index>(i)]), p.low, p.high);
  }
}

/// log(predicted / measured) of every row.
using Residuals = std::function<void(Eigen::VectorXd& out)>;

/// Levenberg-Marquardt on the sum of absolute residuals, by weights that are renewed each time.
/// Gives the mean absolute residual, each counted up to 1.
double fit(const std::vector<Parameter>& parameters, Eigen::Index rows, const Residuals& residuals,
           int rounds) {
  const auto n = static_cast<Eigen::Index>(parameters.size());
  Eigen::VectorXd x(n), r(rows), shifted(rows);
  for (Eigen::Index i = 0; i < n; ++i) {
    const Parameter& p = parameters[static_cast<std::size_t>(i)];
    x[i] = std::log(std::clamp(*p.place, p.low, p.high));
  }
  const auto loss = [](const Eigen::VectorXd& v) {
    return v.array().abs().min(1.0).sum() / static_cast<double>(v.size());
  };
  double damping = 1e-2;
  set(parameters, x);
  residuals(r);
  double best = loss(r);
  Eigen::MatrixXd jacobian(rows, n);
  for (int round = 0; round < rounds; ++round) {
    for (Eigen::Index i = 0; i < n; ++i) {
      Eigen::VectorXd moved = x;
      const Parameter& p = parameters[static_cast<std::size_t>(i)];
      const double step = x[i] + 0.02 > std::log(p.high) ? -0.02 : 0.02;
      moved[i] += step;
      set(parameters, moved);
      residuals(shifted);
      jacobian.col(i) = (shifted - r) / step;
    }
    const Eigen::VectorXd weights = r.array().abs().max(0.03).inverse();
    const Eigen::MatrixXd weighted = weights.asDiagonal() * jacobian;
    const Eigen::MatrixXd normal = jacobian.transpose() * weighted;
    const Eigen::VectorXd gradient = weighted.transpose() * r;
    bool better = false;
    for (int attempt = 0; attempt < 6 && !better; ++attempt) {
      Eigen::MatrixXd damped = normal;
      damped.diagonal() += damping * (normal.diagonal().array() + 1e-6).matrix();
      const Eigen::VectorXd step = damped.ldlt().solve(gradient);
      Eigen::VectorXd next = x - step.cwiseMax(-0.5).cwiseMin(0.5);
      for (Eigen::Index i = 0; i < n; ++i) {
        const Parameter& p = parameters[static_cast<std::size_t>(i)];
        next[i] = std::clamp(next[i], std::log(p.low), std::log(p.high));
      }
      set(parameters, next);
      residuals(shifted);
      const double reached = loss(shifted);
      if (reached < best) {
        better = true;
        const bool done = best - reached < 1e-5;
        best = reached;
        x = next;
        r = shifted;
        damping = std::max(damping / 4, 1e-6);
        if (done) {
          set(parameters, x);
          return best;
        }
      } else {
        damping *= 5;
      }
    }
    if (!better) break;
  }
  set(parameters, x);
  return best;
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xbf58476d1ce4e5b9ULL;
  return hash ^ (hash >> 31);
}

/// One line of a table: its numbers by column.
struct Row {
  std::vector<std::string> words;
  double number(std::size_t i) const { return std::strtod(words[i].c_str(), nullptr); }
  double seconds() const { return 1e-6 * number(words.size() - 1); }
  /// Of everything but the time: one for repeated runs of a shape.
  std::uint64_t hash() const {
    std::uint64_t h = 7;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      for (const char c : words[i]) h = mixed(h, static_cast<std::uint64_t>(c));
      h = mixed(h, 0);
    }
    return h;
  }
  bool held_out() const { return hash() % 5 == 0; }
};

std::vector<Row> read_table(const std::string& path) {
  std::vector<Row> rows;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    Row row;
    std::istringstream words(line);
    std::string word;
    while (std::getline(words, word, ',')) row.words.push_back(word);
    if (row.words.size() > 3) rows.push_back(std::move(row));
  }
  return rows;
}

/// At most so many of the rows that are not held out, chosen by their hash.
std::vector<const Row*> sample(const std::vector<Row>& rows, std::size_t most) {
  std::vector<const Row*> out;
  for (const Row& row : rows) {
    if (!row.held_out()) out.push_back(&row);
  }
  if (out.size() <= most) return out;
  std::sort(out.begin(), out.end(),
            [](const Row* a, const Row* b) { return a->hash() / 5 < b->hash() / 5; });
  out.resize(most);
  return out;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto i = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  return values[i];
}

/// Median and 90 % of |predicted / measured - 1|, on rows fitted and kept apart, by class.
void judge(const std::string& title, const std::vector<Row>& rows,
           const std::function<double(const Row&)>& predict,
           const std::function<std::string(const Row&)>& class_of) {
  struct Errors {
    std::vector<double> absolute, bias;
  };
  std::map<std::string, Errors> errors;
  for (const Row& row : rows) {
    const double error = predict(row) / row.seconds() - 1;
    for (const std::string& name :
         {std::string(row.held_out() ? "1 held out" : "0 fitted"), "2 " + class_of(row)}) {
      errors[name].absolute.push_back(std::fabs(error));
      errors[name].bias.push_back(error);
    }
  }
  for (const auto& [name, e] : errors) {
    std::printf("# %-34s %-26s %6zu rows  median %5.1f %%  p90 %5.1f %%  bias %+5.1f %%\n",
                title.c_str(), name.c_str() + 2, e.absolute.size(), 100 * quantile(e.absolute, 0.5),
                100 * quantile(e.absolute, 0.9), 100 * quantile(e.bias, 0.5));
  }
}

struct Device {
  run::DeviceRates rates;
  run::LinkRates link;
};

// ---- matrix products

run::ProductShape shape_of(const Row& row) {
  const double bytes = row.words[0] == "bfloat16" ? 2 : (row.words[0] == "fp8" ? 1 : 0.5);
  return {row.number(1), row.number(2), row.number(3), 1, bytes, 2};
}

std::string product_class(const run::ProductShape& s, double seconds) {
  if (seconds < 10e-6) return "below 10 us";
  const double per_byte = s.m * s.n * s.k * 2 /
                          (s.element_bytes * (s.m * s.k + s.n * s.k) + s.output_bytes * s.m * s.n);
  const std::string length = seconds < 100e-6 ? "10 to 100 us" : "over 100 us";
  return length + (per_byte > 150 ? ", many flops" : ", few flops");
}

std::vector<Parameter> parameters_of(spec::ProductSpeed& s, bool converts) {
  std::vector<Parameter> list = {
      {"launch", &s.launch_seconds, 5e-7, 1e-5},
      {"peak_share", &s.peak_share, 0.2, 1.1},
      {"tile", &s.tile_seconds, 1e-7, 1e-5},
      {"wave_loss", &s.wave_loss, 0.02, 1},
      {"sustained_share", &s.sustained_share, 0.5, 1},
      {"power", &s.power_seconds, 3e-5, 5e-4},
      {"memory_share", &s.memory_share, 0.4, 1.1},
      {"cache_ratio", &s.cache_ratio, 1, 20},
      {"cache_bytes", &s.cache_bytes, 1e5, 4e8},
      {"split", &s.split_seconds, 1e-7, 1e-5},
      {"sharpness", &s.sharpness, 1, 12},
  };
  for (std::size_t i = 1; i < s.tile_shares.size(); ++i) {
    const spec::Tile tile = spec::product_tiles[i];
    list.push_back({std::to_string(tile.rows) + "x" + std::to_string(tile.columns),
                    &s.tile_shares[i], 0.02, 1.2});
  }
  if (converts) {
    list.push_back({"prepared_bytes", &s.prepared_bytes, 0.1, 30});
    list.push_back({"prepared_row", &s.prepared_row_seconds, 1e-11, 1e-7});
  }
  return list;
}

double peak_of(const Device& device, const std::string& dtype) {
  if (dtype == "fp8") return device.rates.fp8;
  if (dtype == "nvfp4") return device.rates.fp4;
  return device.rates.bf16;
}

void print_products(const std::string& name, const spec::ProductSpeed& s) {
  std::printf("    %s:\n", name.c_str());
  std::printf("      {launch: %.3g us, peak_share: %.4f, tile: %.3g us, wave_loss: %.3f,\n",
              1e6 * s.launch_seconds, s.peak_share, 1e6 * s.tile_seconds, s.wave_loss);
  std::printf("       sustained_share: %.4f, power: %.4g us, memory_share: %.4f,\n",
              s.sustained_share, 1e6 * s.power_seconds, s.memory_share);
  std::printf("       cache_ratio: %.3f, cache: %.4g MB, split: %.3g us, sharpness: %.3f,\n",
              s.cache_ratio, 1e-6 * s.cache_bytes, 1e6 * s.split_seconds, s.sharpness);
  if (s.prepared_bytes > 0) {
    std::printf("       prepared_bytes: %.3g, prepared_row: %.4g us,\n", s.prepared_bytes,
                1e6 * s.prepared_row_seconds);
  }
  std::printf("       tile_shares: [");
  for (std::size_t i = 0; i < s.tile_shares.size(); ++i) {
    std::printf("%s%.3f", i > 0 ? ", " : "", s.tile_shares[i]);
  }
  std::printf("]}\n");
}

void fit_products(const Device& device, const std::vector<Row>& all) {
  std::printf("  products:\n");
  for (const char* dtype : {"bfloat16", "fp8", "nvfp4"}) {
    std::vector<Row> rows;
    for (const Row& row : all) {
      if (row.words[0] == dtype) rows.push_back(row);
    }
    const double peak = peak_of(device, dtype);
    if (rows.empty() || peak <= 0) continue;
    spec::ProductSpeed speed;
    if (std::string(dtype) != "bfloat16") {
      speed.prepared_bytes = 3;
      speed.prepared_row_seconds = 3e-9;
    }
    const auto predict = [&](const Row& row) {
      return run::product_seconds(speed, device.rates, peak, shape_of(row));
    };
    const auto fit_on = [&](std::size_t most, int rounds) {
      const std::vector<const Row*> some = sample(rows, most);
      return fit(
          parameters_of(speed, speed.prepared_bytes > 0), static_cast<Eigen::Index>(some.size()),
          [&](Eigen::VectorXd& out) {
            for (std::size_t i = 0; i < some.size(); ++i) {
              out[static_cast<Eigen::Index>(i)] = std::log(predict(*some[i]) / some[i]->seconds());
            }
          },
          rounds);
    };
    // The cache's edge makes valleys of its own: each start finds one.
    const spec::ProductSpeed start = speed;
    spec::ProductSpeed best;
    double least = 1e30;
    for (const double cache : {2e5, 5e6, 2e7, 8e7}) {
      speed = start;
      speed.cache_bytes = cache;
      const double reached = fit_on(1500, 30);
      if (reached >= least) continue;
      least = reached;
      best = speed;
    }
    speed = best;
    fit_on(6000, 20);
    print_products(std::string(dtype) == "bfloat16" ? "bf16" : dtype, speed);
    judge("products " + std::string(dtype), rows, predict,
          [](const Row& row) { return product_class(shape_of(row), row.seconds()); });
  }
}

// ---- attention

run::AttentionShape attention_of(const Row& row) {
  run::AttentionShape s;
  s.batch = row.number(1);
  s.queries = s.keys = row.number(2);
  s.heads = row.number(3);
  s.kv_heads = row.number(4);
  s.width = row.number(5);
  s.paged = true;
  return s;
}

void fit_attention(const Device& device, const std::vector<Row>& all) {
  const std::map<std::string, std::string> names = {
      {"vllm_flash_attn", "flash2"},
      {"vllm_flash_attn_fa2", "flash2"},
      {"vllm_flash_attn_fa3", "flash3"},
      {"vllm_flash_attn_fa4", "flash4"},
      {"vllm_flashinfer_trtllmprefill", "trtllm"},
      {"vllm_flashinfer_trtllmdecode", "trtllm_decode"}};
  std::printf("  attention:\n");
  for (const auto& [kernel, name] : names) {
    std::vector<Row> rows;
    for (const Row& row : all) {
      if (row.words[0] == kernel) rows.push_back(row);
    }
    if (rows.empty()) continue;
    spec::AttentionSpeed s;
    const std::vector<Parameter> parameters = {
        {"launch", &s.launch_seconds, 1e-6, 3e-5},
        {"peak_share", &s.peak_share, 0.1, 1.1},
        {"exponentials", &s.exponentials, 1e11, 1e14},
        {"overlap", &s.overlap, 0.01, 1},
        {"tile", &s.tile_seconds, 1e-7, 2e-5},
        {"wave_loss", &s.wave_loss, 0.02, 1},
        {"memory_share", &s.memory_share, 0.1, 1.1},
        {"paged_share", &s.paged_share, 0.02, 5},
        {"sharpness", &s.sharpness, 1, 12},
        {"sustained_share", &s.sustained_share, 0.5, 1},
        {"power", &s.power_seconds, 1e-5, 1e-3},
    };
    const auto predict = [&](const Row& row) {
      return run::attention_seconds(s, device.rates, attention_of(row));
    };
    const std::vector<const Row*> some = sample(rows, 6000);
    const auto residuals = [&](Eigen::VectorXd& out) {
      for (std::size_t i = 0; i < some.size(); ++i) {
        out[static_cast<Eigen::Index>(i)] = std::log(predict(*some[i]) / some[i]->seconds());
      }
    };
    const auto size = static_cast<Eigen::Index>(some.size());
    spec::AttentionSpeed best;
    double least = 1e30;
    for (const int rows_of_tile : {64, 128, 256}) {
      for (const bool packs : {false, true}) {
        s = {};
        s.tile_rows = rows_of_tile;
        s.packs = packs;
        const double reached = fit(parameters, size, residuals, 40);
        if (reached >= least) continue;
        least = reached;
        best = s;
      }
    }
    s = best;
    std::printf("    %s:\n", name.c_str());
    std::printf("      {launch: %.3g us, peak_share: %.4f, exponentials: %.4g, overlap: %.3f,\n",
                1e6 * s.launch_seconds, s.peak_share, s.exponentials, s.overlap);
    std::printf("       tile_rows: %d, packs: %s,\n", static_cast<int>(s.tile_rows),
                s.packs ? "true" : "false");
    std::printf("       tile: %.3g us, wave_loss: %.3f, memory_share: %.4f, paged_share: %.4f,\n",
                1e6 * s.tile_seconds, s.wave_loss, s.memory_share, s.paged_share);
    std::printf("       sharpness: %.3f, sustained_share: %.4f, power: %.4g us}\n", s.sharpness,
                s.sustained_share, 1e6 * s.power_seconds);
    judge("attention " + name, rows, predict, [](const Row& row) {
      const double flops =
          row.number(1) * row.number(3) * row.number(2) * row.number(2) * row.number(5) * 2;
      const std::string width = ", heads of " + row.words[5];
      if (row.seconds() < 20e-6) return std::string("below 20 us");
      return (flops > 1e10 ? "1e10 flops and more" : "fewer flops") + width;
    });
  }
}

// ---- exchanges

CollectiveKind kind_of(const std::string& name) {
  if (name == "all_reduce") return CollectiveKind::all_reduce;
  if (name == "all_gather") return CollectiveKind::all_gather;
  if (name == "reduce_scatter") return CollectiveKind::reduce_scatter;
  return CollectiveKind::all_to_all;
}

void fit_collectives(const Device& device, const std::vector<Row>& all) {
  std::printf("  collectives:\n");
  for (const char* name : {"all_reduce", "all_gather", "reduce_scatter", "alltoall"}) {
    std::vector<Row> rows;
    for (const Row& row : all) {
      if (row.words[0] == name) rows.push_back(row);
    }
    if (rows.empty()) continue;
    spec::CollectiveSpeed s;
    const bool bus = device.link.bytes_per_second < 1e11;  // PCIe: no switch of its own
    std::vector<Parameter> parameters = {{"few_ranks", &s.few_ranks, 1e-3, 3}};
    if (bus) {
      s.crowding = 0.5;
      s.few_ranks = 0;
      parameters = {{"crowding", &s.crowding, 1e-3, 3}};
    }
    for (spec::Protocol& p : s.protocols) {
      parameters.push_back({"latency", &p.latency_seconds, 1e-6, 1e-4});
      parameters.push_back({"rank", &p.rank_seconds, 1e-8, 1e-4});
      parameters.push_back({"link_share", &p.link_share, 0.001, 1.2});
    }
    const CollectiveKind kind = kind_of(name);
    const auto predict = [&](const Row& row) {
      return run::collective_seconds(s, device.link, kind, row.number(3),
                                     static_cast<int>(row.number(2)));
    };
    const std::vector<const Row*> some = sample(rows, 6000);
    fit(
        parameters, static_cast<Eigen::Index>(some.size()),
        [&](Eigen::VectorXd& out) {
          for (std::size_t i = 0; i < some.size(); ++i) {
            out[static_cast<Eigen::Index>(i)] = std::log(predict(*some[i]) / some[i]->seconds());
          }
        },
        80);
    std::printf("    %s:\n      few_ranks: %.4f\n      crowding: %.3f\n      protocols:\n",
                std::string(name) == "alltoall" ? "all_to_all" : name, s.few_ranks, s.crowding);
    for (const spec::Protocol& p : s.protocols) {
      std::printf("        - {latency: %.4g us, rank: %.3g us, link_share: %.4f}\n",
                  1e6 * p.latency_seconds, 1e6 * p.rank_seconds, p.link_share);
    }
    judge("exchange " + std::string(name), rows, predict, [](const Row& row) {
      const std::string size = row.number(3) >= 16e6  ? "16 MB and more"
                               : row.number(3) >= 1e6 ? "1 to 16 MB"
                                                      : "below 1 MB";
      return size + ", " + row.words[2] + " ranks";
    });
  }
}

int run_fit(const std::string& folder, const std::string& table,
            const std::vector<std::string>& parts) {
  Diagnostics faults;
  spec::DeviceCatalog devices(SHARDFIT_SOURCE_DIR "/model_specs/devices");
  spec::ClusterSpec cluster;
  const spec::DeviceSpec* found = devices.find(table, faults);
  faults.throw_if_any();
  if (!found) {
    std::cerr << "no device file for " << table << "\n";
    return 2;
  }
  cluster.device = *found;
  const run::Machine machine = run::machine_of(cluster);
  const Device device{machine.device, machine.link};
  const auto wanted = [&](const char* part) {
    return parts.empty() || std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  std::printf("speed:  # %s\n", cluster.device.name.c_str());
  if (wanted("gemm")) fit_products(device, read_table(folder + "/gemm/" + table + ".csv"));
  if (wanted("attention_forward")) {
    fit_attention(device, read_table(folder + "/attention_forward/" + table + ".csv"));
  }
  if (wanted("collectives")) {
    fit_collectives(device, read_table(folder + "/collectives/" + table + ".csv"));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: fit_speed FOLDER DEVICE [TABLE...]\n";
    return 2;
  }
  try {
    return run_fit(argv[1], argv[2], {argv + 3, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
