#include "program/strategies/titan_tensor.h"

#include <algorithm>

#include "tensor/embedding_gradient.h"
#include "tensor/node.h"

namespace shardfit::program {

using model::Value;
using tensor::Gradients;
using tensor::Node;
using tensor::NodeRef;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

namespace {

struct SplitExtra : tensor::NodeExtra {
  explicit SplitExtra(TitanTensor& s) : split(s) {}
  TitanTensor& split;
};

TitanTensor& split_of(Node& node) { return static_cast<SplitExtra&>(*node.extra).split; }

NodeRef split_node(const char* kind, tensor::Backward backward, TitanTensor& split,
                   std::initializer_list<Tensor> inputs) {
  NodeRef node = tensor::function_node(kind, backward, inputs);
  if (node) node->extra = std::make_unique<SplitExtra>(split);
  return node;
}

void gather_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = split_of(node).scattered_sum(in[0], true);
  in[0].reset();
}

/// A gradient that every rank has whole is cut.
void gather_last_backward(Node& node, Gradients& in, Gradients& out) {
  const std::int64_t width = in[0].size(-1) / split_of(node).degree();
  out[0] = tensor::clone(tensor::slice(in[0], -1, 0, width), false);
  in[0].reset();
}

void sum_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = split_of(node).all_reduced(in[0]);
  in[0].reset();
}

void pass_on(Node&, Gradients& in, Gradients& out) { out[0] = std::move(in[0]); }

void scatter_backward(Node& node, Gradients& in, Gradients& out) {
  out[0] = split_of(node).whole_of(in[0], 1);
  in[0].reset();
}

/// Of the whole vocabulary; then this rank's rows (_replicate_to_shard). Where nobody asks for
/// these the whole stays, and looks like the rows here.
void embedding_backward(Node& node, Gradients& in, Gradients& out) {
  TitanTensor& split = split_of(node);
  const Tensor ids = node.load(0);
  Tensor gradient = split.sequence() ? split.whole_of(in[0], 1) : in[0];
  in[0].reset();
  const Shape all{split.vocabulary(), gradient.size(-1)};
  const Tensor whole = tensor::embedding_gradient(gradient, ids, all);
  gradient.reset();
  const Tensor rows = tensor::slice(whole, 0, 0, all[0] / split.degree());
  out[0] = split.sharded() ? tensor::clone(rows, false) : tensor::detach(rows);
}

/// Which ids are not of this rank's rows, and where the others are (_MaskPartial, _mask_tensor).
Tensor own_places(const Tensor& ids, Tensor& mask) {
  {
    const Tensor below = tensor::compare_scalar("lt", ids);
    const Tensor above = tensor::compare_scalar("ge", ids);
    mask = tensor::compare("or", below, above);
  }
  const Tensor copy = tensor::clone(ids, true);
  return tensor::add_scalar(copy);
}

/// torch.where(target != ignore_index, x, 0)
Tensor unless_ignored(const Tensor& target, const Tensor& x) {
  tensor::Runtime& runtime = target.runtime();
  const Tensor counts = tensor::compare_scalar("ne", target);
  const Tensor zero = runtime.empty({}, x.dtype());
  return tensor::where(counts, x, zero);
}

/// loss.py, _nll_loss_and_log_softmax_backward
void loss_backward(Node& node, Gradients&, Gradients& out) {
  tensor::Runtime& runtime = *node.runtime;
  const Tensor logarithms = node.load(0);
  const Tensor labels = node.load(1);
  const Tensor total = node.load(2);
  const Tensor safe = unless_ignored(labels, labels);
  const Tensor gradient = runtime.empty(logarithms.shape(), DType::f32);
  Tensor mask;
  const Tensor places = own_places(safe, mask);
  Tensor update = tensor::to(mask, DType::f32);
  update = tensor::add_scalar(update);
  const Tensor rows = runtime.empty(labels.shape(), DType::i64);
  const Tensor of_each = unless_ignored(labels, update);
  Tensor softmax = tensor::exp(logarithms);
  softmax = tensor::add(softmax, gradient);
  out[0] = tensor::mul(softmax, tensor::view(of_each, Shape{of_each.count(), 1}));
}

}  // namespace

