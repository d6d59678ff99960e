#include "program/strategies/pipeline.h"

#include <deque>

#include "program/strategies/pipeline_exchange.h"
#include "tensor/engine.h"
#include "tensor/ops.h"

namespace shardfit::program {
namespace {

using model::ValueList;
using tensor::Runtime;
using tensor::Scoped;
using tensor::Shape;
using tensor::Tensor;

/// The passes of a stage with what they keep; names that hold tensors longer than they need to are
/// schedules.py's own.
class Stage {
 public:
  Stage(Runtime& runtime, const StageSettings& settings, StageProgram& program)
      : runtime_(runtime),
        shape_(settings.shape),
        program_(program),
        exchange_(runtime, settings.ranks, settings.shape.stage, settings.exchanged,
                  settings.dtype) {}

  ValueList run() {
    total_tokens_ = runtime_.empty({}, DType::i32);
    if (shape_.stages == 1) {
      alone();
    } else if (shape_.chunks == 1) {
      one_chunk();
    } else {
      several_chunks();
    }
    return std::move(reports_);
  }

 private:
  bool first_stage() const { return shape_.stage == 0; }
  bool last_stage() const { return shape_.stage == shape_.stages - 1; }

  /// schedules.py, forward_step
  Tensor forward_step(std::int64_t chunk, const Tensor& input, Tensor& tokens) {
    StageProgram::Result result = program_.forward(chunk, input);
    if (!result.report.is_none()) reports_.push_back(std::move(result.report));
    tokens = std::move(result.tokens);
    return std::move(result.output);
  }

  /// backward_step with custom_backward: the gradient of the input, if there is one. The scaled
  /// loss takes the place of the loss.
  Tensor backward_step(const Tensor& input, Tensor& output, const Tensor& gradient) {
    if (!gradient) output = tensor::mul(program_.loss_scale(), output);
    const Tensor start = gradient ? gradient : runtime_.empty(output.shape(), output.dtype());
    tensor::run_backward(output, start);
    return input ? input->grad : Tensor();
  }

  /// deallocate_output_tensor: what was sent on is only needed for its history.
  void empty_output(const Tensor& output) {
    if (!output) return;
    const Tensor one = runtime_.empty(Shape{1}, output.dtype());
    runtime_.rebase(output, one);
    output->shape = Shape{1};
    output->stride = Shape{1};
  }

  /// forward_backward_no_pipelining
  void alone() {
    Tensor output, tokens;
    for (std::int64_t m = 0; m < shape_.micro_batches; ++m) {
      Tensor fresh_tokens;
      Tensor fresh = forward_step(0, {}, fresh_tokens);
      output = std::move(fresh);
      tokens = std::move(fresh_tokens);
      Tensor scaled = output;  // the caller's own name keeps the loss
      backward_step({}, scaled, {});
    }
    program_.finalize();
  }

  /// forward_backward_pipelining_without_interleaving
  void one_chunk() {
    const std::int64_t warmup = warmup_passes(shape_);
    const std::int64_t steady = shape_.micro_batches - warmup;
    std::deque<Tensor> inputs, outputs;
    Tensor input, output, output_gradient, input_gradient, tokens;
    const auto forward = [&] {
      Tensor fresh_tokens;
      Tensor fresh = forward_step(0, input, fresh_tokens);
      output = std::move(fresh);
      tokens = std::move(fresh_tokens);
    };
    const auto keep = [&] {
      inputs.push_back(input);
      outputs.push_back(output);
      empty_output(output);
    };
    const auto take = [&] {
      input = std::move(inputs.front());
      inputs.pop_front();
      output = std::move(outputs.front());
      outputs.pop_front();
    };
    for (std::int64_t i = 0; i < warmup; ++i) {
      input = exchange_.receive_forward(first_stage());
      forward();
      exchange_.send_forward(output, last_stage());
      keep();
    }
    if (steady > 0) input = exchange_.receive_forward(first_stage());
    for (std::int64_t i = 0; i < steady; ++i) {
      forward();
      output_gradient = exchange_.send_forward_receive_backward(output, last_stage());
      keep();
      take();
      input_gradient = backward_step(input, output, output_gradient);
      if (i + 1 == steady) {
        input.reset();
        exchange_.send_backward(input_gradient, first_stage());
      } else {
        input = exchange_.send_backward_receive_forward(input_gradient, first_stage());
      }
    }
    for (std::int64_t i = 0; i < warmup; ++i) {
      take();
      output_gradient = exchange_.receive_backward(last_stage());
      input_gradient = backward_step(input, output, output_gradient);
      exchange_.send_backward(input_gradient, first_stage());
    }
    program_.finalize();
  }

  void several_chunks();

