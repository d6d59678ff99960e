#pragma once
// Optimizers: the states they keep and the temporaries of a step, in the order in which torch.optim
// makes them. One optimizer a file in optimizers/, one row in the table.

#include <memory>
#include <string>
#include <vector>

#include "tensor/runtime.h"

namespace shardfit::program {

/// How torch.optim runs a step: all parameters at once, one by one, or in one kernel.
enum class Implementation : std::uint8_t { foreach, for_loop, fused };

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// What the constructor allocates.
  virtual void construct(const std::vector<tensor::Tensor>&) {}
  /// One step over the parameters that have a gradient.
  virtual void step(const std::vector<tensor::Tensor>& parameters) = 0;
};

struct OptimizerRow {
  const char* name;
  const char* summary;
  std::unique_ptr<Optimizer> (*make)(Implementation implementation);
};
/// The table of optimizers.
const std::vector<OptimizerRow>& optimizer_table();
/// Null where the name is unknown; "none" gives an optimizer that does nothing.
std::unique_ptr<Optimizer> make_optimizer(const std::string& name, Implementation implementation);

std::unique_ptr<Optimizer> make_adamw(Implementation implementation);
std::unique_ptr<Optimizer> make_adamw_amsgrad(Implementation implementation);
std::unique_ptr<Optimizer> make_sgd(Implementation implementation);
std::unique_ptr<Optimizer> make_sgd_momentum(Implementation implementation);
std::unique_ptr<Optimizer> make_adagrad(Implementation implementation);
std::unique_ptr<Optimizer> make_rmsprop(Implementation implementation);
std::unique_ptr<Optimizer> make_adafactor(Implementation implementation);
std::unique_ptr<Optimizer> make_transformers_adafactor(Implementation implementation);

/// A state tensor: laid out as `like`, counted as optimizer state.
tensor::Tensor state_like(const tensor::Tensor& like);
tensor::Tensor state_of(tensor::Runtime& runtime, const tensor::Shape& shape, DType dtype);
/// Parameters that have a gradient, in groups of one dtype, in torch's order.
std::vector<std::vector<tensor::Tensor>> dtype_groups(
    const std::vector<tensor::Tensor>& parameters);
/// A foreach operator ran over lists of which `list` is one: `depth` lists, `passes` elements read
/// or written for each of the list's. The kernel's arguments bound what one launch can take
/// (aten/src/ATen/native/cuda/MultiTensorApply.cuh).
void foreach_ran(const char* kind, const std::vector<tensor::Tensor>& list, int depth,
                 double passes);
/// Operators on single tensors that allocate nothing: so many, of so many passes in all, for each
/// tensor of the list that has a gradient.
void each_ran(const char* kind, const std::vector<tensor::Tensor>& list, int operators,
              double passes);
/// One tensor like each of the list: a foreach operator's result.
std::vector<tensor::Tensor> list_like(const std::vector<tensor::Tensor>& list, const char* kind);

}  // namespace shardfit::program
