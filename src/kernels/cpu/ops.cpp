#include "kernels/cpu/ops.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/philox.h"
#include "core/random.h"
#include "kernels/cpu/cascade_sum.h"
#include "kernels/cpu/product.h"
#include "kernels/loop_ops.h"

namespace barestep {
namespace {

/// Biases are summed as SumRows sums them.
static_assert(kLinearAdamTileRows % kSumColumns == 0);

/// An op with its addresses.
struct BoundUpdate {
  const LinearAdam& op;
  const Addresses& addresses;
  AdamConstants constants{op};
  AdamScalars scalars{constants, addresses.at(op.scalars),
                      op.clip ? addresses.at(*op.clip) : nullptr};

  /// False when the library failed.
  bool gradient(const Product& product, const Tile& tile, float* grads) const {
    const std::int64_t rows = op.x.rows;
    if (rows == 0) {
      std::fill_n(grads, tile.rows * tile.cols, 0.0F);
      return true;
    }
    const float* const grad_y = addresses.at(op.grad_y) + tile.row;
    const float* const x = addresses.at(op.x) + tile.col;
    announce_read(grad_y, rows, tile.rows, op.grad_y.cols);
    announce_read(x, rows, tile.cols, op.x.cols);
    return product.multiply({.transpose_a = true,
                             .transpose_b = false,
                             .m = tile.rows,
                             .n = tile.cols,
                             .k = rows,
                             .a = grad_y,
                             .stride_a = op.grad_y.cols,
                             .b = x,
                             .stride_b = op.x.cols,
                             .beta = 0,
                             .c = grads,
                             .stride_c = tile.cols});
  }

  void update_weights(const Tile& tile, const float* grads) const {
    for (std::int64_t row = 0; row < tile.rows; ++row) {
      const std::int64_t first = (tile.row + row) * op.weight.cols + tile.col;
      const UpdateElement<AdamRule<false>> element{
          addresses.at(op.weight) + first,
          grads + row * tile.cols,
          {{addresses.at(op.weight_moments1) + first, addresses.at(op.weight_moments2) + first}},
          {constants},
          scalars};
      for (std::int64_t col = 0; col < tile.cols; ++col) element(col);
    }
  }

  void update_biases(const Tile& tile) const {
    float* const bias = addresses.at(op.bias);
    float* const moments1 = addresses.at(op.bias_moments1);
    float* const moments2 = addresses.at(op.bias_moments2);
    sum_columns(addresses.at(op.grad_y), op.grad_y.rows, op.grad_y.cols, tile.row,
                tile.row + tile.rows, [&](std::int64_t i, float sum) {
                  adam_step(constants, scalars, sum, bias[i], moments1[i], moments2[i]);
                });
  }
};

}  // namespace

Gemm weight_gradient_of(const LinearAdam& op) {
  return {.c = op.weight, .a = op.grad_y, .b = op.x, .transpose_a = true};
}

void run_linear_adam(const LinearAdam& op, const Addresses& addresses, const Product& product,
                     ThreadPool& pool) {
  const BoundUpdate update{op, addresses};
  const std::int64_t down = (op.weight.rows + kLinearAdamTileRows - 1) / kLinearAdamTileRows;
  const std::int64_t across = (op.weight.cols + kLinearAdamTileCols - 1) / kLinearAdamTileCols;
  std::atomic<bool> failed{false};
  pool.run(down * across, [&](std::int64_t task, int) {
    const std::int64_t row = task / across * kLinearAdamTileRows;
    const std::int64_t col = task % across * kLinearAdamTileCols;
    const Tile tile{row, std::min(kLinearAdamTileRows, op.weight.rows - row), col,
                    std::min(kLinearAdamTileCols, op.weight.cols - col)};
    alignas(64) float grads[kLinearAdamTileRows * kLinearAdamTileCols];
    if (!update.gradient(product, tile, grads)) {
      failed.store(true, std::memory_order_relaxed);
      return;
    }
    update.update_weights(tile, grads);
    if (col == 0) update.update_biases(tile);
  });
  BARESTEP_REQUIRE(!failed.load(std::memory_order_relaxed), "the library computed no product");
}

namespace {

/// Elements of a task: some microseconds of work, small enough to share out evenly.
constexpr std::int64_t kGrain = 16384;

/// Rows of `cols` elements that make up about a task.
std::int64_t rows_per_task(std::int64_t cols) {
  return std::max(std::int64_t{1}, kGrain / std::max(std::int64_t{1}, cols));
}

/// Rows whose losses are kept until they are added in order.
constexpr std::int64_t kLossRows = 256;

/// Runs one op; one overload for each kind.
struct OpRunner {
  ThreadPool& pool;
  Product& product;
  const Addresses& addresses;

  /// Calls element(i) for i in [0, n).
  template <class Element>
  void for_elements(std::int64_t n, const Element& element) const {
    for_ranges(pool, n, kGrain, [element](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) element(i);
    });
  }

