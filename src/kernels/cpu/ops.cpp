#include "kernels/cpu/ops.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/philox.h"
#include "core/random.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/cascade_sum.h"
#include "kernels/cpu/linear_adam.h"
#include "kernels/cpu/op_sources.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/widen.h"
#include "kernels/loop_ops.h"

namespace barestep {
namespace {

/// Elements per task: some microseconds of work, small enough to distribute evenly.
constexpr std::int64_t kGrain = 16384;

/// The number of rows of `cols` elements in one task.
std::int64_t rows_per_task(std::int64_t cols) {
  return std::max(std::int64_t{1}, kGrain / std::max(std::int64_t{1}, cols));
}

/// The number of rows whose losses are stored until they are added in order.
constexpr std::int64_t kLossRows = 256;

/// Runs one op; one overload for each op type.
struct OpRunner {
  ThreadPool& pool;
  Product& product;
  const VectorKernels& kernels;
  Packs& packs;
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

  void operator()(const Gemm& op) const {
    if (op.a.dtype == DType::kF32 || product.takes(op.a.dtype)) {
      product.run(op, addresses, pool);
    } else {
      run_tiles(product, op, addresses, pool);
    }
  }
  void operator()(const QuantizeWeight& op) const { run_quantize_weight(op, addresses, pool); }
  void operator()(const Quantize& op) const { run_quantize(op, addresses, pool); }
  void operator()(const QuantizedGemm& op) const {
    run_quantized_gemm(op, addresses, product.is_reference(), pool);
  }

  void operator()(const BiasActivation& op) const {
    with_activation(op.activation, [&]<class Formula>(Formula) {
      with_number(op.values.dtype, [&]<class Number>(Number) {
        const ActivationElement<Formula, Number> element{addresses.at<Number>(op.values),
                                                         at<Number>(op.pre_activation)};
        const std::int64_t cols = op.values.cols;
        if (!op.bias) {
          return for_ranges(
              pool, op.values.size(), kGrain, [element](std::int64_t begin, std::int64_t end) {
                const Number* const values = element.values + begin;
                activate_run(element, begin, end - begin,
                             [values](std::int64_t i) { return float_of(values[i]); });
              });
        }
        const Number* const bias = addresses.at<Number>(*op.bias);
        for_ranges(pool, op.values.rows, rows_per_task(cols),
                   [element, bias, cols](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t row = begin; row < end; ++row) {
                       const Number* const values = element.values + row * cols;
                       activate_run(element, row * cols, cols, [values, bias](std::int64_t i) {
                         return float_of(values[i]) + float_of(bias[i]);
                       });
                     }
                   });
      });
    });
  }

  void operator()(const ActivationGrad& op) const {
    with_activation(op.activation, [&]<class Formula>(Formula) {
      if (op.sums) {
        const ActivationGradElement<Formula, float> shared(op, addresses);
        const auto prepare = [&op, shared](std::int64_t first, std::int64_t last) {
          const ActivationGradElement<Formula, float> element = shared;
          const std::int64_t cols = op.grad.cols;
          for (std::int64_t row = 0; row < op.grad.rows; ++row)
            activation_grad_run(element, row * cols + first, last - first);
        };
        return sum_rows({.out = *op.sums, .in = op.grad, .beta = op.beta}, std::ref(prepare));
      }
      with_number(op.grad.dtype, [&]<class Number>(Number) {
        const ActivationGradElement<Formula, Number> element(op, addresses);
        for_ranges(pool, op.grad.size(), kGrain, [element](std::int64_t begin, std::int64_t end) {
          activation_grad_run(element, begin, end - begin);
        });
      });
    });
  }

  void operator()(const Dropout& op) const {
    static constexpr std::int64_t kLanes = 32;  // more than GCC unrolls, so it vectorizes
    with_number(op.values.dtype, [&]<class Number>(Number) {
      const DropoutElement<Number> element(op, addresses);
      for_rows(op.values, (element.groups + kLanes - 1) / kLanes,
               [element](std::int64_t row, std::int64_t i) {
                 element.template operator()<kLanes>(row, kLanes * i);
               });
    });
  }

  void operator()(const SumRows& op) const {
    sum_rows(op, [](std::int64_t /*first*/, std::int64_t /*last*/) {});
  }

