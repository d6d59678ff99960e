#include "program/block_copier.h"

#include <algorithm>

#include "program/alike.h"
#include "program/block_held.h"

namespace shardfit::program {

using model::Module;
using model::Value;
using model::ValueKind;
using model::ValueList;
using tensor::Tensor;

namespace {

thread_local std::int64_t copied_blocks = 0;

/// What tells arguments apart: numbers themselves, tensors and modules by which they are.
void add_identity(const Value& value, std::vector<std::uint64_t>& out) {
  out.push_back(static_cast<std::uint64_t>(value.kind));
  switch (value.kind) {
    case ValueKind::tensor:
      out.push_back(reinterpret_cast<std::uintptr_t>(value.tensor.get()));
      break;
    case ValueKind::list:
      out.push_back(value.list->size());
      for (const Value& item : *value.list) add_identity(item, out);
      break;
    case ValueKind::dtype:
      out.push_back(static_cast<std::uint64_t>(value.dtype));
      break;
    case ValueKind::module:
      out.push_back(reinterpret_cast<std::uintptr_t>(value.module));
      break;
    case ValueKind::text:
      out.push_back(reinterpret_cast<std::uintptr_t>(value.text));
      break;
    default:
      out.push_back(static_cast<std::uint64_t>(value.integer));
  }
}

std::vector<std::uint64_t> identities(const Value* arguments, std::size_t count) {
  std::vector<std::uint64_t> out;
  for (std::size_t i = 1; i < count; ++i) add_identity(arguments[i], out);
  return out;
}

bool wants_gradient(const Value& value) {
  if (value.kind == ValueKind::tensor) return value.tensor.requires_grad();
  return value.kind == ValueKind::list &&
         std::any_of(value.list->begin(), value.list->end(), wants_gradient);
}

/// The one tensor of a result: itself, or the first of a list of nothing else.
Tensor output_of(const Value& result) {
  if (result.kind == ValueKind::tensor) return result.tensor;
  if (result.kind != ValueKind::list || result.list->empty()) return {};
  const ValueList& parts = *result.list;
  const bool alone =
      parts[0].kind == ValueKind::tensor &&
      std::all_of(parts.begin() + 1, parts.end(), [](const Value& v) { return v.is_none(); });
  return alone ? parts[0].tensor : Tensor();
}

}  // namespace

std::int64_t BlockCopier::copied() { return copied_blocks; }

BlockCopier::BlockCopier(model::Machine& machine, Around around)
    : machine_(machine),
      runtime_(machine.runtime),
      blocks_(equal_blocks(machine)),
      around_(std::move(around)) {
  machine_.units = this;
  runtime_.watcher = this;
}

BlockCopier::~BlockCopier() {
  machine_.units = nullptr;
  runtime_.watcher = nullptr;
}

void BlockCopier::finish() const {
  if (*lost_) throw BlocksDiffer();
}

bool BlockCopier::settled() const {
  return !inside_ && runtime_.grad_enabled && !runtime_.recorder && !runtime_.stopped() &&
         runtime_.hooks.empty() && !runtime_.mode && runtime_.backward_depth == 0 &&
         runtime_.current_stream == 0 && !machine_.hooks &&
         (!runtime_.after_accumulate || (around_.gradients_alone && around_.gradients_alone()));
}

/// The row of the pass that runs; where others may be in flight, its first block begins another.
BlockCopier::Row& BlockCopier::row_of(const EqualBlock& block) {
  Row*& row = last_[block.row];
  const bool another =
      around_.in_flight && block.place == 0 && row && row->calls.size() == block.length;
  if (!row || another) row = &rows_.emplace_back();
  return *row;
}

BlockCopier::Range BlockCopier::here() const {
  Range range;
  range.first_instruction = runtime_.program.instructions.size();
  range.first_storage = static_cast<std::uint32_t>(runtime_.program.storages.size());
  range.first_event = runtime_.program.events;
  range.first_sequence = runtime_.next_sequence;
  return range;
}

void BlockCopier::close(Range& range) const {
  const Range end = here();
  range.end_instruction = end.first_instruction;
  range.end_storage = end.first_storage;
  range.end_event = end.first_event;
  range.end_sequence = end.first_sequence;
}

BlockCopier::Made BlockCopier::made_of(const Tensor& tensor) {
  return {tensor->storage->id, tensor.shape(), tensor->stride, tensor.dtype()};
}

Tensor BlockCopier::make(const Made& form, std::uint32_t id) const {
  return runtime_.adopt(id, form.shape, form.stride, form.dtype);
}

Value BlockCopier::call(const Module& unit, const Value* arguments, std::size_t count,
                        const std::function<Value()>& run) {
  const auto found = blocks_.find(&unit);
  if (found == blocks_.end() || !settled()) return run();
  const EqualBlock& block = found->second;
  if (block.length <= first_run + last_run) return run();
  Row& row = row_of(block);
  // The first block's input may come from anywhere.
  const bool has_input =
      count > 0 && arguments[0].kind == ValueKind::tensor && arguments[0].tensor->storage &&
      (block.place == 0 || (arguments[0].tensor->grad_fn && !arguments[0].tensor->base));
  // A row that is run out of order, or twice in a pass, is none; what was copied of it cannot be
  // run again.
  if (row.calls.size() != block.place && row.copied) throw BlocksDiffer();
  if (row.calls.size() != block.place || !has_input) return run();
  // What was copied of a row was so for its next block; something stands between the two.
  const tensor::Node* before = block.place == 0 ? nullptr : row.calls[block.place - 1]->output_node;
  if (row.copied && arguments[0].tensor->grad_fn.get() != before) throw BlocksDiffer();
  const bool between = block.place >= first_run && block.place + last_run < block.length;
  if (between && row.forward) {
    const Forward& known = row.calls[first_run - 1]->forward;
    const bool same = arguments[0].tensor->grad_fn.get() == before &&
                      known.input.same_form(made_of(arguments[0].tensor)) &&
                      identities(arguments, count) == known.arguments;
    if (same) return copy_forward(block, row, arguments[0].tensor);
  }
  Value result = run_forward(block, row, arguments, count, run);
  if (block.place == first_run - 1) {
    row.forward = same_forward(*row.calls[first_run - 2], *row.calls[first_run - 1]);
  }
  return result;
}

Value BlockCopier::run_forward(const EqualBlock& block, Row& row, const Value* arguments,
                               std::size_t count, const std::function<Value()>& run) {
  Call call;
  call.block = &block;
  call.row = &row;
  Forward& forward = call.forward;
  const tensor::TensorBody* input = arguments[0].tensor.get();
  call.input_node = input->grad_fn.get();
  call.input_place = input->output;
  forward.input = made_of(arguments[0].tensor);
  forward.arguments = identities(arguments, count);
  const bool others_want = std::any_of(arguments + 1, arguments + count, wants_gradient);
  const std::uint32_t edges = call.input_node ? call.input_node->references : 0;
  const std::uint32_t references = input->references;
  const std::uint32_t of_storage = input->storage->references;
  const std::size_t casts = runtime_.autocast.cache.size();
  forward.range = here();
  Value result;
  {
    const tensor::Scoped<bool> inside(inside_, true);
    result = run();
  }
  close(forward.range);
  if (call.input_node) forward.edges = call.input_node->references - edges;
  forward.holds_input = input->references != references || input->storage->references != of_storage;
  forward.copyable = call.input_node && !others_want && look_at_result(call, result) &&
                     look_at_casts(call, casts) && look_at_forward(call);
  row.calls.push_back(&calls_.emplace_back(std::move(call)));
  return result;
}

bool BlockCopier::look_at_result(Call& call, const Value& result) const {
  Forward& forward = call.forward;
  if (result.kind == ValueKind::list) forward.parts = result.list->size();
  const Tensor output = output_of(result);
  if (!output || !output->storage || output->base || !output->grad_fn) return false;
  forward.output = made_of(output);
  // One reference is the result's, one this function's.
  forward.holds_output = output.use_count() > 2 || output->storage->references > 1;
  call.output_node = output->grad_fn.get();
  forward.output_module = output->grad_fn->module;
  call.output_place = output->output;
  const Range& range = forward.range;
  return range.holds(forward.output.id) && call.output_node->sequence >= range.first_sequence &&
         call.output_node->sequence < range.end_sequence;
}

bool BlockCopier::look_at_casts(Call& call, std::size_t casts_before) const {
  const auto& cache = runtime_.autocast.cache;
  const std::vector<Tensor>& tensors = call.block->tensors;
  if (cache.size() < casts_before) return false;
  for (std::size_t i = casts_before; i < cache.size(); ++i) {
    const tensor::TensorBody* of = cache[i].first;
    const Tensor& cast = cache[i].second;
    const auto own = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const Tensor& t) { return t.get() == of; });
    if (own == tensors.end() || !cast->storage || cast->base) return false;
    if (cast.use_count() > 1 || cast->storage->references > 1) continue;
    call.forward.casts.emplace_back(static_cast<std::size_t>(own - tensors.begin()), made_of(cast));
  }
  return true;
}

