#pragma once
// What PyTorch keeps per process and per thread while a program runs: grad mode, autocast, hooks,
// library workspaces. Here it also writes the program of the rank.

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensor/compute_table.h"
#include "tensor/node.h"
#include "tensor/pool.h"
#include "tensor/program.h"
#include "tensor/recorder.h"
#include "tensor/tensor.h"

namespace shardfit::tensor {

/// What decides on a device which kernels run and what libraries take through the allocator.
struct DeviceTraits {
  int capability_major = 9;
  int capability_minor = 0;
  int multiprocessors = 132;
  bool rocm = false;  // AMD: kernels are taken to be those of the capability given
  /// Resident threads of a multiprocessor (CUDA programming guide, compute capabilities).
  int threads_per_multiprocessor() const {
    if (capability_major == 12 || (capability_major == 8 && capability_minor != 0)) return 1536;
    return capability_major == 7 && capability_minor == 5 ? 1024 : 2048;
  }
  /// cuBLAS workspace of one handle and stream: 32 MiB on 9.x, 10.x and 12.x, else 8,519,680 bytes;
  /// hipBLAS on gfx942 and gfx950 128 MiB
  /// (pytorch aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize).
  std::int64_t blas_workspace() const {
    if (rocm) return std::int64_t{128} << 20;
    const bool large = capability_major == 9 || capability_major == 10 || capability_major == 12;
    return large ? 33554432 : 8519680;
  }
};

/// Casts of weights, dropped in the order in which they were made.
class WeightCasts {
 public:
  const Tensor* find(const TensorBody* weight) const {
    const auto place = places_.find(weight);
    return place == places_.end() ? nullptr : &casts_[place->second].second;
  }
  void add(const TensorBody* weight, const Tensor& cast) {
    places_.emplace(weight, casts_.size());
    casts_.emplace_back(weight, cast);
  }
  std::size_t size() const { return casts_.size(); }
  /// A weight with its cast, in the order in which they came.
  const std::pair<const TensorBody*, Tensor>& operator[](std::size_t i) const { return casts_[i]; }
  void clear() {
    casts_.clear();
    places_.clear();
  }

 private:
  std::vector<std::pair<const TensorBody*, Tensor>> casts_;
  std::unordered_map<const TensorBody*, std::size_t> places_;
};

struct Autocast {
  bool enabled = false;
  bool cache_enabled = true;
  DType dtype = DType::bf16;
  int depth = 0;  // nested contexts; the cache is cleared when the outermost ends
  WeightCasts cache;
};

/// Replaces saved tensors while it is on top of the runtime's stack.
struct SavedTensorHooks {
  virtual ~SavedTensorHooks() = default;
  virtual std::shared_ptr<Packed> pack(const Tensor& tensor) = 0;
};

/// Sees the outputs of chosen operators (selective recompute).
struct OperatorMode {
  virtual ~OperatorMode() = default;
  /// May give the operator's outputs without running it; empty: run it.
  virtual std::vector<Tensor> before(const char* kind) = 0;
  virtual void after(const char* kind, const std::vector<Tensor>& outputs) = 0;
};

/// Sees the nodes that the outermost backward pass runs, each just before, and the pass's end.
struct NodeWatcher {
  virtual ~NodeWatcher() = default;
  virtual void node_begins(Node& node) = 0;
  virtual void pass_ends() = 0;
};

struct Label {
  const char* kind = "";
  std::uint32_t module = 0;
  bool backward = false;
};

class Runtime {
 public:
  explicit Runtime(DeviceTraits traits) : device(traits) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime();

  /// A contiguous tensor with a storage of its own.
  Tensor empty(const Shape& shape, DType dtype);
  /// A tensor of given strides (dense) with a storage of its own.
  Tensor empty_strided(const Shape& shape, const Shape& stride, DType dtype);
  /// A tensor over a storage that the program allocates without this runtime's doing: it is freed
  /// when its last tensor goes, as others are.
  Tensor adopt(std::uint32_t id, const Shape& shape, const Shape& stride, DType dtype);
  /// The program frees the tensor's storage without this runtime's doing.
  void disown(const Tensor& tensor);
  /// A view: it shares `base`'s storage and keeps the tensor itself alive, as PyTorch's views do
  /// even in backward, where it forbids adding gradients in place (variable.h,
  /// DifferentiableViewMeta).
  Tensor view_of(const Tensor& base, const Shape& shape, const Shape& stride);
  /// A tensor that shares `base`'s storage and nothing else (detach, _unsafe_view).
  Tensor alias_of(const Tensor& base, const Shape& shape, const Shape& stride);
  /// Gives `tensor` the storage of `onto` (tensor.data = a view of it); its own goes.
  void rebase(const Tensor& tensor, const Tensor& onto);
  /// tensor.data = data: the same tensor, its history and gradient kept, over other memory.
  void set_data(const Tensor& tensor, const Tensor& data);
  /// Takes the memory from under `tensor` and all that share its storage, and gives it memory
  /// again, of the current stream's pool (UntypedStorage.resize_ to 0 and back). Nothing where it
  /// is so already.
  void take_memory(const Tensor& tensor);
  void give_memory(const Tensor& tensor);
  /// Memory that is no tensor of the program: a kernel's scratch space.
  Tensor scratch(std::int64_t bytes);
  /// A tensor, or a number, on the host: it takes no bytes of the device.
  Tensor on_host(const Shape& shape, DType dtype);
  Tensor host_scalar(DType dtype) { return on_host(Shape{}, dtype); }

