// The backward of a part that runs alone, from gradients in a given state.

#include "graph/part_run.h"
#include "tensor/engine.h"

namespace shardfit::graph {

using tensor::Gradients;
using tensor::Node;
using tensor::NodeRef;
using tensor::Storage;
using tensor::Tensor;
using tensor::TensorBody;

namespace {

/// What the node before a part's last one hands on.
struct Arriving : tensor::NodeExtra {
  explicit Arriving(std::vector<Tensor>& given) : gradients(given) {}
  std::vector<Tensor>& gradients;
};

void arrive(Node& node, Gradients&, Gradients& out) {
  std::vector<Tensor>& given = static_cast<Arriving&>(*node.extra).gradients;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::move(given[i]);
}

/// A tensor that was there before, by its number, which no leaf has.
void mark_given(const Tensor& tensor, std::size_t number) {
  tensor->parameter = -2 - static_cast<std::int32_t>(number);
}
std::int32_t given_number(const TensorBody& body) {
  return body.parameter <= -2 ? -2 - body.parameter : -1;
}

}  // namespace

void LeftGradients::begin(const std::vector<std::uint32_t>& given, std::uint32_t first_new) {
  places_.begin();
  numbers_.begin();
  bodies_.clear();
  storages_ = 0;
  first_new_ = first_new;
  for (const std::uint32_t id : given) numbers_.of(id, storages_++);
}

std::int32_t LeftGradients::add(const Tensor& tensor) {
  if (!tensor) return -1;
  const auto here = static_cast<std::uint32_t>(bodies_.size());
  const std::uint32_t number = places_.of(tensor.get(), here);
  if (number != here) {
    ++bodies_[number].uses;
    return static_cast<std::int32_t>(number);
  }
  if (!tensor->storage) throw NotInParts();
  bodies_.push_back({tensor.get(), 1, -1});
  const std::int32_t base = add(tensor->base);
  bodies_[number].base = base;
  return static_cast<std::int32_t>(number);
}

std::uint32_t LeftGradients::storage_number(std::uint32_t id) {
  const std::uint32_t number = numbers_.of(id, storages_);
  if (number < storages_) return number;
  if (id < first_new_) throw NotInParts();  // one of the forward's
  return storages_++;
}

void LeftGradients::check_uses(const std::vector<std::uint32_t>& leaves) {
  uses_.clear();
  numbers_.begin();
  for (const Body& body : bodies_) {
    if (body.body->references != body.uses) throw NotInParts();
    const auto here = static_cast<std::uint32_t>(uses_.size());
    const std::uint32_t number = numbers_.of(body.body->storage->id, here);
    if (number == here) uses_.emplace_back(body.body->storage, 0);
    ++uses_[number].second;
  }
  const auto count = static_cast<std::uint32_t>(uses_.size());
  for (const std::uint32_t id : leaves) {
    if (const std::uint32_t number = numbers_.find(id, count); number < count) {
      ++uses_[number].second;
    }
  }
  for (const auto& [storage, uses] : uses_) {
    if (storage->references != uses) throw NotInParts();
  }
}

void GivenGradients::clear() {
  entries.clear();
  others.clear();
  storages.clear();
}

void GivenGradients::make(tensor::Runtime& runtime, const Forms& forms, const Words& words) {
  const std::uint32_t* next = words.data() + 1;
  const std::uint32_t* const bodies_of = next + 1;
  const std::uint32_t count = *next;
  next += 1 + count;
  const std::uint32_t body_count = *next++;
  const std::uint32_t* const of_bodies = next;
  next += std::size_t{4} * body_count;
  roots_.resize(*next++);
  for (Tensor& root : roots_) {
    root = runtime.scratch(16);
    storages.push_back(root->storage->id);
    if (*next++ != 0) others.push_back(runtime.alias_of(root, root.shape(), root->stride));
  }
  for (std::uint32_t b = 0; b < body_count; ++b) {
    const std::uint32_t* const word = of_bodies + std::size_t{4} * b;
    const Form& form = forms[word[0]];
    bodies_.push_back(runtime.alias_of(roots_[word[1]], form.shape, form.stride));
    bodies_.back()->dtype = form.dtype;
    mark_given(bodies_.back(), b);
    if (word[3] != 0) others.push_back(bodies_.back());
  }
  for (std::uint32_t b = 0; b < body_count; ++b) {
    const std::uint32_t base = of_bodies[std::size_t{4} * b + 2];
    if (base != 0) bodies_[b]->base = bodies_[base - 1];
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    entries.push_back(bodies_of[i] == no_body ? Tensor() : bodies_[bodies_of[i]]);
  }
  roots_.clear();
  bodies_.clear();
}

void PartRunner::first_gradient(const Part& part, const Tensor& result, Words& words) {
  words = {part.number, static_cast<std::uint32_t>(part.reached.size()) + 1, 0};
  words.insert(words.end(), part.reached.size(), no_body);
  std::uint32_t form = part.form;
  if (!result.dense()) {
    const Tensor gradient = runtime_.empty(result.shape(), result.dtype());
    form = forms_.number(*gradient.get());
  }
  words.insert(words.end(), {1, form, 0, 0, 0, 1, 0});
}

void PartRunner::backward(const Asked& asked, const Part& part, const Words& gradients,
                          PartBackward& out) {
  const Run::End end(*run_);
  begin(asked);
  call(asked);
  step_back(part, gradients, out);
}

void PartRunner::step_back(const Part& part, const Words& gradients, PartBackward& out) {
  Run& run = *run_;
  runtime_.autocast.cache.clear();
  const auto first_new = static_cast<std::uint32_t>(runtime_.program.storages.size());
  run.given.make(runtime_, forms_, gradients);
  {
    const NodeRef arriving =
        runtime_.make_node("arriving", arrive, static_cast<int>(part.reached.size()) + 1);
    arriving->next[0].node = run.result->grad_fn;
    arriving->next[0].input = run.result->output;
    for (std::size_t i = 0; i < part.reached.size(); ++i) {
      arriving->next[i + 1].node = run.sources[part.reached[i]];
    }
    arriving->extra = std::make_unique<Arriving>(run.given.entries);
    const Tensor root = runtime_.scratch(1);
    root->grad_fn = arriving;
    arriving->inputs.push_back({root.shape(), root.dtype()});
    run.result.reset();
    tensor::run_backward(root, root);
  }
  out.work.assign(run.recorder.work().begin(), run.recorder.work().end());
  describe(part, first_new, out);
}

void PartRunner::describe(const Part& part, std::uint32_t first_new, PartBackward& out) {
  Run& run = *run_;
  LeftGradients& left = run.left;
  left.begin(run.given.storages, first_new);
  out.results.reserve(part.reached.size());
  for (const std::uint32_t slot : part.reached) out.results.push_back(left.add(run.leaving[slot]));
  const std::size_t count = left.bodies().size();
  out.bodies.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const TensorBody& body = *left.bodies()[i].body;
    out.bodies.push_back({given_number(body), forms_.number(body),
                          left.storage_number(body.storage->id), left.bodies()[i].base});
  }
  const std::uint32_t storages = left.storages();
  out.storages = storages - static_cast<std::uint32_t>(run.given.storages.size());
  for (const Tensor& other : run.given.others) left.add(other);
  run.leaves.clear();
  for (const model::Module& module : machine_.modules) {
    for (const Tensor& tensor : module.tensors) {
      if (!tensor || !tensor->grad || !tensor->grad->storage) continue;
      run.leaves.push_back(tensor->grad->storage->id);
      const std::uint32_t number = left.find_storage(run.leaves.back());
      if (number < storages) out.kept.push_back(number);
    }
  }
  left.check_uses(run.leaves);
}

}  // namespace shardfit::graph
