#pragma once
// The node that stands for a copied block.

#include "program/block_copier.h"

namespace shardfit::program {

/// What the block's nodes would hold beyond the program: nothing is freed by dropping it once the
/// copied backward has run.
struct BlockCopier::Held : tensor::NodeExtra {
  BlockCopier* copier = nullptr;
  Call* call = nullptr;
  tensor::Tensor input, output;  // empty where no node holds them
  bool ran = false;
  std::shared_ptr<bool> lost;
  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() override {
    if (!ran) *lost = true;
  }
};

}  // namespace shardfit::program