  /// A node of the autograd graph with `edges` places for inputs; sequence numbers ascend.
  NodeRef make_node(const char* kind, Backward backward, int edges);
  /// Sets where the gradient of `input` goes; nothing if it needs none.
  void connect(Node& node, int place, const Tensor& input);
  /// Makes `output` the node's next output.
  void attach(const NodeRef& node, const Tensor& output);

  /// Takes the library workspace of this thread, once (cuBLAS handle and stream).
  void use_blas();
  void release_blas_workspaces();

  /// The stream of that name, made when it is first asked for.
  std::uint8_t stream(const std::string& name);
  /// An event, not yet recorded.
  std::uint32_t make_event() { return program.events++; }
  void record_event(std::uint32_t event, std::uint8_t on);
  void wait_event(std::uint32_t event, std::uint8_t on);
  void host_wait(std::uint32_t event);
  /// `tensor` is used on `on` as well: its block, once freed, waits for that stream
  /// (Tensor.record_stream).
  void record_stream(const Tensor& tensor, std::uint8_t on);
  /// The communicator of these ranks, made when it is first asked for.
  std::uint32_t group(const std::vector<std::int32_t>& ranks);
  /// Queues an exchange on stream `on`, behind what the current stream has queued, and gives the
  /// event of its end; wait_event of it is Work.wait() (pytorch torch/csrc/distributed/c10d/
  /// ProcessGroupNCCL.cpp, collective). Module and direction are the label's.
  std::uint32_t exchange(Collective collective, std::uint8_t on);

  void mark(const std::string& phase, int step, bool live);
  void set_category(const Tensor& tensor, Category category);
  StorageInfo& info(const Tensor& tensor);
  std::uint32_t module_id(const std::string& path);
  /// Somebody wants to know what runs; where nobody does, nothing is gathered for it.
  bool watched() const { return record_computes || recorder; }
  /// An operator ran on the device. `cost` gives flops and the shape of a product; bytes are those
  /// of the tensors, each element read or written once, where it gives none. Module and direction
  /// are the label's. Becomes an instruction where computes are recorded.
  void ran(const char* kind, Tensors inputs, Tensors outputs, Compute cost = {});
  /// Kernels ran that the model's graph does not show (optimizers, fills, scratch work): for the
  /// time clock alone, in `launches` launches of one operator.
  void launched(const char* kind, DType dtype, double bytes, std::int64_t launches = 1);
  /// Index into the program's computes, of one that is there or is added.
  std::uint32_t compute_id(const Compute& compute) {
    return computes_.id_of(compute, program.computes);
  }
  /// A view was taken, which launches nothing.
  void viewed(const char* kind, const Tensor& input, const Tensor& output);

  void drop(Storage* storage);
  void drop(TensorBody* body);
  void drop(Node* node);
  bool grad_on() const { return grad_enabled; }

  /// A recomputation has made all that is needed (pytorch torch/utils/checkpoint.py,
  /// _StopRecomputationError): until resume() nothing is made, run or kept any more. The operator
  /// at work goes on to its end with tensors that take no memory; whoever runs operators one after
  /// another returns as soon as it sees stopped().
  void stop();
  /// Everything made since stop() must be gone.
  void resume();
  bool stopped() const { return stopped_; }

  Program program;
  DeviceTraits device;
  Label label;
  Autocast autocast;
  bool grad_enabled = true;
  bool autograd_thread = false;
  std::uint8_t current_stream = 0;  // storages come from its pool, operators run on it
  bool record_computes = false;
  bool linear_keeps_parameters = false;  // linear() saves its weight as it is (ZeRO-3)
  int backward_depth = 0;
  std::uint64_t next_sequence = 0;
  std::uint64_t pass = 0;
  std::vector<SavedTensorHooks*> hooks;
  OperatorMode* mode = nullptr;
  OperatorRecorder* recorder = nullptr;
  NodeWatcher* watcher = nullptr;
  std::function<void(TensorBody&)> after_accumulate;  // hook of every trainable parameter, if any
  /// Run when the innermost backward pass has ended, once (engine.h, queue_callback).
  std::vector<std::function<void()>> final_callbacks;
  bool meta = false;  // tensors get no memory: torch.device("meta")

 private:
  Storage* new_storage(std::int64_t bytes);
  TensorBody* new_body(const Shape& shape, const Shape& stride, DType dtype, Storage* storage);
  void emit(Action action, std::uint8_t on, std::uint32_t id) {
    if (!stopped_) program.instructions.push_back({action, on, id});
  }

  ComputeTable computes_;
  Pool<Storage> storages_;
  Pool<TensorBody> bodies_;
  Pool<Node> nodes_;
  std::vector<NodeRef> dropped_;  // edges of dropped nodes, while dropping_
  bool dropping_ = false;
  Tensor blas_workspace_[2];  // of the main thread and of autograd's
  bool closing_ = false;
  bool stopped_ = false;
  std::size_t storages_at_stop_ = 0;
};

/// Sets a member for the length of a scope.
template <class T>
class Scoped {
 public:
  Scoped(T& place, T value) : place_(place), old_(std::exchange(place, std::move(value))) {}
  ~Scoped() { place_ = std::move(old_); }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  T& place_;
  T old_;
};

}  // namespace shardfit::tensor