TitanTensor::TitanTensor(tensor::Runtime& runtime, const TitanJob& job, std::int64_t vocabulary,
                         bool sharded)
    : runtime_(runtime),
      vocabulary_(vocabulary),
      sequence_(job.sequence_parallel),
      sharded_(sharded) {
  const std::int64_t first = job.rank - job.tensor_rank();
  for (std::int64_t i = 0; i < job.tensor; ++i) {
    ranks_.push_back(static_cast<std::int32_t>(first + i));
  }
}

bool TitanTensor::run(const std::string& name, Value* arguments, Value& result) {
  const auto tensor_at = [&](int i) { return model::tensor_of(arguments[i], "an argument"); };
  if (name == "await_exchange") {
    await(tensor_at(0));
    result = arguments[0];
  } else if (name == "into_tensor_parallel") {
    result = sequence_ ? Value::of(gather(tensor_at(0), 1)) : arguments[0];
  } else if (name == "column_input") {
    result = Value::of(column_input(tensor_at(0)));
  } else if (name == "gather_vocabulary") {
    result = Value::of(gather(tensor_at(0), -1));
  } else if (name == "from_tensor_parallel") {
    result = Value::of(scatter(tensor_at(0)));
  } else if (name == "lookup_vocabulary") {
    result = Value::of(embedding(tensor_at(0), tensor_at(1)));
  } else if (name == "vocabulary_loss") {
    result = Value::of(cross_entropy(tensor_at(0), tensor_at(1)));
  } else {
    return false;
  }
  return true;
}

void TitanTensor::exchange(CollectiveKind kind, const Tensor& whole) {
  Collective collective;
  collective.kind = kind;
  collective.dtype = whole.dtype();
  collective.bytes = whole.count() * element_size(whole.dtype());
  collective.group = runtime_.group(ranks_);
  const std::uint32_t done = runtime_.exchange(collective, runtime_.stream("tensor"));
  runtime_.wait_event(done, runtime_.current_stream);
}

void TitanTensor::await(const Tensor& x) {
  std::erase_if(pending_, [&](const Pending& p) { return p.result->storage == x->storage; });
}

Tensor TitanTensor::all_reduced(const Tensor& x) {
  const Tensor sum = runtime_.empty(x.shape(), x.dtype());
  exchange(CollectiveKind::all_reduce, sum);
  return sum;
}

Tensor TitanTensor::whole_of(const Tensor& shard, int dim) {
  const Scoped<bool> no_grad(runtime_.grad_enabled, false);
  const int at = dim < 0 ? dim + shard.rank() : dim;
  Shape behind = shard.shape();
  behind[0] *= degree();
  const Tensor gathered = runtime_.empty(behind, shard.dtype());
  exchange(CollectiveKind::all_gather, gathered);
  Shape whole = shard.shape();
  whole[at] *= degree();
  std::int64_t before = 1;
  for (int i = 0; i < at; ++i) before *= shard.size(i);
  if (before == 1) return runtime_.alias_of(gathered, whole, tensor::contiguous_strides(whole));
  const std::vector<std::int64_t> each(ranks_.size(), shard.size(0));
  return tensor::cat(tensor::split(gathered, each, 0), at);
}

Tensor TitanTensor::scattered_sum(const Tensor& partial, bool waited) {
  const Scoped<bool> no_grad(runtime_.grad_enabled, false);
  const std::int64_t rows = partial.size(1) / degree();
  if (rows * degree() != partial.size(1)) {
    throw tensor::ShapeError("sequence parallelism: " + std::to_string(partial.size(1)) +
                             " tokens over " + std::to_string(degree()) + " ranks");
  }
  const std::vector<std::int64_t> each(ranks_.size(), rows);
  const Tensor chunks = tensor::cat(tensor::split(partial, each, 1), 0);
  std::vector<Tensor> made;
  if (runtime_.mode) made = runtime_.mode->before("reduce_scatter");
  if (made.empty()) {
    Shape shape = partial.shape();
    shape[1] = rows;
    made.push_back(runtime_.empty(shape, partial.dtype()));
    exchange(CollectiveKind::reduce_scatter, chunks);
    if (runtime_.mode) runtime_.mode->after("reduce_scatter", made);
    if (!waited) pending_.push_back({made[0], chunks});
  }
  return made[0];
}