  /// Calls element(row, i) for the rows of `matrix` and i in [0, n).
  template <class Element>
  void for_rows(const Tensor& matrix, std::int64_t n, const Element& element) const {
    for_ranges(pool, matrix.rows, rows_per_task(matrix.cols),
               [element, n](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row)
                   for (std::int64_t i = 0; i < n; ++i) element(row, i);
               });
  }

  void operator()(const Gemm& op) const { product.run(op, addresses, pool); }
  void operator()(const QuantizeWeight& op) const { run_quantize_weight(op, addresses, pool); }
  void operator()(const Quantize& op) const { run_quantize(op, addresses, pool); }
  void operator()(const QuantizedGemm& op) const {
    run_quantized_gemm(op, addresses, product.int8(op.bits), pool);
  }

  void operator()(const BiasActivation& op) const {
    with_activation(op.activation, [&]<class Formula>(Formula) {
      const BiasActivationElement<Formula> element{
          {addresses.at(op.values), at(op.pre_activation)}, addresses.at(op.bias), op.values.cols};
      for_rows(op.values, op.values.cols, element);
    });
  }

  void operator()(const ActivationGrad& op) const {
    with_activation(op.activation, [&]<class Formula>(Formula) {
      for_elements(op.grad.size(),
                   ActivationGradElement<Formula>{addresses.at(op.grad), addresses.at(op.from),
                                                  op.from_scale});
    });
  }

  void operator()(const Dropout& op) const {
    constexpr std::int64_t kLanes = 32;  // more than GCC unrolls: it makes vectors of the loop
    const DropoutElement element(op, addresses);
    for_rows(op.values, (element.groups + kLanes - 1) / kLanes,
             [element](std::int64_t row, std::int64_t i) {
               element.operator()<kLanes>(row, kLanes * i);
             });
  }

  void operator()(const SumRows& op) const {
    float* out = addresses.at(op.out);
    const float* in = addresses.at(op.in);
    const std::int64_t grain = rows_per_task(op.in.rows * kSumColumns) * kSumColumns;
    for_ranges(pool, op.in.cols, grain, [&](std::int64_t first, std::int64_t last) {
      sum_columns(in, op.in.rows, op.in.cols, first, last, [&](std::int64_t column, float sum) {
        out[column] = accumulate(sum, op.beta, out[column]);
      });
    });
  }

  /// The sum has one fixed order, so one thread does it, while others do the gradient.
  void operator()(const PointwiseLoss& op) const {
    const std::int64_t n = op.output.size();
    float* loss = addresses.at(op.loss);
    with_loss(op.kind, [&]<class Formula>(Formula) {
      const LossElement<Formula> shared(op, addresses);
      pool.run(1 + (n + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
        const LossElement<Formula> element = shared;
        if (task == 0) {
          const float sum = contiguous_sum(n, [=](std::int64_t i) { return element.value(i); });
          *loss = accumulate(sum / static_cast<float>(op.count), op.beta, *loss);
        } else {
          const std::int64_t end = std::min(n, task * kGrain);
          for (std::int64_t i = (task - 1) * kGrain; i < end; ++i) element(i);
        }
      });
    });
  }

