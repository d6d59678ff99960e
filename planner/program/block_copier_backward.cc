#include <algorithm>

#include "program/alike.h"
#include "program/block_copier.h"
#include "program/block_held.h"

namespace shardfit::program {

using tensor::Gradients;
using tensor::Node;
using tensor::Tensor;

namespace {

/// Nobody else holds a gradient.
bool sole(const Tensor& gradient) {
  return gradient && gradient->storage && gradient.use_count() == 1 &&
         gradient->storage->references == 1 && !gradient->base && !gradient->grad_fn;
}

/// A gradient that waits for a node; null: none.
const Tensor* waiting(const Node& node, std::uint32_t place) {
  return node.pending.size() > place && node.pending[place] ? &node.pending[place] : nullptr;
}

}  // namespace

std::vector<std::optional<BlockCopier::Made>> BlockCopier::gradients(
    const EqualBlock& block) const {
  std::vector<std::optional<Made>> out(block.tensors.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Tensor& tensor = block.tensors[i];
    if (tensor && tensor->grad && tensor->grad->storage) out[i] = made_of(tensor->grad);
  }
  return out;
}

void BlockCopier::node_begins(Node& node) {
  if (node.sequence == tensor::accumulate_sequence) return;
  const auto in = [&](const Call& call) {
    return node.sequence >= call.forward.range.first_sequence &&
           node.sequence < call.forward.range.end_sequence;
  };
  if (at_) {
    if (in(*at_)) return;
    end_backward(*at_);
  }
  const auto after = std::upper_bound(
      calls_.begin(), calls_.end(), node.sequence,
      [](std::uint64_t s, const Call& call) { return s < call.forward.range.first_sequence; });
  at_ = nullptr;
  if (after == calls_.begin() || !in(*std::prev(after))) return;
  at_ = &*std::prev(after);
  if (!newest_) newest_ = at_;
  ++at_->visits;
  begin_backward(*at_, node);
}

void BlockCopier::pass_ends() {
  if (at_) end_backward(*at_);
  at_ = nullptr;
  if (around_.in_flight) {
    forget_passed();
  } else {
    calls_.clear();
    rows_.clear();
    last_.clear();
  }
  newest_ = nullptr;
}

/// The blocks of this backward pass, which began with the last of them, and all before.
void BlockCopier::forget_passed() {
  bool passed = newest_ != nullptr;
  while (passed && !calls_.empty()) {
    passed = &calls_.front() != newest_;
    ++calls_.front().row->passed;
    calls_.pop_front();
  }
  for (auto row = rows_.begin(); row != rows_.end();) {
    if (row->passed == 0 || row->passed < row->calls.size()) {
      ++row;
      continue;
    }
    std::erase_if(last_, [&](const auto& last) { return last.second == &*row; });
    row = rows_.erase(row);
  }
}

/// To the node of a block's output: those that are not edges of the next block's.
std::uint32_t BlockCopier::references_beside(const Call& call) {
  const Row& row = *call.row;
  const std::uint32_t all = call.output_node->references;
  const std::size_t next = call.block->place + 1;
  return next < row.calls.size() ? all - row.calls[next]->forward.edges : all;
}

void BlockCopier::begin_backward(Call& call, const Node& node) {
  if (call.copied) return;
  Backward& backward = call.backward;
  const Tensor* incoming = waiting(node, call.output_place);
  backward.copyable = call.visits == 1 && call.forward.copyable && &node == call.output_node &&
                      incoming && sole(*incoming) && !waiting(*call.input_node, call.input_place);
  if (!backward.copyable) return;
  backward.incoming = made_of(*incoming);
  backward.before = gradients(*call.block);
  backward.references = references_beside(call);
  backward.range = here();
}

void BlockCopier::end_backward(Call& call) {
  if (call.copied || !call.backward.copyable) return;
  Row& row = *call.row;
  call.backward.copyable = look_at_backward(call);
  const std::size_t length = call.block->length;
  if (call.block->place + last_run != length) return;
  row.backward =
      row.calls.size() == length && same_backward(*row.calls[call.block->place + 1], call);
}

/// Only what has its storages in the block, its gradients and its input can be copied; and nothing
/// of its forward may be left.
bool BlockCopier::look_at_backward(Call& call) const {
  Backward& backward = call.backward;
  const Forward& forward = call.forward;
  close(backward.range);
  const Tensor* outgoing = waiting(*call.input_node, call.input_place);
  if (!outgoing || !sole(*outgoing)) return false;
  backward.outgoing = made_of(*outgoing);
  backward.after = gradients(*call.block);
  const auto own = [&](std::uint32_t id) { return backward.range.holds(id); };
  if (!own(backward.outgoing.id) && backward.outgoing.id != backward.incoming.id) return false;
  std::vector<std::uint32_t> known = {backward.incoming.id, forward.input.id};
  for (std::size_t i = 0; i < backward.after.size(); ++i) {
    const auto& before = backward.before[i];
    const auto& after = backward.after[i];
    if (before) known.push_back(before->id);
    if (before && !after) return false;
    if (after && !(before && before->id == after->id) && !own(after->id)) return false;
  }
  std::vector<std::uint32_t> freed;
  const Program& program = runtime_.program;
  for (std::size_t i = backward.range.first_instruction; i < backward.range.end_instruction; ++i) {
    const Instruction& instruction = program.instructions[i];
    if (runs(instruction.action)) continue;
    if (on_event(instruction.action) && backward.range.holds_event(instruction.id)) continue;
    if (!on_storage(instruction.action)) return false;
    const std::uint32_t id = instruction.id;
    const bool nameable = own(id) || forward.range.holds(id) ||
                          std::find(known.begin(), known.end(), id) != known.end();
    if (!nameable) return false;
    if (instruction.action == Action::release) freed.push_back(id);
  }
  std::sort(freed.begin(), freed.end());
  const auto frees = [&](std::uint32_t id) {
    return std::binary_search(freed.begin(), freed.end(), id);
  };
  backward.frees_incoming = frees(backward.incoming.id);
  backward.frees_input = frees(forward.input.id);
  backward.frees_output = frees(forward.output.id);
  return std::all_of(forward.kept.begin(), forward.kept.end(), frees);
}

/// What the block of a call did, as another's: with that one's forward, storages of its backward
/// from the first on, and gradients.
BlockNames BlockCopier::names_between(const Call& from, const Forward& as,
                                      std::uint32_t first_storage, std::uint32_t incoming,
                                      const std::vector<std::optional<Made>>& gradients) {
  const Forward& forward = from.forward;
  const Backward& backward = from.backward;
  BlockNames names;
  names.add_run(forward.range.first_storage, forward.range.end_storage, as.range.first_storage);
  names.add_run(backward.range.first_storage, backward.range.end_storage, first_storage);
  names.add(backward.incoming.id, incoming);
  names.add(forward.input.id, as.input.id);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (backward.before[i] && gradients[i]) names.add(backward.before[i]->id, gradients[i]->id);
  }
  return names;
}

