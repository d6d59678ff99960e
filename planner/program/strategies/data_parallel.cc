// torch.nn.DataParallel: one process, whose first GPU holds the model; the others get a copy of it
// for each pass, compute on their part of the batch and hand outputs and gradients back
// (torch/nn/parallel/data_parallel.py, replicate.py, _functions.py, comm.py;
// torch/csrc/cuda/comm.cpp).

#include <algorithm>

#include "program/strategies/mesh.h"
#include "program/strategy.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using model::Value;
using model::ValueKind;
using model::ValueList;
using tensor::Gradients;
using tensor::Node;
using tensor::NodeRef;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

constexpr std::int64_t coalesced_bytes = 10 << 20;

std::int64_t bytes_of(const Tensor& tensor) {
  return tensor.count() * element_size(tensor.dtype());
}

/// Some of a row of tensors, all of one dtype, that travel as one.
using Chunk = std::vector<std::uint32_t>;

/// When a chunk is closed: as soon as it is full (torch/csrc/utils/tensor_flatten.cpp,
/// take_tensors), or before it would be too full (torch/_utils.py, _take_tensors).
enum class Close : std::uint8_t { full, before_too_full };

std::vector<Chunk> chunks_of(const std::vector<Tensor>& tensors, Close close) {
  std::vector<Chunk> done, open;  // one that is open for each dtype
  std::vector<std::int64_t> bytes;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const auto alike = [&](const Chunk& chunk) {
      return tensors[chunk.front()].dtype() == tensors[i].dtype();
    };
    auto at =
        static_cast<std::size_t>(std::find_if(open.begin(), open.end(), alike) - open.begin());
    const std::int64_t own = bytes_of(tensors[i]);
    const bool too_full = at < open.size() && bytes[at] + own > coalesced_bytes;
    const auto finish = [&] {
      done.push_back(std::move(open[at]));
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
      bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at));
      at = open.size();
    };
    if (close == Close::before_too_full && too_full) finish();
    if (at == open.size()) {
      open.emplace_back();
      bytes.push_back(0);
    }
    open[at].push_back(i);
    bytes[at] += own;
    if (close == Close::full && bytes[at] >= coalesced_bytes) finish();
  }
  for (Chunk& chunk : open) done.push_back(std::move(chunk));
  return done;
}

class DataParallel;

/// What the nodes of a pass need of it.
struct OfPass : tensor::NodeExtra {
  explicit OfPass(DataParallel& made) : by(made) {}
  DataParallel& by;
};

class DataParallel : public Strategy {
 public:
  DataParallel(const DataParallelJob& job, model::Machine& machine)
      : job_(job),
        mesh_(mesh_of(0, job.gpus, 1, job.gpu)),
        machine_(machine),
        runtime_(machine.runtime),
        records_(runtime_.record_computes) {}

  void wrap(const model::Module& root) override {
    const ModelPlaces places(machine_);
    for (const model::Parameter& p : machine_.parameters(root)) add(p.tensor, places, parameters_);
    for (const model::Module* module : places.with_buffers()) {
      const std::size_t first = module->type->spec->parameters.size();
      for (std::size_t i = first; i < module->tensors.size(); ++i) {
        if (module->tensors[i]) add(module->tensors[i], places, buffers_);
      }
    }
    if (!first_gpu()) be_elsewhere(true);
  }

  std::vector<Tensor> optimized(std::vector<Tensor> listed) const override {
    return first_gpu() ? listed : std::vector<Tensor>{};
  }

  void scatter(ValueList& inputs) override {
    const Scoped<tensor::Label> label(runtime_.label, {"data_parallel", 0, false});
    be_elsewhere(false);
    for (Value& input : inputs) input = own_part(input);
    inputs_ = inputs;  // which live as long as the copies of the model
    if (job_.counts_labels && !first_gpu() && is_causal()) {  // a view on the first
      inputs_.push_back(Value::of(runtime_.empty(Shape{1, 1}, DType::f32)));
    }
  }

  void before_forward(bool /*synchronize*/) override {
    const Scoped<tensor::Label> label(runtime_.label, {"data_parallel", 0, false});
    replicate(parameters_, runtime_.grad_on());
    replicate(buffers_, false);
    // The threads of the pass take their library handles from what is free on the device: in the
    // first pass those that autograd's threads get afterwards.
    runtime_.autograd_thread = passes_++ == 0;
    // They know that autocast is on, but not to which dtype: theirs is the default
    // (parallel_apply.py, torch.amp.autocast(device_type, enabled=...)).
    dtype_outside_ = std::exchange(runtime_.autocast.dtype, DType::f16);
  }

