// The functions of the model language that only a training program has; each is handed to the host.

#include "model/code.h"
#include "model/machine.h"

namespace shardfit::model {
namespace {

template <std::size_t n>
struct Name {
  char text[n];
  constexpr Name(const char (&s)[n]) {
    for (std::size_t i = 0; i < n; ++i) text[i] = s[i];
  }
};

template <Name name>
Value hand_over(Machine& machine, Value* arguments) {
  if (!machine.host) throw std::runtime_error("only a training program can do this");
  return machine.host->run(name.text, arguments);
}

}  // namespace

const std::vector<BuiltinRow>& host_table();
const std::vector<BuiltinRow>& host_table() {
  static const std::vector<BuiltinRow> table = {
      {"model", {"a", "b", "c", "d", "e"}, 0, hand_over<"model">},
      {"phase", {"name"}, 1, hand_over<"phase">},
      {"backward", {"loss"}, 1, hand_over<"backward">},
      {"clip", {}, 0, hand_over<"clip">},
      {"unscale", {}, 0, hand_over<"unscale">},
      {"scale", {"loss"}, 1, hand_over<"scale">},
      {"construct_optimizer", {}, 0, hand_over<"construct_optimizer">},
      {"optimizer_step", {}, 0, hand_over<"optimizer_step">},
      {"zero_grad", {}, 0, hand_over<"zero_grad">},
      {"autocast", {}, 0, hand_over<"autocast">},
      {"init_buffers", {}, 0, hand_over<"init_buffers">},
      // Of tensor and pipeline parallel programs.
      {"lookup_vocabulary", {"weight", "ids"}, 2, hand_over<"lookup_vocabulary">},
      {"parallel_linear", {"x", "weight", "bias", "column"}, 4, hand_over<"parallel_linear">},
      {"into_tensor_parallel", {"x"}, 1, hand_over<"into_tensor_parallel">},
      {"from_tensor_parallel", {"x"}, 1, hand_over<"from_tensor_parallel">},
      {"reduce_tensor_parallel", {"x"}, 1, hand_over<"reduce_tensor_parallel">},
      {"await_exchange", {"x"}, 1, hand_over<"await_exchange">},
      {"column_input", {"x"}, 1, hand_over<"column_input">},
      {"gather_vocabulary", {"x"}, 1, hand_over<"gather_vocabulary">},
      {"split_sequence", {"x"}, 1, hand_over<"split_sequence">},
      {"vocabulary_loss", {"logits", "labels"}, 2, hand_over<"vocabulary_loss">},
      {"shared_buffer", {"shape", "dtype"}, 2, hand_over<"shared_buffer">},
      {"rotary_table", {"frequencies", "length"}, 2, hand_over<"rotary_table">},
      // Of experts spread over ranks.
      {"router_linear", {"x", "weight"}, 2, hand_over<"router_linear">},
      {"exchange_rows", {"x", "received", "busiest"}, 3, hand_over<"exchange_rows">},
      {"gather_counts", {"counts"}, 1, hand_over<"gather_counts">},
      {"send_to_host", {"x"}, 1, hand_over<"send_to_host">},
      {"keep", {"name", "x", "once"}, 2, hand_over<"keep">},
      {"stage_input", {}, 0, hand_over<"stage_input">},
      {"pipeline_step", {"tokens", "labels"}, 2, hand_over<"pipeline_step">},
      {"forward_backward", {}, 0, hand_over<"forward_backward">},
  };
  return table;
}

}  // namespace shardfit::model
