#pragma once
// What the sharding strategies share: ranks in a row, and where a model holds a tensor.

#include <cstdint>
#include <utility>
#include <vector>

#include "model/machine.h"
#include "program/strategy.h"

namespace shardfit::program {

/// Where a model holds a tensor: tied parameters have several places.
struct Place {
  model::Module* module;
  std::size_t index;
};

/// Where a model holds its tensors, looked up once for all of them.
class ModelPlaces {
 public:
  explicit ModelPlaces(model::Machine& machine);
  /// Of a tensor that the model has held since.
  std::vector<Place> of(const tensor::Tensor& tensor) const;
  /// Modules that have buffers.
  const std::vector<const model::Module*>& with_buffers() const { return with_buffers_; }

 private:
  std::vector<std::pair<const tensor::TensorBody*, Place>> places_;  // by tensor
  std::vector<const model::Module*> with_buffers_;
};

/// Whether a module is `top` or in it.
bool is_below(const model::Module& module, const model::Module& top);

/// Takes what was built on the host to the device before it is sharded: these parameters, then the
/// buffers below the modules, one by one. What is there already stays.
void move_to_device(tensor::Runtime& runtime, const ModelPlaces& places,
                    const std::vector<model::Parameter>& parameters,
                    const std::vector<const model::Module*>& modules);

/// Ranks that share something, this rank's position among them.
struct Mesh {
  std::vector<std::int32_t> ranks;
  std::int64_t rank = 0;
  std::int64_t size() const { return static_cast<std::int64_t>(ranks.size()); }
};
/// `count` ranks from `first`, every `step`-th.
Mesh mesh_of(std::int64_t first, std::int64_t count, std::int64_t step, std::int64_t rank);

/// Queues an exchange of `whole` on the current stream; the event of its end.
std::uint32_t exchange(tensor::Runtime& runtime, CollectiveKind kind, const tensor::Tensor& whole,
                       const Mesh& mesh);
/// The same on the communicator's own stream.
std::uint32_t exchange_aside(tensor::Runtime& runtime, CollectiveKind kind,
                             const tensor::Tensor& whole, const Mesh& mesh);

/// Floating tensors of a value in `dtype`; a list that changes is another list.
void cast_tensors(model::Value& value, DType dtype);
/// The same of several.
void cast_tensors(model::Value* values, std::size_t count, DType dtype);

/// A kernel ran that reads `from` and writes `to`; with no `to`, it writes as much as it reads
/// where `passes` is 2.
void copied(tensor::Runtime& runtime, const char* kind, const std::vector<tensor::Tensor>& from,
            const std::vector<tensor::Tensor>& to, int passes = 1);

/// Visits every tensor of a value that needs a gradient.
template <class Visit>
void each_gradient_tensor(model::Value& value, const Visit& visit) {
  if (value.kind == model::ValueKind::tensor && value.tensor.requires_grad()) visit(value.tensor);
  if (value.kind == model::ValueKind::list) {
    for (model::Value& item : *value.list) each_gradient_tensor(item, visit);
  }
}

}  // namespace shardfit::program
