#include "search/batch.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/format.h"
#include "search/largest.h"
#include "search/long_steps.h"
#include "search/sharing.h"

namespace shardfit::search {
namespace {

constexpr std::int64_t most_tokens = 1 << 24;
constexpr std::size_t most_columns = 5;
/// Batches of an evaluation whose logits are kept, at most.
constexpr std::int64_t most_metric_batches = 32;
/// The same where each of them takes long to run.
constexpr std::int64_t few_metric_batches = 2;

/// What is ruled out by a bound is more than the budget by so much: other kernels of another
/// length change less.
constexpr double beyond_budget = 1.1;
/// So many take half a second and more.
constexpr double slow_instructions = 1'000'000;

/// One GPU of those that need the same at the job's own batch, since they hold equal shares; the
/// fullest first.
std::vector<const Gpu*> different_gpus(const Option& option) {
  std::vector<const Gpu*> all{&option.worst_gpu()};
  for (const Gpu& gpu : option.gpus) {
    const bool known = std::any_of(all.begin(), all.end(), [&](const Gpu* other) {
      const Judgement &a = gpu.judgement, &b = other->judgement;
      return a.budget == b.budget && a.needed == b.needed &&
             a.unlimited.allocated_peak == b.unlimited.allocated_peak &&
             a.unlimited.reserved_peak == b.unlimited.reserved_peak &&
             gpu.program->instructions.size() == other->program->instructions.size();
    });
    if (!known) all.push_back(&gpu);
  }
  return all;
}

/// The jobs of one option.
class Search {
 public:
  Search(const Option& option, const StopCheck* stop) : option_(option), stop_(stop) {
    gpus_ = different_gpus(option);
    const spec::JobSpec& job = option.spec->job;
    if (!job.global_batch) return;
    const spec::Batch& batch = option.job.batch;
    const std::int64_t of_a_rank = batch.micro * batch.accumulation;
    for (std::int64_t n = 1; n * n <= of_a_rank; ++n) {
      if (of_a_rank % n != 0) continue;
      divisors_.push_back(n);
      if (n != of_a_rank / n) divisors_.push_back(of_a_rank / n);
    }
    std::sort(divisors_.begin(), divisors_.end());
  }

  /// Micro-batches in question, ascending; every number where no global batch has to be kept.
  std::size_t count() const {
    return divisors_.empty() ? static_cast<std::size_t>(most_samples) : divisors_.size();
  }
  std::int64_t micro(std::size_t i) const {
    return divisors_.empty() ? static_cast<std::int64_t>(i) + 1 : divisors_[i];
  }
  const std::vector<std::int64_t>& divisors() const { return divisors_; }

  /// `change`, where given, alters the job before it is lowered.
  BatchCell judge_job(std::int64_t micro_batch, std::int64_t sequence,
                      const std::function<void(program::TrainingJob&)>& change = {}) const {
    program::TrainingJob whole = option_.whole;
    whole.stop = stop_;
    whole.sequence = sequence;
    whole.micro_batch = micro_batch;
    whole.equal_passes = program::EqualPasses::leave;
    whole.accumulation =
        divisors_.empty() ? option_.job.job.accumulation : divisors_.back() / micro_batch;
    whole = few_of(std::move(whole));
    if (change) change(whole);
    BatchCell cell{micro_batch, sequence, Verdict::does_not_fit, "", "", {}};
    const bool own = !change && divisors_.empty();
    const double least = own && is_slow(sequence) ? bytes_at_least(micro_batch, sequence) : 0;
    if (least > beyond_budget * budget()) {
      cell.reason = "it needs " + format_bytes(Bytes(static_cast<std::int64_t>(least))) +
                    " at least, by what fewer tokens need, and was not run";
      return cell;
    }
    try {
      Known known{micro_batch, sequence, 0, 0};
      const Judgement judgement = judge_fullest(whole, known);
      cell.verdict = judgement.verdict;
      cell.reason = judgement.reason;
      cell.phase = phase_of(judgement);
      if (!judgement.beyond_count) cell.headroom = judgement.headroom();
      if (own) known_.push_back(known);
    } catch (const OverflowError&) {
      cell.reason = "more than 8 EiB";
    }
    return cell;
  }