/// Only what has its storages in the block itself can be copied.
bool BlockCopier::look_at_forward(Call& call) const {
  Forward& forward = call.forward;
  const Range& range = forward.range;
  std::vector<char> left(range.end_storage - range.first_storage, 1);
  for (std::size_t i = range.first_instruction; i < range.end_instruction; ++i) {
    const Instruction& instruction = runtime_.program.instructions[i];
    if (runs(instruction.action)) continue;
    if (on_event(instruction.action) && range.holds_event(instruction.id)) continue;
    if (!on_storage(instruction.action) || !range.holds(instruction.id)) return false;
    if (instruction.action == Action::release) left[instruction.id - range.first_storage] = 0;
  }
  left[forward.output.id - range.first_storage] = 0;
  for (const auto& [of, cast] : forward.casts) left[cast.id - range.first_storage] = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i]) forward.kept.push_back(range.first_storage + static_cast<std::uint32_t>(i));
  }
  return true;
}

bool BlockCopier::same_forward(const Call& a, const Call& b) {
  const Forward& x = a.forward;
  const Forward& y = b.forward;
  BlockNames names;
  names.add_run(x.range.first_storage, x.range.end_storage, y.range.first_storage);
  const auto same_name = [&](std::uint32_t of_x, std::uint32_t of_y) {
    return names.of(of_x) == of_y;
  };
  const auto same_cast = [&](const auto& of_x, const auto& of_y) {
    return of_x.first == of_y.first && of_x.second.same_form(of_y.second) &&
           same_name(of_x.second.id, of_y.second.id);
  };
  return x.copyable && y.copyable && x.parts == y.parts && x.holds_input == y.holds_input &&
         x.edges == y.edges && x.holds_output == y.holds_output && x.arguments == y.arguments &&
         x.input.same_form(y.input) && x.output.same_form(y.output) &&
         same_name(x.output.id, y.output.id) && b.input_node == a.output_node &&
         std::equal(x.casts.begin(), x.casts.end(), y.casts.begin(), y.casts.end(), same_cast) &&
         std::equal(x.kept.begin(), x.kept.end(), y.kept.begin(), y.kept.end(), same_name) &&
         same_stream(x.range, *a.block, y.range, *b.block, names);
}

