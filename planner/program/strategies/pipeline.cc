#include "program/strategies/pipeline.h"

#include "program/strategies/pipeline_stage.h"
#include "tensor/engine.h"
#include "tensor/ops.h"

namespace shardfit::program {

using model::ValueList;
using tensor::Runtime;
using tensor::Shape;
using tensor::Tensor;

StageRun::StageRun(Runtime& runtime, const StageSettings& settings, StageProgram& program,
                   PassCopier& copier)
    : runtime_(runtime),
      shape_(settings.shape),
      program_(program),
      exchange_(runtime, settings.ranks, settings.shape.stage, settings.exchanged, settings.dtype),
      copier_(copier) {}

ValueList StageRun::run() {
  const Tensor total_tokens = runtime_.empty({}, DType::i32);
  copier_.forget();
  passes();
  return std::move(reports_);
}

Tensor StageRun::forward_step(std::int64_t chunk, const Tensor& input, Tensor& tokens) {
  StageProgram::Result result = program_.forward(chunk, input);
  if (!result.report.is_none()) reports_.push_back(std::move(result.report));
  tokens = std::move(result.tokens);
  return std::move(result.output);
}

Tensor StageRun::backward_step(const Tensor& input, Tensor& output, const Tensor& gradient) {
  if (!gradient) output = tensor::mul(program_.loss_scale(), output);
  const Tensor start = gradient ? gradient : runtime_.empty(output.shape(), output.dtype());
  tensor::run_backward(output, start);
  return input ? input->grad : Tensor();
}

void StageRun::empty_output(const Tensor& output) {
  if (!output) return;
  const Tensor one = runtime_.empty(Shape{1}, output.dtype());
  runtime_.rebase(output, one);
  output->shape = Shape{1};
  output->stride = Shape{1};
}

namespace {

/// forward_backward_no_pipelining
class AloneRun : public StageRun {
 public:
  using StageRun::StageRun;

 protected:
  void passes() override {
    Tensor output, tokens;
    for (std::int64_t m = 0; m < shape_.micro_batches; ++m) {
      copier_.begin();
      Tensor fresh_tokens;
      Tensor fresh = forward_step(0, {}, fresh_tokens);
      output = std::move(fresh);
      tokens = std::move(fresh_tokens);
      Tensor scaled = output;  // the caller's own name keeps the loss
      backward_step({}, scaled, {});
      scaled.reset();
      m += copier_.end(shape_.micro_batches - 1 - m);
    }
    program_.finalize();
  }
};

/// forward_backward_pipelining_without_interleaving
class OneChunkRun : public StageRun {
 public:
  using StageRun::StageRun;

 protected:
  void passes() override {
    const std::int64_t warmup = warmup_passes(shape_);
    const std::int64_t steady = shape_.micro_batches - warmup;
    for (std::int64_t i = 0; i < warmup; ++i) {
      input_ = exchange_.receive_forward(first_stage());
      forward();
      exchange_.send_forward(output_, last_stage());
      keep();
    }
    if (steady > 0) input_ = exchange_.receive_forward(first_stage());
    for (std::int64_t i = 0; i < steady; ++i) {
      copier_.begin();
      forward();
      output_gradient_ = exchange_.send_forward_receive_backward(output_, last_stage());
      keep();
      take();
      input_gradient_ = backward_step(input_, output_, output_gradient_);
      if (i + 1 == steady) {
        input_.reset();
        exchange_.send_backward(input_gradient_, first_stage());
      } else {
        input_ = exchange_.send_backward_receive_forward(input_gradient_, first_stage());
      }
      i += copier_.end(steady - 1 - i);
    }
    for (std::int64_t i = 0; i < warmup; ++i) {
      take();
      output_gradient_ = exchange_.receive_backward(last_stage());
      input_gradient_ = backward_step(input_, output_, output_gradient_);
      exchange_.send_backward(input_gradient_, first_stage());
    }
    program_.finalize();
  }

 private:
  void forward() {
    Tensor fresh_tokens;
    Tensor fresh = forward_step(0, input_, fresh_tokens);
    output_ = std::move(fresh);
    tokens_ = std::move(fresh_tokens);
  }
  void keep() {
    inputs_.push_back(input_);
    outputs_.push_back(output_);
    empty_output(output_);
  }
  void take() {
    input_ = std::move(inputs_.front());
    inputs_.pop_front();
    output_ = std::move(outputs_.front());
    outputs_.pop_front();
  }

  std::deque<Tensor> inputs_, outputs_;
  Tensor input_, output_, output_gradient_, input_gradient_, tokens_;
};

}  // namespace

ValueList run_pipeline_step(Runtime& runtime, const StageSettings& settings, StageProgram& program,
                            PassCopier& copier) {
  if (settings.shape.stages == 1) return AloneRun(runtime, settings, program, copier).run();
  if (settings.shape.chunks == 1) return OneChunkRun(runtime, settings, program, copier).run();
  return InterleavedRun(runtime, settings, program, copier).run();
}

}  // namespace shardfit::program