  /// Whether a program loops over its tokens and is long because of that.
  bool is_slow(std::int64_t sequence) const {
    bool grows = false;
    double most = 0;
    for (const Known& known : known_) {
      for (const Known& other : known_) {
        const bool longer = other.sequence >= 2 * known.sequence;
        grows = grows || (longer && other.instructions > 1.5 * known.instructions);
      }
      most = std::max(most, known.instructions * static_cast<double>(sequence) /
                                static_cast<double>(known.sequence));
    }
    return grows && most > slow_instructions;
  }
  /// The tokens that likely fit at most, by the longest that are known to; 0 where nothing is.
  double tokens_that_may_fit() const {
    const double none = least_known();
    double tokens = 0, bytes = 0;
    for (const Known& known : known_) {
      if (known.bytes <= bytes || known.bytes > budget() || known.bytes <= none) continue;
      bytes = known.bytes;
      tokens = static_cast<double>(known.micro_batch * known.sequence) * (budget() - none) /
               (bytes - none);
    }
    return tokens;
  }

 private:
  struct Known {
    std::int64_t micro_batch, sequence;
    double bytes, instructions;  // the most of any GPU
  };

  /// Of the GPU that decides: which one that is may change with the batch. Those after the first
  /// that does not fit are left out.
  Judgement judge_fullest(const program::TrainingJob& whole, Known& most) const {
    std::optional<Judgement> worst;
    for (const Gpu* gpu : gpus_) {
      const Program program = option_.lowering->lower(
          job_of_rank(whole, option_.parallel, option_.spec->cluster.count, gpu->rank));
      Judgement judgement =
          judge(program, gpu->card, option_.job.allocator, option_.accuracy, Find::all, stop_);
      most.bytes = std::max(most.bytes, static_cast<double>(judgement.unlimited.allocated_peak));
      most.instructions =
          std::max(most.instructions, static_cast<double>(program.instructions.size()));
      if (!worst || decides_over(judgement, *worst)) worst = std::move(judgement);
      if (worst->verdict == Verdict::does_not_fit) break;
    }
    return *std::move(worst);
  }

  double budget() const { return static_cast<double>(option_.worst_gpu().judgement.budget); }
  static std::string phase_of(const Judgement& judgement) {
    if (judgement.limited.failure) return judgement.limited.failure->phase;
    const auto& phases = judgement.unlimited.phases;
    const auto most =
        std::max_element(phases.begin(), phases.end(),
                         [](const auto& a, const auto& b) { return a.allocated < b.allocated; });
    return most == phases.end() ? "" : most->name;
  }

  /// Peaks are the highest of many sums, each of which grows at least evenly with the samples and
  /// with their length: convex, from what is there without any tokens, which is less than the
  /// fewest tokens that were run need.
  double bytes_at_least(std::int64_t micro_batch, std::int64_t sequence) const {
    const double none = least_known();
    double most = 0;
    for (const Known& known : known_) {
      if (known.micro_batch > micro_batch || known.sequence > sequence) continue;
      const double times = static_cast<double>(micro_batch) /
                           static_cast<double>(known.micro_batch) * static_cast<double>(sequence) /
                           static_cast<double>(known.sequence);
      most = std::max(most, none + times * (known.bytes - none));
    }
    return most;
  }
  double least_known() const {
    double least = std::numeric_limits<double>::infinity();
    for (const Known& known : known_) least = std::min(least, known.bytes);
    return least;
  }

  const Option& option_;
  const StopCheck* stop_;
  std::vector<const Gpu*> gpus_;  // that differ in memory, the fullest first
  mutable std::vector<Known> known_;
  std::vector<std::int64_t> divisors_;
};

/// Above the largest batch that bisection finds, so many more are run.
constexpr std::size_t neighbours = 3;

/// The search along one row.
class RowSearch {
 public:
  RowSearch(const Search& search, std::int64_t sequence) : search_(search) {
    row_.sequence = sequence;
  }

  BatchRow find() {
    const auto count = static_cast<std::int64_t>(search_.count());
    std::size_t good = 0;
    try {
      const bool near = search_.is_slow(row_.sequence) && search_.divisors().empty();
      const double guess =
          near ? search_.tokens_that_may_fit() / static_cast<double>(row_.sequence) : 0;
      const auto run = [&](std::int64_t n) { return fits(static_cast<std::size_t>(n) - 1); };
      good = static_cast<std::size_t>(
          near ? largest_near(static_cast<std::int64_t>(guess), count, run) : largest(count, run));
      for (std::size_t above = 1; good > 0 && above <= neighbours; ++above) {
        if (good + above > search_.count() || !fits(good + above - 1)) continue;
        good += above;
        above = 0;
      }
    } catch (const Stopped&) {
      row_.decided = false;
    }
    row_.largest = good == 0 ? 0 : search_.micro(good - 1);
    std::sort(row_.tried.begin(), row_.tried.end(),
              [](const auto& a, const auto& b) { return a.micro_batch < b.micro_batch; });
    for (const BatchCell& cell : row_.tried) {
      const bool fits = cell.verdict == Verdict::fits;
      if (!row_.decided && fits) row_.largest = std::max(row_.largest, cell.micro_batch);
      if (cell.micro_batch <= row_.largest || fits || row_.next) continue;
      row_.next = cell;
    }
    return std::move(row_);
  }

