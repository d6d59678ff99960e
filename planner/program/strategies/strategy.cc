#include "program/strategy.h"

#include "program/clip.h"

namespace shardfit::program {

tensor::Tensor Strategy::clip(const std::vector<tensor::Tensor>& parameters, bool foreach) {
  return clip_gradients(parameters, foreach);
}

}  // namespace shardfit::program
