// The backward of a part that runs alone, from gradients in a given state.

#include <algorithm>
#include <unordered_map>

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
  Gradients gradients;
};

void arrive(Node& node, Gradients&, Gradients& out) {
  Gradients& given = static_cast<Arriving&>(*node.extra).gradients;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::move(given[i]);
}

/// A tensor that was there before, by its number, which no leaf has.
void mark_given(const Tensor& tensor, std::size_t number) {
  tensor->parameter = -2 - static_cast<std::int32_t>(number);
}
std::int32_t given_number(const TensorBody& body) {
  return body.parameter <= -2 ? -2 - body.parameter : -1;
}

/// What is left of gradients: bodies with their storages, found from tensors that hold them.
class Left {
 public:
  /// `given`: storages that were there before; others must have been made since `first_new`.
  Left(const std::vector<std::uint32_t>& given, std::uint32_t first_new)
      : ids_(given), first_new_(first_new) {
    for (std::size_t i = 0; i < given.size(); ++i) {
      numbers_.emplace(given[i], static_cast<std::uint32_t>(i));
    }
  }

  /// The tensor's body by number; -1: none.
  std::int32_t add(const Tensor& tensor) {
    if (!tensor) return -1;
    const auto [place, fresh] =
        places_.emplace(tensor.get(), static_cast<std::int32_t>(bodies_.size()));
    const std::int32_t number = place->second;
    if (!fresh) {
      ++uses_[static_cast<std::size_t>(number)];
      return number;
    }
    if (!tensor->storage) throw NotInParts();
    bodies_.push_back(tensor.get());
    uses_.push_back(1);
    bases_.push_back(-1);
    const std::int32_t base = add(tensor->base);
    bases_[static_cast<std::size_t>(number)] = base;
    return number;
  }
  std::uint32_t storage_number(std::uint32_t id) {
    if (const std::uint32_t known = find_storage(id); known < storages()) return known;
    if (id < first_new_) throw NotInParts();  // one of the forward's
    ids_.push_back(id);
    return numbers_[id] = storages() - 1;
  }
  /// storages() where it is none.
  std::uint32_t find_storage(std::uint32_t id) const {
    const auto known = numbers_.find(id);
    return known == numbers_.end() ? storages() : known->second;
  }
  std::uint32_t storages() const { return static_cast<std::uint32_t>(ids_.size()); }
  const std::vector<const TensorBody*>& bodies() const { return bodies_; }
  const std::vector<std::int32_t>& bases() const { return bases_; }

  /// Nothing holds them but what was added and the gradients of parameters.
  void check_uses(const std::vector<std::uint32_t>& leaves) const {
    std::unordered_map<const Storage*, std::uint32_t> of_storages;
    for (std::size_t i = 0; i < bodies_.size(); ++i) {
      if (bodies_[i]->references != uses_[i]) throw NotInParts();
      ++of_storages[bodies_[i]->storage];
    }
    for (const auto& [storage, uses] : of_storages) {
      const auto more = std::count(leaves.begin(), leaves.end(), storage->id);
      if (storage->references != uses + static_cast<std::uint32_t>(more)) throw NotInParts();
    }
  }

 private:
  std::vector<std::uint32_t> ids_;
  std::uint32_t first_new_;
  std::unordered_map<std::uint32_t, std::uint32_t> numbers_;
  std::unordered_map<const TensorBody*, std::int32_t> places_;
  std::vector<const TensorBody*> bodies_;
  std::vector<std::uint32_t> uses_;
  std::vector<std::int32_t> bases_;
};

}  // namespace

/// Gradients as the words say, and what others hold of them.
struct PartRunner::Given {
  std::vector<Tensor> entries;
  std::vector<Tensor> others;
  std::vector<std::uint32_t> storages;  // their ids

  Given(tensor::Runtime& runtime, const Forms& forms, const Words& words);
};

