#include "graph/operator_kinds.h"

#include <algorithm>
#include <array>

namespace shardfit::graph {
namespace {

constexpr const char* binary = "BinaryOps.cpp";
constexpr const char* unary = "UnaryOps.cpp";
constexpr const char* shape = "TensorShape.cpp";
constexpr const char* reduction = "ReduceOps.cpp";

constexpr auto kinds = std::to_array<OperatorKind>({
    {"add", "a + b, or a number", Saves::nothing, "nothing", binary},
    {"sub", "a - b", Saves::nothing, "nothing", binary},
    {"mul", "a * b, or a number", Saves::operands,
     "a where b wants a gradient, b where a does; nothing with a number", binary},
    {"div", "a / b, or a number", Saves::operands,
     "b, and a where b wants a gradient; nothing with a number", binary},
    {"pow", "a ** number, or number ** a", Saves::input, "its input", "Pow.cpp"},
    {"reciprocal", "1 / a", Saves::result, "its result", unary},
    {"neg", "-a", Saves::nothing, "nothing", unary},
    {"rsqrt", "1 / sqrt(a)", Saves::result, "its result", unary},
    {"sqrt", "sqrt(a)", Saves::result, "its result", unary},
    {"exp", "exp(a)", Saves::result, "its result", unary},
    {"tanh", "tanh(a)", Saves::result, "its result", unary},
    {"sigmoid", "1 / (1 + exp(-a))", Saves::result, "its result", unary},
    {"relu", "max(a, 0)", Saves::result, "its result", "Activation.cpp"},
    {"silu", "a * sigmoid(a)", Saves::input, "its input", "Activation.cpp"},
    {"gelu", "a * the normal distribution's function", Saves::input, "its input", "Activation.cpp"},
    {"bloom_gelu", "Bloom's own gelu, one autograd function", Saves::input, "its input",
     "Activation.cpp"},
    {"cos", "cos(a)", Saves::input, "its input", unary},
    {"sin", "sin(a)", Saves::input, "its input", unary},
    {"compare", "a comparison: bool", Saves::nothing, "nothing", binary},
    {"isneginf", "where a is -inf", Saves::nothing, "nothing", "TensorCompare.cpp"},
    {"and", "both are true", Saves::nothing, "nothing", binary},
    {"abs", "|a|", Saves::input, "its input", unary},
    {"sgn", "the sign of a", Saves::nothing, "nothing", unary},
    {"log", "the natural logarithm", Saves::input, "its input", unary},
    {"minimum", "the smaller of a and b", Saves::nothing, "nothing", binary},
    {"floor_divide", "a // b", Saves::nothing, "nothing", binary},
    {"complex_mul", "complex numbers times constants", Saves::operands, "the constants", binary},
    {"conj", "complex conjugates", Saves::nothing, "nothing", unary},
    {"as_real", "complex numbers seen as pairs", Saves::nothing, "nothing", "ComplexHelper.h"},
    {"copy", "written over a part of another tensor", Saves::nothing, "nothing", "Copy.cpp"},
    {"gather", "places picked along a dimension", Saves::input, "the indices",
     "TensorAdvancedIndexing.cpp"},
    {"topk", "the largest values and their places", Saves::result, "the places", "Sorting.cpp"},
    {"sort", "values in order and their places", Saves::nothing, "nothing", "Sorting.cpp"},
    {"grouped_mm", "matrix products of groups of rows", Saves::operands,
     "rows, matrices and where groups end", "cuda/GroupedBlas.cpp"},
    {"convolution", "a convolution", Saves::operands, "its input; the weight is a parameter",
     "Convolution.cpp"},
    {"invert", "not a", Saves::nothing, "nothing", unary},
    {"tril", "the lower triangle", Saves::nothing, "nothing", "TriangularOps.cpp"},
    {"where", "condition ? a : b", Saves::mask, "the condition", "TensorCompare.cpp"},
    {"masked_fill", "a number where the mask is set", Saves::mask, "the mask",
     "TensorAdvancedIndexing.cpp"},
    {"dropout", "zeros at random, the rest scaled", Saves::mask,
     "a mask of one byte an element; nothing at rate 0", "Dropout.cpp"},
    {"to", "another dtype", Saves::nothing, "nothing", "TensorConversions.cpp"},
    {"clone", "a copy", Saves::nothing, "nothing", "TensorFactories.cpp"},
    {"zeros_like", "zeros of the same shape", Saves::nothing, "nothing", "TensorFactories.cpp"},
    {"view", "another shape on the same memory", Saves::nothing, "nothing", shape},
    {"unsafe_view", "a view that does not count as one", Saves::nothing, "nothing", shape},
    {"transpose", "two dimensions change places", Saves::nothing, "nothing", shape},
    {"permute", "dimensions in another order", Saves::nothing, "nothing", shape},
    {"unsqueeze", "a dimension of size 1 more", Saves::nothing, "nothing", shape},
    {"squeeze", "a dimension of size 1 less", Saves::nothing, "nothing", shape},
    {"expand", "a dimension of size 1 repeated", Saves::nothing, "nothing", shape},
    {"slice", "a range of one dimension", Saves::nothing, "nothing", shape},
    {"select", "one place of a dimension", Saves::nothing, "nothing", shape},
    {"split", "one of the parts of a dimension", Saves::nothing, "nothing", shape},
    {"cat", "tensors joined", Saves::nothing, "nothing", shape},
    {"pad", "zeros behind the last dimension", Saves::nothing, "nothing", "PadNd.cpp"},
    {"sum", "the sum over dimensions", Saves::nothing, "nothing", reduction},
    {"mean", "the mean over dimensions", Saves::nothing, "nothing", reduction},
    {"norm", "the 2-norm over a dimension", Saves::nothing, "nothing", "LinearAlgebra.cpp"},
    {"cumsum", "running sums", Saves::nothing, "nothing", reduction},
    {"all", "whether all are true", Saves::nothing, "nothing", reduction},
    {"mm", "a matrix product", Saves::operands,
     "each matrix where the other wants a gradient (under autocast the cast ones)",
     "LinearAlgebra.cpp"},
    {"addmm", "a matrix product plus a bias", Saves::operands, "as mm; of the bias nothing",
     "LinearAlgebra.cpp"},
    {"bmm", "a batch of matrix products", Saves::operands, "as mm", "LinearAlgebra.cpp"},
    {"baddbmm", "a batch of matrix products plus a tensor", Saves::operands, "as mm",
     "LinearAlgebra.cpp"},
    {"tile", "a tensor repeated", Saves::nothing, "nothing", shape},
    {"alias", "the same tensor under another name", Saves::nothing, "nothing", shape},
    {"layer_norm", "LayerNorm", Saves::several,
     "its input, and mean and 1 / deviation of each row in fp32", "cuda/layer_norm_kernel.cu"},
    {"rms_norm", "RMSNorm in one kernel", Saves::several,
     "its input, and 1 / rms of each row in fp32", "cuda/layer_norm_kernel.cu"},
    {"softmax", "softmax over a dimension", Saves::result, "its result", "SoftMax.cpp"},
    {"log_softmax", "log of the softmax", Saves::result, "its result", "SoftMax.cpp"},
    {"flash_attention", "attention without the matrix of scores", Saves::several,
     "query, key, value, output, 4 bytes a row and head (log-sum-exp), 24 bytes of random state",
     "transformers/cuda/flash_attn/flash_api.cpp"},
    {"efficient_attention", "memory-efficient attention, masks too", Saves::several,
     "as flash, with rows rounded up to 32, and the mask", "transformers/cuda/attention.cu"},
    {"embedding", "rows looked up in a table", Saves::input, "the indices", "Embedding.cpp"},
    {"index", "places picked by index tensors", Saves::input, "the index",
     "TensorAdvancedIndexing.cpp"},
    {"nll_loss", "minus the log-probability of the targets", Saves::several,
     "its input (log_softmax's result), the targets and one number", "LossNLL.cpp"},
    {"mse_loss", "the mean squared difference", Saves::input, "both inputs", "Loss.cpp"},
});

}  // namespace

std::span<const OperatorKind> operator_kinds() { return kinds; }

const OperatorKind* find_operator_kind(const std::string& name) {
  const auto* it = std::find_if(kinds.begin(), kinds.end(),
                                [&](const OperatorKind& kind) { return name == kind.name; });
  return it == kinds.end() ? nullptr : &*it;
}

}  // namespace shardfit::graph