  /// Calls prepare(first, last) before columns first .. last - 1 are added. Compiled once for all
  /// that prepare; a reference to them is no allocation.
  void sum_rows(const SumRows& op,
                const std::function<void(std::int64_t, std::int64_t)>& prepare) const {
    with_number(op.in.dtype, [&]<class In>(In) {
      with_number(op.out.dtype, [&]<class Out>(Out) {
        Out* const out = addresses.at<Out>(op.out);
        const In* const in = addresses.at<In>(op.in);
        const std::int64_t grain = rows_per_task(op.in.rows * kSumColumns) * kSumColumns;
        for_ranges(pool, op.in.cols, grain, [&](std::int64_t first, std::int64_t last) {
          prepare(first, last);
          sum_columns(in, op.in.rows, op.in.cols, first, last, [&](std::int64_t column, float sum) {
            const float old = op.beta == 0.0F ? 0.0F : float_of(out[column]);
            out[column] = rounded<Out>(accumulate(sum, op.beta, old));
          });
        });
      });
    });
  }

  void operator()(const SquaredErrors& op) const {
    with_number(op.output.dtype, [&]<class Number>(Number) {
      float* const out = addresses.at(op.out);
      const Number* const output = addresses.at<Number>(op.output);
      const float* const target = addresses.at(op.target);
      const std::int64_t cols = op.output.cols;
      for_ranges(
          pool, cols, rows_per_task(op.output.rows), [=](std::int64_t first, std::int64_t last) {
            for (std::int64_t col = first; col < last; ++col) {
              Sums<1> sum;
              interleaved_sum<1>(
                  op.output.rows,
                  [=](std::int64_t row, int) {
                    const std::int64_t i = row * cols + col;
                    return LossFormula<LossKind::kMse>::value(float_of(output[i]), target[i]);
                  },
                  sum);
              out[col] = sum[0];
            }
          });
    });
  }