  /// Gather; then the copies of the model go.
  void after_forward(bool /*synchronize*/, Value& result) override {
    const Scoped<tensor::Label> label(runtime_.label, {"data_parallel", 0, false});
    runtime_.autograd_thread = false;
    runtime_.autocast.dtype = dtype_outside_;
    result = gathered(result);
    put_back(parameters_);
    put_back(buffers_);
    inputs_.clear();
    if (!first_gpu()) be_elsewhere(true);
  }

  bool waits_for_gradients() const override { return false; }

  void after_backward() override {
    if (!first_gpu()) be_elsewhere(true);
  }

  /// The gradient of what this GPU gave has come to it (Scatter).
  static void gather_backward(Node& node, Gradients& in, Gradients& out) {
    DataParallel& by = static_cast<OfPass&>(*node.extra).by;
    by.be_elsewhere(false);
    const Tensor& whole = in[0];
    if (!whole || !node.wants(0)) return;
    Tensor part = by.own_part(whole);
    out[0] = node.number[0] != 0 ? tensor::select(part, 0, 0) : part;
  }

  /// Gradients of all parameters, of each GPU, are added on the first (ReduceAddCoalesced). A
  /// function written in Python gets zeros for those that did not come, of frozen parameters too.
  static void broadcast_backward(Node& node, Gradients& in, Gradients& out) {
    DataParallel& by = static_cast<OfPass&>(*node.extra).by;
    Runtime& runtime = by.runtime_;
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const tensor::InputMetadata& form = node.inputs[static_cast<unsigned>(i)];
      if (!in[i]) in[i] = runtime.empty(form.shape, form.dtype);
      runtime.set_category(in[i], Category::gradient);
      gradients.push_back(in[i]);
    }
    std::vector<Tensor> sums;  // of frozen parameters too, until the end
    Tensor flat;
    for (const Chunk& chunk : chunks_of(gradients, Close::before_too_full)) {
      flat = by.flattened(gradients, chunk);
      const Tensor& sent = flat ? flat : gradients[chunk.front()];
      exchange(runtime, CollectiveKind::reduce, sent, by.mesh_);
      if (!by.first_gpu()) continue;
      const Tensor& sum = sums.emplace_back(runtime.empty(Shape{sent.count()}, sent.dtype()));
      runtime.set_category(sum, Category::gradient);
      for (const std::uint32_t i : chunk) {
        const Shape& shape = gradients[i].shape();
        if (node.wants(static_cast<int>(i))) {
          out[i] = runtime.alias_of(sum, shape, tensor::contiguous_strides(shape));
        }
      }
    }
  }

 private:
  /// Tensors of the model, where each stands there, and which travel as one.
  struct Sources {
    std::vector<Tensor> tensors;
    std::vector<std::vector<Place>> places;
    std::vector<Chunk> chunks;
  };

  bool is_causal() const {
    const int head = machine_.globals.find("head");
    return head >= 0 && *machine_.globals.values[static_cast<std::size_t>(head)].text == "causal";
  }
  bool first_gpu() const { return job_.gpu == 0; }

  static void add(const Tensor& tensor, const ModelPlaces& places, Sources& to) {
    if (std::find(to.tensors.begin(), to.tensors.end(), tensor) != to.tensors.end()) return;
    to.tensors.push_back(tensor);
    to.places.push_back(places.of(tensor));
  }

  /// What the loop does, it does on the first GPU: of the others it takes nothing.
  void be_elsewhere(bool elsewhere) {
    runtime_.meta = elsewhere;
    runtime_.record_computes = records_ && !elsewhere;
  }

  Value own_part(const Value& whole) {
    if (whole.kind == ValueKind::tensor) return Value::of(own_part(whole.tensor));
    if (whole.kind != ValueKind::list) return whole;
    ValueList parts;
    for (const Value& each : *whole.list) parts.push_back(own_part(each));
    return Value::of_list(std::move(parts));
  }
  /// This GPU's part of a tensor on the first: a view there, a copy elsewhere.
  Tensor own_part(const Tensor& whole) {
    if (whole.rank() == 0) return whole;
    const std::int64_t size = whole.size(0) / job_.gpus;
    if (first_gpu()) return tensor::slice(whole, 0, 0, size);
    Shape shape = whole.shape();
    shape[0] = size;
    return runtime_.empty(shape, whole.dtype());
  }

  /// The chunk's tensors in a row; empty where it is one tensor, which is that already.
  Tensor flattened(const std::vector<Tensor>& tensors, const Chunk& chunk) {
    if (chunk.size() == 1) return {};
    std::int64_t count = 0;
    for (const std::uint32_t i : chunk) count += tensors[i].count();
    const DType dtype = tensors[chunk.front()].dtype();
    const Tensor flat = runtime_.empty(Shape{count}, dtype);
    runtime_.set_category(flat, Category::communication);
    runtime_.launched("cat", dtype, 2.0 * static_cast<double>(bytes_of(flat)));
    return flat;
  }

  /// Copies of the tensors, which stand in the model in their place.
  void replicate(Sources& sources, bool followed) {
    if (sources.tensors.empty()) return;
    if (sources.chunks.empty()) sources.chunks = chunks_of(sources.tensors, Close::full);
    NodeRef node;
    const auto wants = [](const Tensor& t) { return t->leaf_requires_grad; };
    if (followed && std::any_of(sources.tensors.begin(), sources.tensors.end(), wants)) {
      node = runtime_.make_node("Broadcast", broadcast_backward,
                                first_gpu() ? static_cast<int>(sources.tensors.size()) : 0);
      node->extra = std::make_unique<OfPass>(*this);
    }
    std::vector<Tensor> copies(sources.tensors.size());
    for (const Chunk& chunk : sources.chunks) send(sources, chunk, copies);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      if (node) follow(node, i, sources.tensors[i], copies[i]);
      for (const Place& place : sources.places[i]) place.module->tensors[place.index] = copies[i];
    }
  }

  void send(const Sources& sources, const Chunk& chunk, std::vector<Tensor>& copies) {
    const auto alias = [&](const Tensor& of, std::uint32_t i) {
      const Tensor& source = sources.tensors[i];
      copies[i] = runtime_.alias_of(of, source.shape(), source->stride);
    };
    if (first_gpu()) {
      const Tensor flat = flattened(sources.tensors, chunk);
      const Tensor& sent = flat ? flat : sources.tensors[chunk.front()];
      exchange(runtime_, CollectiveKind::broadcast, sent, mesh_);
      for (const std::uint32_t i : chunk) alias(sources.tensors[i], i);
      return;
    }
    std::int64_t count = 0;
    for (const std::uint32_t i : chunk) count += sources.tensors[i].count();
    const Tensor flat = runtime_.empty(Shape{count}, sources.tensors[chunk.front()].dtype());
    runtime_.set_category(flat, Category::parameter);
    exchange(runtime_, CollectiveKind::broadcast, flat, mesh_);
    for (const std::uint32_t i : chunk) alias(flat, i);
  }

  /// The copy is an output of the node, whose gradient goes to the source.
  void follow(const NodeRef& node, std::size_t i, const Tensor& source, const Tensor& copy) {
    if (source->leaf_requires_grad) {
      runtime_.attach(node, copy);
      if (first_gpu()) runtime_.connect(*node.get(), static_cast<int>(i), source);
    } else {
      node->inputs.push_back({copy.shape(), copy.dtype()});
    }
  }

  void put_back(const Sources& sources) {
    for (std::size_t i = 0; i < sources.tensors.size(); ++i) {
      for (const Place& place : sources.places[i]) {
        place.module->tensors[place.index] = sources.tensors[i];
      }
    }
  }

  /// Outputs of all GPUs, one behind the other, on the first; a number of each makes a row.
  Value gathered(const Value& value) {
    if (value.kind == ValueKind::list) {
      ValueList items;
      for (const Value& item : *value.list) items.push_back(gathered(item));
      return Value::of_list(std::move(items));
    }
    if (value.kind != ValueKind::tensor) return value;
    const Tensor& own = value.tensor;
    Shape shape = own.rank() == 0 ? Shape{1} : own.shape();
    shape[0] *= job_.gpus;
    NodeRef node;
    if (runtime_.grad_on() && own.requires_grad()) {
      node = runtime_.make_node("Gather", gather_backward, 1);
      node->extra = std::make_unique<OfPass>(*this);
      node->number[0] = own.rank() == 0 ? 1 : 0;
      runtime_.connect(*node.get(), 0, own);
    }
    const Scoped<bool> elsewhere(runtime_.meta, !first_gpu());
    const Scoped<tensor::Label> label(runtime_.label, {gathered_outputs, 0, false});
    const Tensor all = runtime_.empty(shape, own.dtype());
    if (node) runtime_.attach(node, all);
    // What comes in takes the first GPU's link as long as gathering it everywhere would.
    exchange(runtime_, CollectiveKind::all_gather, all, mesh_);
    return Value::of(all);
  }

  DataParallelJob job_;
  Mesh mesh_;
  model::Machine& machine_;
  Runtime& runtime_;
  Sources parameters_, buffers_;
  ValueList inputs_;
  std::int64_t passes_ = 0;
  DType dtype_outside_ = DType::bf16;
  bool records_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_data_parallel(const DataParallelJob& job, model::Machine& machine) {
  return std::make_unique<DataParallel>(job, machine);
}

}  // namespace shardfit::program