Value BlockCopier::copy_forward(const EqualBlock& block, Row& row, const Tensor& input) {
  ++copied_blocks;
  row.copied = true;
  const Call& second = *row.calls[first_run - 2];
  const Call& known = *row.calls[first_run - 1];
  const Forward& from = known.forward;
  Call& call = calls_.emplace_back();
  call.block = &block;
  call.row = &row;
  call.copied = true;
  call.input_node = input->grad_fn.get();
  call.input_place = input->output;
  Forward& forward = call.forward;
  forward.range = here();
  forward.input = made_of(input);
  BlockNames names;
  names.add_run(from.range.first_storage, from.range.end_storage, forward.range.first_storage);
  append(from.range, *known.block, block, names, second.forward.range, *second.block);
  const auto storages = runtime_.program.storages.data();
  storages[forward.input.id].category = storages[from.input.id].category;
  const Tensor output = make(from.output, *names.of(from.output.id));
  forward.output = made_of(output);
  for (const auto& [of, cast] : from.casts) {
    runtime_.autocast.cache.add(block.tensors[of].get(), make(cast, *names.of(cast.id)));
  }
  const tensor::NodeRef node = runtime_.make_node("block", copied_backward, 1);
  runtime_.next_sequence =
      forward.range.first_sequence + from.range.end_sequence - from.range.first_sequence;
  node->sequence = runtime_.next_sequence - 1;
  node->module = ModuleNames(*known.block, block).of(from.output_module);
  runtime_.connect(*node.get(), 0, input);
  runtime_.attach(node, output);
  auto held = std::make_unique<Held>();
  held->copier = this;
  held->call = &call;
  held->lost = lost_;
  if (from.holds_input) held->input = runtime_.alias_of(input, input.shape(), input->stride);
  if (from.holds_output) held->output = runtime_.alias_of(output, output.shape(), output->stride);
  node->extra = std::move(held);
  forward.edges = 1;
  close(forward.range);
  call.output_node = node.get();
  call.output_place = 0;
  row.calls.push_back(&call);
  if (from.parts == 0) return Value::of(output);
  ValueList parts(from.parts);
  parts[0] = Value::of(output);
  return Value::of_list(std::move(parts));
}