  /// The sum has one fixed order, so one thread computes it while others compute the gradient.
  void operator()(const PointwiseLoss& op) const {
    const std::int64_t n = op.output.size();
    float* loss = addresses.at(op.loss);
    with_loss_element(op, addresses, [&](const auto& shared) {
      pool.run(1 + (n + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
        const auto element = shared;
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
    double sum = 0;
    with_number(op.logits.dtype, [&]<class Number>(Number) {
      const CrossEntropyRow<Number> row_loss(op, addresses);
      for (std::int64_t first = 0; first < op.logits.rows; first += kLossRows) {
        float losses[kLossRows];
        const std::int64_t rows = std::min(kLossRows, op.logits.rows - first);
        for_ranges(pool, rows, rows_per_task(op.logits.cols * 8),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) losses[i] = row_loss(first + i);
                   });
        for (std::int64_t i = 0; i < rows; ++i) sum += losses[i];
      }
    });
    float* loss = addresses.at(op.loss);
    *loss = accumulate(static_cast<float>(sum / static_cast<double>(op.count)), op.beta, *loss);
  }

  void operator()(const CountCorrect& op) const {
    std::atomic<std::int32_t> correct{0};
    with_number(op.logits.dtype, [&]<class Number>(Number) {
      const CorrectRow<Number> is_correct(op, addresses);
      for_ranges(pool, op.logits.rows, rows_per_task(op.logits.cols),
                 [&](std::int64_t begin, std::int64_t end) {
                   std::int32_t count = 0;
                   for (std::int64_t row = begin; row < end; ++row) {
                     count += is_correct(row) ? 1 : 0;
                   }
                   correct.fetch_add(count, std::memory_order_relaxed);
                 });
    });
    *addresses.at<std::int32_t>(op.correct) = correct.load(std::memory_order_relaxed);
  }

  void operator()(const OptimizerUpdate& op) const {
    with_update_numbers(op, [&]<class Grad, class Number>(Grad, Number) {
      const UpdateCommons<Number> commons(op, addresses);
      if (commons.skips()) return round_weights(op, commons);
      with_rule(op.step, [&]<class Rule>(const Rule& rule) {
        const UpdateElement<Rule, Grad, Number> update{
            addresses.at(op.weights),
            addresses.at<Grad>(op.grads),
            arrays_of<Rule>(op.state, addresses),
            rule,
            rule.at_step(commons.row_of(addresses.at(op.scalars)), commons.clip),
            commons.rounded_weights,
            commons.unscale()};
        if constexpr (std::is_same_v<Number, F16>) {
          update_with_halves(op.weights.size(), update);
        } else {
          for_elements(op.weights.size(), update);
        }
      });
    });
  }

  /// An update in chunks whose halves are widened and rounded with the processor's instructions.
  template <class Rule, class Grad>
  void update_with_halves(std::int64_t n, const UpdateElement<Rule, Grad, F16>& update) const {
    for_ranges(pool, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
      constexpr std::int64_t kAtOnce = 512;
      alignas(64) float grads[kAtOnce];
      for (std::int64_t first = begin; first < end; first += kAtOnce) {
        const std::int64_t count = std::min(kAtOnce, end - first);
        widen(update.grads + first, count, grads);
        StateArrays<Rule> state = update.state;
        for (int k = 0; k < Rule::kState; ++k) state.arrays[k] += first;
        float* const weights = update.weights + first;
        const UpdateElement<Rule, float, float> part{
            weights, grads, state, update.rule, update.scalars, nullptr, update.unscale};
        for (std::int64_t i = 0; i < count; ++i) part(i);
        narrow(weights, count, update.rounded_weights + first);
      }
    });
  }

  /// The remaining work of a step that changes no weight.
  template <class Number>
  void round_weights(const OptimizerUpdate& op, const UpdateCommons<Number>& commons) const {
    if (commons.rounded_weights == nullptr) return;
    for_elements(op.weights.size(),
                 CastElement<Number, float>{commons.rounded_weights, addresses.at(op.weights)});
  }

  void operator()(const LinearAdam& op) const {
    run_linear_adam(op, addresses, product, kernels, packs, pool);
  }

  void operator()(const SumSquares& op) const {
    with_number(op.in.dtype, [&]<class Number>(Number) {
      const SquareTerm<Number> term(op, addresses);
      *addresses.at(op.out) = static_cast<float>(sum_in_pieces(op.in.size(), term));
    });
  }

  void operator()(const CheckFinite& op) const {
    std::atomic<bool> all_finite{true};
    with_number(op.in.dtype, [&]<class Number>(Number) {
      const Number* const in = addresses.at<Number>(op.in);
      for_ranges(pool, op.in.size(), kGrain, [&](std::int64_t begin, std::int64_t end) {
        int others = 0;
        for (std::int64_t i = begin; i < end; ++i) others |= is_finite(in[i]) ? 0 : 1;
        if (others != 0) all_finite.store(false, std::memory_order_relaxed);
      });
    });
    if (!all_finite.load(std::memory_order_relaxed)) *addresses.at(op.found_inf) = 1;
  }

  void operator()(const UpdateLossScale& op) const {
    float& scale = *addresses.at(op.state.scale);
    auto& good_steps = *addresses.at<std::int32_t>(op.good_steps);
    auto& updates = *addresses.at<std::int32_t>(op.state.updates);
    LossScaleNumbers numbers{scale, good_steps, updates};
    update_loss_scale(op, *addresses.at(op.state.found_inf) > 0, numbers);
    scale = numbers.scale;
    good_steps = numbers.good_steps;
    updates = numbers.updates;
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
    with_cast(op, addresses, [&](const auto& element) { for_elements(op.to.size(), element); });
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
      TorchGenerator& generator = *addresses.at<TorchGenerator>(op.state);
      generator.discard(op.before);
      generator.randn(out);
      generator.discard(op.after);
    } else {
      philox_randn(*addresses.at<PhiloxState>(op.state), out);
    }
  }

  void operator()(const Add& op) const {
    with_number(op.b.dtype, [&]<class Number>(Number) {
      for_elements(op.out.size(), AddElement<Number>(op, addresses));
    });
  }

