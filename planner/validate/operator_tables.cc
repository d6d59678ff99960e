#include "validate/operator_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ostream>

#include "base/format.h"
#include "run/collective_time.h"
#include "run/operator_time.h"

namespace shardfit::validate {
namespace {

/// First lines of the three kinds of tables, and which columns hold numbers of the shape.
struct Form {
  OperatorKind kind;
  const char* head;
  std::size_t columns;
  std::vector<std::size_t> numbers;
};
const std::array<Form, 3>& forms() {
  static const std::array<Form, 3> all{
      {{OperatorKind::product, "dtype,m,n,k,microseconds", 5, {1, 2, 3}},
       {OperatorKind::attention,
        "kernel,batch,sequence,heads,kv_heads,head_dim,microseconds",
        7,
        {1, 2, 3, 4, 5}},
       {OperatorKind::exchange, "collective,dtype,gpus,bytes,nccl,microseconds", 6, {2, 3}}}};
  return all;
}

std::string first_line(std::ifstream& in) {
  std::string line;
  std::getline(in, line);
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
  return line;
}

const Form* form_of(const std::string& head) {
  for (const Form& form : forms()) {
    if (head == form.head) return &form;
  }
  return nullptr;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words(1);
  for (const char c : line) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != '\r') {
      words.back() += c;
    }
  }
  return words;
}

/// The name in a device file of what a table calls otherwise.
std::string profile_name(OperatorKind kind, const std::string& name) {
  static const std::vector<std::pair<std::string, std::string>> names{
      {"bfloat16", "bf16"},
      {"vllm_flash_attn", "flash2"},
      {"vllm_flash_attn_fa2", "flash2"},
      {"vllm_flash_attn_fa3", "flash3"},
      {"vllm_flash_attn_fa4", "flash4"},
      {"vllm_flashinfer_trtllmprefill", "trtllm"},
      {"vllm_flashinfer_trtllmdecode", "trtllm_decode"},
      {"alltoall", "all_to_all"}};
  (void)kind;
  for (const auto& [table, profile] : names) {
    if (name == table) return profile;
  }
  return name;
}

template <class T>
const T* entry(const std::map<std::string, T>& map, const std::string& name) {
  const auto found = map.find(name);
  return found == map.end() ? nullptr : &found->second;
}

/// Sizes apart: a table is dominated by its many small rows.
std::string set_name(OperatorKind kind, const OperatorRow& row) {
  if (kind == OperatorKind::exchange) {
    const double bytes = row.number[1];
    return row.name + (bytes >= 16e6 ? ", 16 MB and more" : (bytes >= 1e6 ? ", 1 to 16 MB" : ""));
  }
  const char* size =
      row.seconds < 10e-6 ? ", below 10 us" : (row.seconds < 100e-6 ? ", 10 to 100 us" : "");
  return row.name + (*size ? size : ", over 100 us");
}

double quantile(std::vector<float>& values, double q) {
  if (values.empty()) return 0;
  const auto i = std::lround(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + i, values.end());
  return static_cast<double>(values[static_cast<std::size_t>(i)]);
}

std::string line_of(const std::string& name, std::vector<float> errors) {
  const double bias = quantile(errors, 0.5);
  for (float& e : errors) e = std::fabs(e);
  const double median = quantile(errors, 0.5);
  const double most = quantile(errors, 0.9);
  char text[160];
  std::snprintf(text, sizeof text, "%-46.46s %6zu %6.1f%% %6.1f%% %+6.1f%%", name.c_str(),
                errors.size(), 100 * median, 100 * most, 100 * bias);
  return text;
}

}  // namespace

bool is_operator_table(const std::string& path) {
  std::ifstream in(path);
  return form_of(first_line(in)) != nullptr;
}

OperatorTable read_operator_table(const std::string& path) {
  namespace fs = std::filesystem;
  std::ifstream in(path);
  const Form* form = form_of(first_line(in));
  if (!form) throw InputError(whole_file(path), "not a table of measured operators");
  OperatorTable table;
  table.kind = form->kind;
  table.path = path;
  table.device = fs::path(path).stem().string();
  table.group = fs::path(path).parent_path().filename().string() + "/" + table.device;
  std::string line;
  for (std::size_t number = 2; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    const std::vector<std::string> words = words_of(line);
    OperatorRow row;
    bool good = words.size() == form->columns;
    const auto read = [&](std::size_t column, double& out) {
      const auto value = good ? parse_real(words[column]) : std::nullopt;
      good = good && value && *value > 0;
      if (good) out = *value;
    };
    for (std::size_t i = 0; i < form->numbers.size(); ++i) read(form->numbers[i], row.number[i]);
    read(form->columns - 1, row.seconds);
    if (!good) {
      throw InputError(whole_file(path), "line " + std::to_string(number) + " is not " +
                                             std::string(form->head) + " with positive numbers");
    }
    row.name = words[0];
    row.seconds *= 1e-6;
    row.line = number;
    table.rows.push_back(std::move(row));
  }
  return table;
}

