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

}  // namespace

/// What is left of gradients: bodies with their storages, found from tensors that hold them.
class PartRunner::Left {
 public:
  /// `given`: storages that were there before; others must have been made since `first_new`.
  Left(Run& run, const std::vector<std::uint32_t>& given, std::uint32_t first_new)
      : places_(run.bodies), numbers_(run.storages), first_new_(first_new) {
    places_.begin();
    numbers_.begin();
    for (const std::uint32_t id : given) numbers_.of(id, storages_++);
  }

  /// The tensor's body by number; -1: none.
  std::int32_t add(const Tensor& tensor) {
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
  std::uint32_t storage_number(std::uint32_t id) {
    const std::uint32_t number = numbers_.of(id, storages_);
    if (number < storages_) return number;
    if (id < first_new_) throw NotInParts();  // one of the forward's
    return storages_++;
  }
  /// storages() where it is none.
  std::uint32_t find_storage(std::uint32_t id) const { return numbers_.find(id, storages_); }
  std::uint32_t storages() const { return storages_; }
  struct Body {
    const TensorBody* body = nullptr;
    std::uint32_t uses = 0;
    std::int32_t base = -1;
  };
  const std::vector<Body>& bodies() const { return bodies_; }

  /// Nothing holds them but what was added and the gradients of parameters.
  void check_uses(const std::vector<std::uint32_t>& leaves) {
    std::vector<std::pair<const Storage*, std::uint32_t>> of_storages;
    numbers_.begin();
    for (const Body& body : bodies_) {
      if (body.body->references != body.uses) throw NotInParts();
      const auto here = static_cast<std::uint32_t>(of_storages.size());
      const std::uint32_t number = numbers_.of(body.body->storage->id, here);
      if (number == here) of_storages.emplace_back(body.body->storage, 0);
      ++of_storages[number].second;
    }
    const auto count = static_cast<std::uint32_t>(of_storages.size());
    for (const std::uint32_t id : leaves) {
      if (const std::uint32_t number = numbers_.find(id, count); number < count) {
        ++of_storages[number].second;
      }
    }
    for (const auto& [storage, uses] : of_storages) {
      if (storage->references != uses) throw NotInParts();
    }
  }

 private:
  FirstSeenAddress& places_;
  FirstSeen& numbers_;
  std::uint32_t storages_ = 0;
  std::uint32_t first_new_;
  std::vector<Body> bodies_;
};

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

Words PartRunner::first_gradient(const Part& part, const Tensor& result) {
  Words words{part.number, static_cast<std::uint32_t>(part.reached.size()) + 1, 0};
  words.insert(words.end(), part.reached.size(), no_body);
  std::uint32_t form = part.form;
  if (!result.dense()) {
    const Tensor gradient = runtime_.empty(result.shape(), result.dtype());
    form = forms_.number(*gradient.get());
  }
  words.insert(words.end(), {1, form, 0, 0, 0, 1, 0});
  return words;
}

PartBackward PartRunner::backward(const Asked& asked, const Part& part, const Words& gradients) {
  const Run::End end(*run_);
  begin(asked);
  call(asked);
  return step_back(part, gradients);
}

PartBackward PartRunner::step_back(const Part& part, const Words& gradients) {
  Run& run = *run_;
  runtime_.autocast.cache.clear();
  const auto first_new = static_cast<std::uint32_t>(runtime_.program.storages.size());
  Given given(runtime_, forms_, gradients);
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
  PartBackward out;
  out.work = run.recorder.work();
  describe(given, part, first_new, out);
  return out;
}

void PartRunner::describe(const Given& given, const Part& part, std::uint32_t first_new,
                          PartBackward& out) {
  Left left(*run_, given.storages, first_new);
  out.results.reserve(part.reached.size());
  for (const std::uint32_t slot : part.reached) out.results.push_back(left.add(run_->leaving[slot]));
  const std::size_t count = left.bodies().size();
  out.bodies.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const TensorBody& body = *left.bodies()[i].body;
    out.bodies.push_back({given_number(body), forms_.number(body),
                          left.storage_number(body.storage->id), left.bodies()[i].base});
  }
  const std::uint32_t storages = left.storages();
  out.storages = storages - static_cast<std::uint32_t>(given.storages.size());
  for (const Tensor& other : given.others) left.add(other);
  std::vector<std::uint32_t> leaves;  // storages of parameters' gradients
  for (const model::Module& module : machine_.modules) {
    for (const Tensor& tensor : module.tensors) {
      if (tensor && tensor->grad && tensor->grad->storage) {
        leaves.push_back(tensor->grad->storage->id);
      }
    }
  }
  for (const std::uint32_t id : leaves) {
    const std::uint32_t number = left.find_storage(id);
    if (number < storages) out.kept.push_back(number);
  }
  left.check_uses(leaves);
}

}  // namespace shardfit::graph