/// Gradients that are there, and their forms.
bool BlockCopier::same_forms(const std::vector<std::optional<Made>>& a,
                             const std::vector<std::optional<Made>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.has_value() == y.has_value() && (!x || x->same_form(*y));
  });
}

bool BlockCopier::same_backward(const Call& a, const Call& b) {
  const Backward& x = a.backward;
  const Backward& y = b.backward;
  if (!x.copyable || !y.copyable || !x.incoming.same_form(y.incoming) ||
      !x.outgoing.same_form(y.outgoing) || !same_forms(x.before, y.before) ||
      !same_forms(x.after, y.after) || x.references != y.references ||
      x.frees_incoming != y.frees_incoming || x.frees_input != y.frees_input ||
      x.frees_output != y.frees_output || a.forward.holds_input != b.forward.holds_input ||
      a.forward.holds_output != b.forward.holds_output || a.input_node != b.output_node) {
    return false;
  }
  const BlockNames names =
      names_between(a, b.forward, y.range.first_storage, y.incoming.id, y.before);
  for (std::size_t i = 0; i < x.after.size(); ++i) {
    if (x.after[i] && names.of(x.after[i]->id) != y.after[i]->id) return false;
  }
  return names.of(x.outgoing.id) == y.outgoing.id &&
         same_stream(x.range, *a.block, y.range, *b.block, names);
}

void BlockCopier::copied_backward(Node& node, Gradients& in, Gradients& out) {
  auto& held = static_cast<Held&>(*node.extra);
  held.copier->copy_backward(*held.call, held, in, out);
}

void BlockCopier::copy_backward(Call& call, Held& held, Gradients& in, Gradients& out) {
  const Row& row = *call.row;
  if (!row.backward) throw BlocksDiffer();
  const std::size_t copied = call.block->length - last_run;
  const Call& known = *row.calls[copied];
  const Call& like = *row.calls[copied + 1];
  // Input and output have no other use.
  const bool alone = sole(in[0]) && !waiting(*call.input_node, call.input_place) &&
                     references_beside(call) == known.backward.references;
  if (!alone) throw BlocksDiffer();
  const Backward& from = known.backward;
  const auto before = gradients(*call.block);
  if (!from.incoming.same_form(made_of(in[0])) || !same_forms(from.before, before)) {
    throw BlocksDiffer();
  }
  Program& program = runtime_.program;
  const std::uint32_t incoming = in[0]->storage->id;
  const auto first = static_cast<std::uint32_t>(program.storages.size());
  const BlockNames names = names_between(known, call.forward, first, incoming, before);
  append(from.range, *known.block, *call.block, names, like.backward.range, *like.block);
  runtime_.next_sequence += from.range.end_sequence - from.range.first_sequence;
  program.storages[incoming].category = program.storages[from.incoming.id].category;
  for (std::uint32_t s = 0; s < known.forward.range.end_storage - known.forward.range.first_storage;
       ++s) {
    program.storages[call.forward.range.first_storage + s].category =
        program.storages[like.forward.range.first_storage + s].category;
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto& after = from.after[i];
    if (!after || (from.before[i] && from.before[i]->id == after->id)) continue;
    const Tensor& tensor = call.block->tensors[i];
    if (tensor->grad) runtime_.disown(tensor->grad);
    tensor->grad = make(*after, *names.of(after->id));
  }
  if (from.outgoing.id == from.incoming.id) {
    out[0] = runtime_.alias_of(in[0], from.outgoing.shape, from.outgoing.stride);
  } else {
    if (from.frees_incoming) runtime_.disown(in[0]);
    out[0] = make(from.outgoing, *names.of(from.outgoing.id));
  }
  const auto let_go = [&](Tensor& tensor, bool freed) {
    if (tensor && freed) runtime_.disown(tensor);
    tensor.reset();
  };
  let_go(held.input, from.frees_input);
  let_go(held.output, from.frees_output);
  held.ran = true;
}

}  // namespace shardfit::program