OperatorPrediction::OperatorPrediction(const spec::ClusterSpec& cluster)
    : machine_(run::machine_of(cluster)) {}

double OperatorPrediction::seconds(OperatorKind kind, const OperatorRow& row,
                                   std::string& skipped) const {
  const std::string name = profile_name(kind, row.name);
  const double* n = row.number;
  if (kind == OperatorKind::product) {
    const spec::ProductSpeed* speed = entry(machine_.speed.products, name);
    const run::DeviceRates& rates = machine_.device;
    const double peak = name == "fp8" ? rates.fp8 : (name == "nvfp4" ? rates.fp4 : rates.bf16);
    if (speed && peak > 0) {
      const double bytes = name == "fp8" ? 1 : (name == "nvfp4" ? 0.5 : 2);
      return run::product_seconds(*speed, rates, peak, {n[0], n[1], n[2], 1, bytes, 2});
    }
  } else if (kind == OperatorKind::attention) {
    if (const spec::AttentionSpeed* speed = entry(machine_.speed.attention, name)) {
      return run::attention_seconds(*speed, machine_.device,
                                    {n[0], n[2], n[3], n[1], n[1], n[4], true, true});
    }
  } else if (const spec::CollectiveSpeed* speed = entry(machine_.speed.collectives, name)) {
    CollectiveKind of = CollectiveKind::all_to_all;
    for (const CollectiveKind one :
         {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter}) {
      if (name == collective_name(one)) of = one;
    }
    return run::collective_seconds(*speed, machine_.link, of, n[1], static_cast<int>(n[0]));
  }
  skipped = "no speed of " + row.name + " in the profile of " + machine_.name;
  return 0;
}

OperatorErrors compare_operators(const OperatorTable& table, spec::DeviceCatalog& devices,
                                 std::ostream* json) {
  Diagnostics faults;
  const spec::DeviceSpec* device = devices.find(table.device, faults);
  faults.throw_if_any();
  if (!device) throw InputError(whole_file(table.path), "no device is called " + table.device);
  spec::ClusterSpec cluster;
  cluster.device = *device;
  const OperatorPrediction prediction(cluster);
  OperatorErrors out;
  out.group = table.group;
  for (const OperatorRow& row : table.rows) {
    std::string skipped;
    const double predicted = prediction.seconds(table.kind, row, skipped);
    const double error = predicted / row.seconds - 1;
    const std::string id = table.group + ":" + std::to_string(row.line);
    if (!skipped.empty()) {
      ++out.skipped;
      if (json) {
        *json << "{\"id\": \"" << id << "\", \"group\": \"" << table.group << "\", \"skipped\": \""
              << skipped << "\"}\n";
      }
      continue;
    }
    const std::string name = set_name(table.kind, row);
    auto set = std::find_if(out.sets.begin(), out.sets.end(),
                            [&](const OperatorErrors::Set& s) { return s.name == name; });
    if (set == out.sets.end()) set = out.sets.insert(out.sets.end(), {name, {}});
    set->errors.push_back(static_cast<float>(error));
    if (!json) continue;
    char numbers[160];
    std::snprintf(numbers, sizeof numbers,
                  "\"measured\": %.9g, \"predicted\": %.9g, \"relative_error\": %.9g}\n",
                  row.seconds, predicted, error);
    *json << "{\"id\": \"" << id << "\", \"group\": \"" << table.group
          << "\", \"counter\": \"operator_seconds\", \"phase\": \"\", " << numbers;
  }
  std::sort(out.sets.begin(), out.sets.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

void print_operators(const std::vector<OperatorErrors>& errors, std::ostream& out) {
  if (errors.empty()) return;
  char head[160];
  std::snprintf(head, sizeof head, "%-46s %6s %7s %7s %7s\n", "operator_seconds", "rows", "median",
                "90%", "bias");
  out << "\n" << head;
  for (const OperatorErrors& table : errors) {
    std::vector<float> all;
    for (const auto& set : table.sets) {
      all.insert(all.end(), set.errors.begin(), set.errors.end());
    }
    out << line_of(table.group, all) << "\n";
    for (const auto& set : table.sets) out << line_of("  " + set.name, set.errors) << "\n";
    if (table.skipped > 0) {
      out << "  " << table.skipped << " rows skipped (a skipped row counts as missed)\n";
    }
  }
}

}  // namespace shardfit::validate