bool BlockCopier::same_stream(const Range& a, const EqualBlock& of_a, const Range& b,
                              const EqualBlock& of_b, const BlockNames& names) {
  const Program& program = runtime_.program;
  const std::size_t length = a.end_instruction - a.first_instruction;
  const std::uint32_t storages = a.end_storage - a.first_storage;
  if (b.end_instruction - b.first_instruction != length ||
      b.end_storage - b.first_storage != storages ||
      a.end_event - a.first_event != b.end_event - b.first_event ||
      a.end_sequence - a.first_sequence != b.end_sequence - b.first_sequence) {
    return false;
  }
  ModuleNames& modules = between(of_a, of_b).modules;
  for (std::uint32_t s = 0; s < storages; ++s) {
    const StorageInfo& x = program.storages[a.first_storage + s];
    const StorageInfo& y = program.storages[b.first_storage + s];
    if (!alike_made(x, y) || modules.of(x.module) != y.module) return false;
  }
  for (std::size_t i = 0; i < length; ++i) {
    const Instruction& x = program.instructions[a.first_instruction + i];
    const Instruction& y = program.instructions[b.first_instruction + i];
    if (x.action != y.action || x.stream != y.stream) return false;
    if (on_storage(x.action)) {
      if (names.of(x.id) != y.id) return false;
    } else if (on_event(x.action)) {
      if (x.id - a.first_event != y.id - b.first_event) return false;
    } else if (x.action == Action::collective) {
      const Collective& of_x = program.collectives[x.id];
      const Collective& of_y = program.collectives[y.id];
      if (!alike_sent(of_x, of_y) || modules.of(of_x.module) != of_y.module) return false;
    } else {
      const Compute& of_x = program.computes[x.id];
      const Compute& of_y = program.computes[y.id];
      if (!alike_run(of_x, of_y) || modules.of(of_x.module) != of_y.module) return false;
    }
  }
  return true;
}

BlockCopier::Renaming& BlockCopier::between(const EqualBlock& from, const EqualBlock& to) {
  const auto found = renamings_.find({&from, &to});
  if (found != renamings_.end()) return found->second;
  return renamings_.emplace(std::pair(&from, &to), Renaming{ModuleNames(from, to), {}})
      .first->second;
}

std::uint32_t BlockCopier::compute_as(std::uint32_t compute, Renaming& renaming) {
  if (compute >= renaming.computes.size()) renaming.computes.resize(compute + 1, 0);
  std::uint32_t& known = renaming.computes[compute];
  if (known == 0) {
    Compute other = runtime_.program.computes[compute];
    other.module = renaming.modules.of(other.module);
    known = runtime_.compute_id(other) + 1;
  }
  return known - 1;
}

void BlockCopier::append(const Range& range, const EqualBlock& of, const EqualBlock& as,
                         const BlockNames& names, const Range& like, const EqualBlock& of_like) {
  Program& program = runtime_.program;
  Renaming& renaming = between(of, as);
  ModuleNames& modules_like = between(of_like, as).modules;
  for (std::uint32_t s = like.first_storage; s < like.end_storage; ++s) {
    StorageInfo info = program.storages[s];
    info.module = modules_like.of(info.module);
    program.storages.push_back(info);
  }
  const std::uint32_t event = program.events;
  for (std::size_t i = range.first_instruction; i < range.end_instruction; ++i) {
    Instruction instruction = program.instructions[i];
    if (on_storage(instruction.action)) {
      instruction.id = *names.of(instruction.id);
    } else if (on_event(instruction.action)) {
      instruction.id = event + (instruction.id - range.first_event);
    } else if (instruction.action == Action::collective) {
      Collective collective = program.collectives[instruction.id];
      collective.module = renaming.modules.of(collective.module);
      instruction.id = static_cast<std::uint32_t>(program.collectives.size());
      program.collectives.push_back(collective);
    } else {
      instruction.id = compute_as(instruction.id, renaming);
    }
    program.instructions.push_back(instruction);
  }
  program.events += range.end_event - range.first_event;
}

}  // namespace shardfit::program