PartRunner::Given::Given(tensor::Runtime& runtime, const Forms& forms, const Words& words) {
  const std::uint32_t* next = words.data() + 1;
  const std::uint32_t* const bodies_of = next + 1;
  const std::uint32_t count = *next;
  next += 1 + count;
  const std::uint32_t body_count = *next++;
  const std::uint32_t* const of_bodies = next;
  next += std::size_t{4} * body_count;
  std::vector<Tensor> roots(*next++);
  for (Tensor& root : roots) {
    root = runtime.scratch(16);
    storages.push_back(root->storage->id);
    if (*next++ != 0) others.push_back(runtime.alias_of(root, root.shape(), root->stride));
  }
  std::vector<Tensor> bodies;
  for (std::uint32_t b = 0; b < body_count; ++b) {
    const std::uint32_t* const word = of_bodies + std::size_t{4} * b;
    const Form& form = forms[word[0]];
    bodies.push_back(runtime.alias_of(roots[word[1]], form.shape, form.stride));
    bodies.back()->dtype = form.dtype;
    mark_given(bodies.back(), b);
    if (word[3] != 0) others.push_back(bodies.back());
  }
  for (std::uint32_t b = 0; b < body_count; ++b) {
    const std::uint32_t base = of_bodies[std::size_t{4} * b + 2];
    if (base != 0) bodies[b]->base = bodies[base - 1];
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    entries.push_back(bodies_of[i] == no_body ? Tensor() : bodies[bodies_of[i]]);
  }
}

PartBackward PartRunner::backward(const Asked& asked, const Part& part, const Words& gradients) {
  Run run(*this);
  begin(asked, run);
  PartRecorder recorder(runtime_, *asked.inputs, run.modules);
  recorder.see_inputs(run.inputs);
  runtime_.recorder = &recorder;
  call(asked, run);
  runtime_.autocast.cache.clear();
  const auto first_new = static_cast<std::uint32_t>(runtime_.program.storages.size());
  Given given(runtime_, forms_, gradients);
  PartBackward out;
  {
    const NodeRef arriving =
        runtime_.make_node("arriving", arrive, static_cast<int>(part.reached.size()) + 1);
    arriving->next[0].node = run.result->grad_fn;
    arriving->next[0].input = run.result->output;
    auto extra = std::make_unique<Arriving>();
    extra->gradients.resize(given.entries.size());
    for (std::size_t i = 0; i < given.entries.size(); ++i) {
      extra->gradients[i] = std::move(given.entries[i]);
      if (i > 0) arriving->next[i].node = run.sources[part.reached[i - 1]];
    }
    arriving->extra = std::move(extra);
    const Tensor root = runtime_.scratch(1);
    root->grad_fn = arriving;
    arriving->inputs.push_back({root.shape(), root.dtype()});
    run.result.reset();
    tensor::run_backward(root, root);
  }
  out.work = recorder.take_work();
  describe(run, given, part, first_new, out);
  return out;
}

void PartRunner::describe(const Run& run, const Given& given, const Part& part,
                          std::uint32_t first_new, PartBackward& out) {
  Left left(given.storages, first_new);
  for (const std::uint32_t slot : part.reached) out.results.push_back(left.add(run.leaving[slot]));
  const std::size_t count = left.bodies().size();
  for (std::size_t i = 0; i < count; ++i) {
    const TensorBody& body = *left.bodies()[i];
    out.bodies.push_back({given_number(body), forms_.number(body),
                          left.storage_number(body.storage->id), left.bases()[i]});
  }
  const std::uint32_t storages = left.storages();
  out.storages = storages - static_cast<std::uint32_t>(given.storages.size());
  for (const Tensor& other : given.others) left.add(other);
  std::vector<std::uint32_t> leaves;  // storages of parameters' gradients
  for (const model::Parameter& p : machine_.parameters(*run.module)) {
    if (p.tensor->grad && p.tensor->grad->storage) leaves.push_back(p.tensor->grad->storage->id);
  }
  for (const std::uint32_t id : leaves) {
    const std::uint32_t number = left.find_storage(id);
    if (number < storages) out.kept.push_back(number);
  }
  left.check_uses(leaves);
}

}  // namespace shardfit::graph