  void operator()(const CrossEntropy& op) const {
    check_labels(op.labels, op.logits.cols);
    const CrossEntropyRow row_loss(op, addresses);
    double sum = 0;
    for (std::int64_t first = 0; first < op.logits.rows; first += kLossRows) {
      float losses[kLossRows];
      const std::int64_t rows = std::min(kLossRows, op.logits.rows - first);
      for_ranges(pool, rows, rows_per_task(op.logits.cols * 8),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) losses[i] = row_loss(first + i);
                 });
      for (std::int64_t i = 0; i < rows; ++i) sum += losses[i];
    }
    float* loss = addresses.at(op.loss);
    *loss = accumulate(static_cast<float>(sum / static_cast<double>(op.count)), op.beta, *loss);
  }

  void operator()(const CountCorrect& op) const {
    const CorrectRow is_correct(op, addresses);
    std::atomic<std::int32_t> correct{0};
    for_ranges(pool, op.logits.rows, rows_per_task(op.logits.cols),
               [&](std::int64_t begin, std::int64_t end) {
                 std::int32_t count = 0;
                 for (std::int64_t row = begin; row < end; ++row) count += is_correct(row) ? 1 : 0;
                 correct.fetch_add(count, std::memory_order_relaxed);
               });
    *addresses.at<std::int32_t>(op.correct) = correct.load(std::memory_order_relaxed);
  }

  template <OptimizerOp Update>
  void operator()(const Update& op) const {
    with_rule(op, [&]<class Rule>(const Rule& rule, const auto& state) {
      for_elements(op.weights.size(),
                   UpdateElement<Rule>{addresses.at(op.weights), addresses.at(op.grads),
                                       arrays_of<Rule>(state, addresses), rule,
                                       rule.at_step(addresses.at(op.scalars), at(op.clip))});
    });
  }

  void operator()(const LinearAdam& op) const { run_linear_adam(op, addresses, product, pool); }

  void operator()(const SumSquares& op) const {
    *addresses.at(op.out) =
        static_cast<float>(sum_in_pieces(op.in.size(), SquareTerm{addresses.at(op.in)}));
  }

  void operator()(const GramSquares& op) const {
    const GramTerm term{addresses.at(op.gram_y), addresses.at(op.gram_x)};
    *addresses.at(op.out) = static_cast<float>(sum_in_pieces(op.gram_y.size(), term));
  }

  void operator()(const ClipFactor& op) const {
    const float* squares = addresses.at(op.squares);
    double sum = 0;
    for (std::int64_t i = 0; i < op.squares.size(); ++i) sum += static_cast<double>(squares[i]);
    *addresses.at(op.factor) = clip_factor(op.max_norm, sum);
  }

  void operator()(const Copy& op) const {
    auto* to = addresses.at<std::byte>(op.to);
    const auto* from = addresses.at<std::byte>(op.from);
    for_ranges(pool, op.to.bytes(), 16 * kGrain, [=](std::int64_t begin, std::int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
    });
  }

  void operator()(const Cast& op) const {
    const std::int64_t n = op.to.size();
    if (op.to.dtype == DType::kBF16) {
      for_elements(n, ToBf16Element{addresses.at<Bf16>(op.to), addresses.at(op.from), op.scale});
    } else {
      for_elements(n, FromBf16Element{addresses.at(op.to), addresses.at<Bf16>(op.from), op.scale});
    }
  }

  void operator()(const Fill& op) const {
    BARESTEP_REQUIRE(op.out.dtype == DType::kF32 || op.value == 0, "only floats have a value");
    if (op.out.dtype == DType::kF32) {
      float* out = addresses.at(op.out);
      for_elements(op.out.size(), [=, value = op.value](std::int64_t i) { out[i] = value; });
    } else {
      std::memset(addresses.at<std::byte>(op.out), 0, static_cast<std::size_t>(op.out.bytes()));
    }
  }

  void operator()(const Randn& op) const {
    BARESTEP_REQUIRE(op.state.bytes() == state_bytes(op.generator), "not a generator's state");
    const std::span out(addresses.at(op.out), static_cast<std::size_t>(op.out.size()));
    if (op.generator == Generator::kTorchCpu) {
      addresses.at<TorchGenerator>(op.state)->randn(out);
    } else {
      philox_randn(*addresses.at<PhiloxState>(op.state), out);
    }
  }

  void operator()(const Delay& op) const {
    const double more_seconds = op.more_seconds ? *addresses.at(*op.more_seconds) : 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(op.seconds + more_seconds));
  }

  [[nodiscard]] float* at(const std::optional<Tensor>& tensor) const {
    return tensor ? addresses.at(*tensor) : nullptr;
  }

  /// The sum of term(i) over [0, n), by as many threads as there are. Its order depends on n alone.
  template <class Term>
  [[nodiscard]] double sum_in_pieces(std::int64_t n, const Term& term) const {
    constexpr std::int64_t kPieces = 64;
    constexpr std::int64_t kLanes = 8;
    double sums[kPieces] = {};
    const std::int64_t length = (n + kPieces - 1) / kPieces;
    pool.run(kPieces, [&](std::int64_t piece, int) {
      double lanes[kLanes] = {};
      const std::int64_t end = std::min(n, (piece + 1) * length);
      std::int64_t i = piece * length;
      for (; i + kLanes <= end; i += kLanes)
        for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
      for (; i < end; ++i) lanes[0] += term(i);
      for (const double lane : lanes) sums[piece] += lane;
    });
    double sum = 0;
    for (const double piece : sums) sum += piece;
    return sum;
  }

  void check_labels(const Tensor& labels, std::int64_t classes) const {
    const auto* values = addresses.at<std::int32_t>(labels);
    for (std::int64_t row = 0; row < labels.rows; ++row) {
      if (values[row] >= 0 && values[row] < classes) continue;
      fail(ExitCode::kBadData, {"label", std::to_string(values[row]),
                                "the last layer has " + std::to_string(classes) + " outputs",
                                "widen the last layer or check the labels"});
    }
  }
};

}  // namespace

void CpuOps::prepare(const DeviceOp& op) {
  if (const auto* gemm = std::get_if<Gemm>(&op)) product_.prepare(*gemm, pool_);
  if (const auto* update = std::get_if<LinearAdam>(&op)) {
    product_.prepare(weight_gradient_of(*update), pool_);
  }
}

void CpuOps::run(const DeviceOp& op, const Addresses& addresses) {
  std::visit(OpRunner{pool_, product_, addresses}, op);
}

}  // namespace barestep