Tensor TitanTensor::gather(const Tensor& x, int dim) {
  if (degree() == 1) return x;
  const Scoped<const char*> label(runtime_.label.kind, "all_gather");
  const NodeRef node = split_node("distributed_all_gather",
                                  dim == 1 ? gather_backward : gather_last_backward, *this, {x});
  if (node) node->subclass_gradients = true;
  Tensor out = whole_of(x, dim);
  if (node) runtime_.attach(node, out);
  return out;
}

/// What a linear layer of split columns takes: its gradients are parts of a sum (ColwiseParallel).
Tensor TitanTensor::column_input(const Tensor& x) {
  if (degree() == 1 || sequence_) return x;
  const NodeRef node = split_node("all_reduce", sum_backward, *this, {x});
  Tensor same = runtime_.view_of(x, x.shape(), x->stride);
  if (node) runtime_.attach(node, same);
  return same;
}

Tensor TitanTensor::scatter(const Tensor& x) {
  if (degree() == 1) return x;
  if (!sequence_) {
    const Scoped<const char*> label(runtime_.label.kind, "all_reduce");
    const NodeRef node = split_node("all_reduce", pass_on, *this, {x});
    Tensor out = all_reduced(x);
    if (node) runtime_.attach(node, out);
    return out;
  }
  const Scoped<const char*> label(runtime_.label.kind, "reduce_scatter");
  const NodeRef node = split_node("distributed_reduce_scatter", scatter_backward, *this, {x});
  if (node) node->subclass_gradients = true;
  Tensor out = scattered_sum(x, false);
  if (node) runtime_.attach(node, out);
  return out;
}

/// Rows of this rank, zeros for ids of others, summed and scattered along the sequence.
Tensor TitanTensor::embedding(const Tensor& weight, const Tensor& ids) {
  if (degree() == 1) return tensor::embedding(weight, ids);
  const Scoped<const char*> label(runtime_.label.kind, "embedding");
  const NodeRef node = split_node("embedding", embedding_backward, *this, {weight});
  Tensor out;
  {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    Tensor partial;
    {
      Tensor mask;
      const Tensor places = own_places(ids, mask);
      partial = tensor::embedding(weight, places);
    }
    out = sequence_ ? scattered_sum(partial, false) : all_reduced(partial);
  }
  if (node) {
    runtime_.attach(node, out);
    node->save(ids);
  }
  return out;
}

/// loss.py: _log_softmax and _nll_loss_forward over rows whose classes are split, their sum.
Tensor TitanTensor::cross_entropy(const Tensor& logits, const Tensor& labels) {
  const Scoped<const char*> label(runtime_.label.kind, "loss_parallel");
  const NodeRef node = split_node("loss_parallel", loss_backward, *this, {logits});
  Tensor logarithms, total, loss;
  {
    const Scoped<bool> no_grad(runtime_.grad_enabled, false);
    const auto over_classes = [&](const Tensor& x) {
      const Tensor own = tensor::sum_dims(x, 2U, true);
      return all_reduced(own);
    };
    {
      const Tensor most = over_classes(logits);
      const Tensor shifted = tensor::sub(logits, most);
      Tensor sum;
      {
        const Tensor exponentials = tensor::exp(shifted);
        sum = tensor::sum_dims(exponentials, 2U, true);
      }
      sum = all_reduced(sum);
      const Tensor logarithm = tensor::log(sum);
      logarithms = tensor::sub(shifted, logarithm);
    }
    const Tensor safe = unless_ignored(labels, labels);
    Tensor mask;
    const Tensor places = own_places(safe, mask);
    const Tensor picked = runtime_.empty(labels.shape(), DType::f32);  // gather
    mask.reset();
    const Tensor of_all = all_reduced(picked);
    Tensor each = tensor::neg(of_all);
    each = unless_ignored(labels, each);
    {
      Tensor count;
      {
        const Tensor counted = tensor::compare_scalar("ne", labels);
        count = tensor::sum_all(counted);
      }
      total = tensor::to(count, DType::f32);
    }
    loss = tensor::sum_all(each);
  }
  if (node) {
    runtime_.attach(node, loss);
    node->save(logarithms);
    node->save(labels);
    node->save(total);
  }
  return loss;
}

}  // namespace shardfit::program