  void operator()(const LayerNorm& op) const {
    with_number(op.y.dtype, [&]<class Number>(Number) {
      const LayerNormElement<Number> shared(op, addresses);
      for_ranges(pool, op.x.rows, rows_per_task(8 * op.x.cols),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) normalize(shared, row);
                 });
    });
  }

  /// The mean of term(col) over a row of `cols` numbers. It is double, so that the mean of equal
  /// numbers is that number: LayerNorm multiplies what is left of such a row by 316.
  template <class Term>
  static double mean_of_row(std::int64_t cols, const Term& term) {
    return lane_sum<double>(cols, term) / static_cast<double>(cols);
  }

  /// The mean is known before deviations are summed: their differences from it do not cancel.
  template <class Number>
  static void normalize(LayerNormElement<Number> element, std::int64_t row) {
    const float* const x = element.x + row * element.cols;
    const double exact = mean_of_row(element.cols, [=](std::int64_t i) { return x[i]; });
    const double variance = mean_of_row(element.cols, [=](std::int64_t i) {
      const double deviation = x[i] - exact;
      return deviation * deviation;
    });
    const auto mean = static_cast<float>(exact);
    const float rstd = layer_norm_rstd(variance);
    element.means[row] = mean;
    element.rstds[row] = rstd;
    for (std::int64_t col = 0; col < element.cols; ++col) element(row, col, mean, rstd);
  }

  /// Sums over rows have an order that does not depend on threads: rows of a chunk, then chunks.
  void operator()(const LayerNormGrad& op) const {
    with_number(op.grad_y.dtype, [&]<class Number>(Number) {
      const LayerNormGradElement<Number> shared(op, addresses);
      constexpr std::int64_t kColumns = 64;
      for_ranges(pool, op.x.cols, kColumns, [&](std::int64_t first, std::int64_t last) {
        float of_weight[kColumns] = {};
        float of_bias[kColumns] = {};
        sum_chunks(shared, first, last, of_weight, of_bias);
        for (std::int64_t col = first; col < last; ++col) {
          float& weight = addresses.at(op.grad_weight)[col];
          float& bias = addresses.at(op.grad_bias)[col];
          weight = accumulate(of_weight[col - first], op.beta, weight);
          bias = accumulate(of_bias[col - first], op.beta, bias);
        }
      });
      if (!op.grad_x) return;
      for_ranges(pool, op.x.rows, rows_per_task(8 * op.x.cols),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) add_norm_grad(shared, row);
                 });
    });
  }

  template <class Number>
  static void sum_chunks(LayerNormGradElement<Number> element, std::int64_t first,
                         std::int64_t last, float* of_weight, float* of_bias) {
    constexpr std::int64_t kRowsOfChunk = 64;
    constexpr std::int64_t kColumns = 64;
    for (std::int64_t begin = 0; begin < element.rows; begin += kRowsOfChunk) {
      const std::int64_t end = std::min(element.rows, begin + kRowsOfChunk);
      float weight[kColumns] = {};
      float bias[kColumns] = {};
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t col = first; col < last; ++col) {
          const std::int64_t i = row * element.cols + col;
          weight[col - first] += element.weight_term(row, i);
          bias[col - first] += element.bias_term(i);
        }
      }
      for (std::int64_t col = 0; col < last - first; ++col) {
        of_weight[col] += weight[col];
        of_bias[col] += bias[col];
      }
    }
  }

  template <class Number>
  static void add_norm_grad(LayerNormGradElement<Number> element, std::int64_t row) {
    const std::int64_t begin = row * element.cols;
    const auto scaled = static_cast<float>(mean_of_row(
        element.cols, [&](std::int64_t col) { return element.scaled_grad(begin + col, col); }));
    const auto projected = static_cast<float>(mean_of_row(element.cols, [&](std::int64_t col) {
      return element.projected_grad(row, begin + col, col);
    }));
    for (std::int64_t col = 0; col < element.cols; ++col) element(row, col, scaled, projected);
  }

  void operator()(const Attention& op) const { run_attention(op, addresses, kernels, pool); }
  void operator()(const AttentionGrad& op) const {
    run_attention_grad(op, addresses, kernels, pool);
  }

  void operator()(const Delay& op) const {
    const double more_seconds = op.more_seconds ? *addresses.at(*op.more_seconds) : 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(op.seconds + more_seconds));
  }

  template <class Number = float>
  [[nodiscard]] Number* at(const std::optional<Tensor>& tensor) const {
    return tensor ? addresses.at<Number>(*tensor) : nullptr;
  }

  /// The sum of term(i) over [0, n), computed by all threads. Its order depends only on n.
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
  if (const auto* const update = std::get_if<LinearAdam>(&op)) {
    prepare_linear_adam(*update, product_, kernels_, packs_, pool_);
  }
  const auto* const gemm = std::get_if<Gemm>(&op);
  if (gemm == nullptr) return;
  if (product_.takes(gemm->a.dtype)) return product_.prepare(*gemm, pool_);
  product_.prepare_tiles(pool_);
}

void CpuOps::run(const DeviceOp& op, const Addresses& addresses) {
  std::visit(OpRunner{pool_, product_, kernels_, packs_, addresses}, op);
}

}  // namespace barestep