 private:
  bool fits(std::size_t i) {
    const std::int64_t micro = search_.micro(i);
    const BatchCell* known = row_.find(micro);
    if (known) return known->verdict == Verdict::fits;
    row_.tried.push_back(search_.judge_job(micro, row_.sequence));
    return row_.tried.back().verdict == Verdict::fits;
  }

  const Search& search_;
  BatchRow row_;
};

void find_longest(const Search& search, std::int64_t micro, std::int64_t most, BatchTable& table) {
  const std::int64_t limit = most / sequence_step;
  const double tokens = search.tokens_that_may_fit() / static_cast<double>(micro);
  const bool near = search.is_slow(static_cast<std::int64_t>(std::min(tokens, 1e9)));
  const auto run = [&](std::int64_t steps) {
    return search.judge_job(micro, steps * sequence_step).verdict == Verdict::fits;
  };
  const std::int64_t good =
      near ? largest_near(static_cast<std::int64_t>(tokens) / sequence_step, limit, run)
           : largest(limit, run);
  table.longest_sequence = good * sequence_step;
  if (good < limit) table.longer = search.judge_job(micro, (good + 1) * sequence_step);
}

/// An evaluation after the steps, of batches as large, whose metric keeps the logits. Ranks that
/// share a job would gather them from all, which is not modelled.
bool can_keep_logits(const Option& option) {
  const bool apart =
      option.parallel == spec::Parallel::none || option.parallel == spec::Parallel::independent;
  if (!apart || !option.lowering->has_metric(option.job.job.program)) return false;
  program::TrainingJob job = option.job.job;
  job.micro_batch = job.accumulation = job.metric_batches = 1;
  job.steps = 1;
  try {
    option.lowering->lower(job);
    return true;
  } catch (const InputError&) {
    return false;  // the model gives a loss alone
  }
}

/// Whether eager attention is another program: a network of pictures may have none.
bool has_attention(const Option& option) {
  program::TrainingJob job = option.job.job;
  job.micro_batch = job.accumulation = job.steps = 1;
  const auto shape = [&] {
    const Program program = option.lowering->lower(job);
    std::int64_t bytes = 0;
    for (const StorageInfo& storage : program.storages) bytes += storage.bytes;
    return std::pair(program.instructions.size(), bytes);
  };
  if (job.megatron) return true;
  const auto own = shape();
  job.attention = "eager";
  return shape() != own;
}

/// Single changes of the largest batch of a row that somebody makes in passing.
void find_cliff(const Option& option, const Search& search, BatchTable& table) {
  const std::int64_t own = option.job.job.sequence;
  const BatchRow* row = nullptr;
  for (const BatchRow& one : table.rows) {
    if (one.largest > 0 && (!row || one.sequence == own)) row = &one;
  }
  if (!row) return;
  const std::int64_t micro = row->largest, sequence = row->sequence;
  table.edge = search.judge_job(micro, sequence);
  const auto add = [&](std::string words, std::int64_t samples, std::int64_t tokens,
                       const std::function<void(program::TrainingJob&)>& change = {}) {
    table.cliff.push_back({std::move(words), search.judge_job(samples, tokens, change)});
  };
  if (search.divisors().empty()) add("one sample more", micro + 1, sequence);
  const auto longest = option.lowering->longest_sequence();
  if (table.reads_sequence && (!longest || sequence + sequence_step <= *longest)) {
    add("samples of " + std::to_string(sequence_step) + " tokens more", micro,
        sequence + sequence_step);
  }
  if (option.job.job.attention != "eager" && has_attention(option)) {
    add("attention eager", micro, sequence,
        [](program::TrainingJob& job) { job.attention = "eager"; });
  }
  if (can_keep_logits(option)) {
    const auto keep = [](std::int64_t batches) {
      return [batches](program::TrainingJob& job) { job.metric_batches = batches; };
    };
    const std::int64_t most = search.is_slow(sequence) ? few_metric_batches : most_metric_batches;
    const std::int64_t good = largest(most, [&](std::int64_t batches) {
      return search.judge_job(micro, sequence, keep(batches)).verdict == Verdict::fits;
    });
    const std::int64_t next = std::min(good + 1, most);
    add("a metric that keeps the logits of " + format_count(next) +
            (next == 1 ? " batch" : " batches") + " of an evaluation",
        micro, sequence, keep(next));
  }
  if (option.job.job.accumulation == 1 && search.divisors().empty()) {
    add("a second pass a step", micro, sequence,
        [](program::TrainingJob& job) { job.accumulation = 2; });
  }
  if (option.job.job.recompute == program::Recompute::full) {
    add("recompute none", micro, sequence,
        [](program::TrainingJob& job) { job.recompute = program::Recompute::none; });
  }
  if (option.job.job.optimizer == "adamw" &&
      option.job.job.implementation == program::Implementation::fused) {
    add("optimizer adamw-foreach", micro, sequence,
        [](program::TrainingJob& job) { job.implementation = program::Implementation::foreach; });
  }
}

std::int64_t positions_of(const spec::ModelSpec& model) {
  for (const char* key : {"max_position_embeddings", "n_positions", "n_ctx", "seq_length"}) {
    const spec::Node* node = model.numbers.child(key);
    const auto most = node ? parse_integer(node->text) : std::nullopt;
    if (most && *most > 0) return *most;
  }
  return most_tokens;
}

/// As many of them as a table has columns, the first, the last and those between in even steps.
std::vector<std::int64_t> spread(const std::vector<std::int64_t>& all) {
  if (all.size() <= most_columns) return all;
  std::vector<std::int64_t> some;
  for (std::size_t i = 0; i < most_columns; ++i) {
    some.push_back(all[i * (all.size() - 1) / (most_columns - 1)]);
  }
  return some;
}

}  // namespace

bool reads_sequence(const Option& option) {
  const spec::FamilySpec& family = option.lowering->family();
  const bool pictures = std::any_of(family.heads.begin(), family.heads.end(),
                                    [](const auto& head) { return head.first == "image"; });
  if (!family.own_batch && !pictures && !option.lowering->model().graph) return true;  // of tokens
  const auto bytes_at = [&](std::int64_t sequence) {
    program::TrainingJob job = option.job.job;
    job.sequence = sequence;
    job.micro_batch = job.accumulation = job.steps = 1;
    std::int64_t bytes = 0;
    for (const StorageInfo& storage : option.lowering->lower(job).storages) bytes += storage.bytes;
    return bytes;
  };
  try {
    return bytes_at(16) != bytes_at(32);
  } catch (const InputError&) {
    return true;
  }
}

const BatchCell* BatchRow::find(std::int64_t micro_batch) const {
  for (const BatchCell& cell : tried) {
    if (cell.micro_batch == micro_batch) return &cell;
  }
  return nullptr;
}

std::vector<std::int64_t> usual_sequences(const spec::ModelSpec& model) {
  const std::int64_t most = std::min<std::int64_t>(positions_of(model), 32'768);
  std::vector<std::int64_t> sequences;
  for (std::int64_t length = 512; length <= most; length *= 2) sequences.push_back(length);
  if (sequences.empty()) sequences.push_back(most);
  return sequences;
}

BatchTable find_batches(const Option& option, const std::vector<std::int64_t>& sequences,
                        const StopCheck* stop) {
  const Search search(option, stop);
  BatchTable table;
  std::int64_t most = 1;
  table.reads_sequence = reads_sequence(option);
  const std::vector<std::int64_t> own{option.job.job.sequence};
  for (const std::int64_t sequence : table.reads_sequence ? sequences : own) {
    table.rows.push_back(RowSearch(search, sequence).find());
    const BatchRow& row = table.rows.back();
    most = std::max(most, row.next ? row.next->micro_batch : row.largest);
  }
  table.micro_batches = search.divisors();
  for (std::int64_t n = 1; search.divisors().empty() && n <= most; n *= 2) {
    table.micro_batches.push_back(n);
  }
  table.micro_batches = spread(table.micro_batches);
  try {
    if (table.reads_sequence) {
      const std::int64_t positions = std::min(positions_of(option.lowering->model()), most_tokens);
      find_longest(search, option.job.batch.micro, positions, table);
    }
    find_cliff(option, search, table);
  } catch (const Stopped&) {  // what is known stays
  }
  if (stop) table.stopped = stop->why();
  return table;
}

}  // namespace shardfit::search