  Runtime& runtime_;
  const PipelineShape& shape_;
  StageProgram& program_;
  PipelineExchange exchange_;
  ValueList reports_;
  Tensor total_tokens_;
};

/// forward_backward_pipelining_with_interleaving, sends and receives of the steady phase overlapped
/// with passes (overlap_p2p_comm), those of warm-up and flush not.
void Stage::several_chunks() {
  const std::vector<PipelinePass> order = forward_order(shape_);
  const auto total = static_cast<std::int64_t>(order.size());
  const std::int64_t warmup = warmup_passes(shape_);
  const std::int64_t steady = total - warmup;
  const std::int64_t chunks = shape_.chunks;
  std::vector<std::deque<Tensor>> inputs(static_cast<std::size_t>(chunks));
  auto outputs = inputs;
  auto output_gradients = inputs;
  Tensor output, input_gradient, received_input, received_gradient;
  Tensor forward_buffer, backward_buffer;
  // A handle holds what it sends or receives as long as it is held itself
  // (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, pointToPoint: a work's outputs).
  std::deque<Tensor> awaited;

  const auto chunk_of = [&](std::int64_t pass, bool forward) {
    const std::int64_t chunk = order[static_cast<std::size_t>(pass % total)].chunk;
    return forward ? chunk : chunks - 1 - chunk;
  };
  const auto of = [](std::vector<std::deque<Tensor>>& lists,
                     std::int64_t chunk) -> std::deque<Tensor>& {
    return lists[static_cast<std::size_t>(chunk)];
  };
  const auto enters = [&](std::int64_t chunk) { return chunk == 0 && first_stage(); };
  const auto leaves = [&](std::int64_t chunk) { return chunk == chunks - 1 && last_stage(); };
  // recv_tensor_from_previous_stage: whether something comes for a later pass, and for which chunk.
  const auto coming = [&](std::int64_t pass, bool forward) -> std::optional<std::int64_t> {
    const bool leading = forward ? first_stage() : last_stage();
    if (!leading) return chunk_of(pass + 1, forward);
    if (pass < shape_.stages - 1) return std::nullopt;
    const std::int64_t chunk = chunk_of(pass - (shape_.stages - 1), forward);
    if (chunk == (forward ? chunks - 1 : 0)) return std::nullopt;
    return chunk + (forward ? 1 : -1);
  };
  std::vector<std::int64_t> begun(static_cast<std::size_t>(chunks), 0);
  std::vector<std::int64_t> ended(static_cast<std::size_t>(chunks), 0);

  const auto forward = [&](std::int64_t pass) {
    const std::int64_t chunk = chunk_of(pass, true);
    const auto c = static_cast<std::size_t>(chunk);
    if (enters(chunk) && inputs[c].size() == outputs[c].size()) inputs[c].emplace_back();
    const Tensor input = inputs[c][static_cast<std::size_t>(begun[c] - ended[c])];
    ++begun[c];
    Tensor tokens;
    Tensor made = forward_step(chunk, input, tokens);
    outputs[c].push_back(made);
    return made;
  };
  const auto backward = [&](std::int64_t pass) {
    const std::int64_t chunk = chunk_of(pass, false);
    const auto c = static_cast<std::size_t>(chunk);
    if (leaves(chunk) && output_gradients[c].empty()) output_gradients[c].emplace_back();
    const Tensor input = std::move(inputs[c].front());
    inputs[c].pop_front();
    const Tensor made = std::move(outputs[c].front());
    outputs[c].pop_front();
    const Tensor gradient = std::move(output_gradients[c].front());
    output_gradients[c].pop_front();
    ++ended[c];
    Tensor scaled = made;
    return backward_step(input, scaled, gradient);
  };

  of(inputs, 0).push_back(exchange_.receive_forward(first_stage()));
  for (std::int64_t k = 0; k < warmup; ++k) {
    std::optional<std::int64_t> next = coming(k, true);
    if (k == total - 1) next.reset();
    output = forward(k);
    if (leaves(chunk_of(k, true))) output.reset();
    received_input = exchange_.send_forward_receive_forward(output, next.has_value());
    if (next) of(inputs, *next).push_back(received_input);
    empty_output(output);
    if (k == warmup - 1 && steady > 0) {
      backward_buffer = exchange_.overlapped_backward({}, !last_stage());
      if (!last_stage()) awaited.push_back(backward_buffer);
      if (!last_stage()) of(output_gradients, chunks - 1).push_back(backward_buffer);
    }
  }
  for (std::int64_t k = 0; k < steady; ++k) {
    const std::int64_t pass = k + warmup;
    if (!enters(chunk_of(pass, true))) exchange_.await_forward();
    empty_output(output);
    Tensor made = forward(pass);
    if (leaves(chunk_of(pass, true))) made.reset();
    std::optional<std::int64_t> next = coming(pass, true);
    if (k == steady - 1) next.reset();
    forward_buffer = exchange_.overlapped_forward(made, next.has_value());
    if (next) {
      of(inputs, *next).push_back(forward_buffer);
      forward_buffer.reset();
    }
    if (!leaves(chunk_of(k, false)) && !awaited.empty()) {
      exchange_.await_backward();
      awaited.pop_front();
    }
    Tensor gradient = backward(k);
    if (enters(chunk_of(k, false))) gradient.reset();
    const std::optional<std::int64_t> next_backward = coming(k, false);
    backward_buffer = exchange_.overlapped_backward(gradient, next_backward.has_value());
    if (next_backward) {
      awaited.push_back(backward_buffer);
      of(output_gradients, *next_backward).push_back(backward_buffer);
      backward_buffer.reset();
    }
    output = std::move(made);
    input_gradient = std::move(gradient);
  }
  empty_output(output);
  const Tensor last_sent = steady > 0 ? input_gradient : Tensor();
  Tensor last_awaited;
  if (steady == 0) {
    of(output_gradients, chunks - 1).push_back(exchange_.receive_backward(last_stage()));
  }
  for (std::int64_t k = steady; k < total; ++k) {
    std::optional<std::int64_t> next = coming(k, false);
    if (k == total - 1) next.reset();
    if (!leaves(chunk_of(k, false)) && k != 0 && !awaited.empty()) {
      exchange_.await_backward();
      last_awaited = std::move(awaited.front());
      awaited.pop_front();
    }
    Tensor gradient = backward(k);
    input_gradient = std::move(gradient);
    if (enters(chunk_of(k, false))) input_gradient.reset();
    received_gradient = exchange_.send_backward_receive_backward(input_gradient, next.has_value());
    if (next) of(output_gradients, *next).push_back(received_gradient);
  }
  program_.finalize();
}

}  // namespace

ValueList run_pipeline_step(Runtime& runtime, const StageSettings& settings,
                            StageProgram& program) {
  return Stage(runtime, settings, program).run();
}

}  // namespace shardfit::program
