// The kernel of LinearAdam, run on the host through its launcher, compared with plain loops in
// double.
#include "core/random.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_adam.cuh"
#include "kernels/op_cases.h"
#include "support/host_cuda.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

using host_cuda::Order;

constexpr double kUnit = 0x1p-24;  // half an ulp, relative

/// A GPU for which the launcher chooses a certain product, the type of the product's factors, and
/// the error bound of its sums, in units of kUnit times the sum of their terms' magnitudes.
struct ProductCase {
  const char* name;
  DType type;
  bool tf32;
  std::int64_t block_shared_bytes;
  double (*bound)(std::int64_t n);
  UpdateTiles tiles = UpdateTiles::kUsual;

  [[nodiscard]] KernelTarget target(int multiprocessors) const {
    return {.geometry = {.multiprocessors = multiprocessors, .threads_per_multiprocessor = 2048},
            .block_shared_bytes = block_shared_bytes,
            .tensor_cores = tf32,
            .tiles = tiles};
  }
};

/// n fused multiply-adds, each within half an ulp of a sum that is at most the sum of magnitudes.
double fp32_bound(std::int64_t n) {
  return static_cast<double>(n) + 2;
}

/// 3xTF32 leaves out low * low (at most 2^-22 of a product) and the bits that the low parts lose
/// (2^-22 twice): 12 units. Each mma rounds twice by less than an ulp, 2 units, for each of its
/// three parts, in sums of 8 rows: 12. Each fp32 addition of 8 rows is one unit.
double tf32_bound(std::int64_t n) {
  return 24 + static_cast<double>(n + 7) / 8;
}

/// Products of 16-bit factors are exact, and none is left out.
double narrow_bound(std::int64_t n) {
  return 4 + static_cast<double>(n + 7) / 8;
}

/// The rounding error of a number in a type. Below 2^-14, the numbers of fp16 are 2^-24 apart.
double rounding_of(DType type, double number) {
  if (type == DType::kBF16) return 0x1p-8 * std::abs(number);
  return type == DType::kF16 ? std::max(0x1p-11 * std::abs(number), 0x1p-25) : 0;
}

constexpr ProductCase kProductCases[] = {
    {"fp32", DType::kF32, false, 227 * 1024, fp32_bound},
    {"fp32 on little shared memory", DType::kF32, false, 64 * 1024, fp32_bound},
    {"3xTF32", DType::kF32, true, 227 * 1024, tf32_bound},
    {"bf16", DType::kBF16, true, 227 * 1024, narrow_bound},
    {"bf16 without tensor cores", DType::kBF16, false, 64 * 1024, fp32_bound},
    {"fp16", DType::kF16, true, 227 * 1024, narrow_bound},
    {"fp32, tall tiles", DType::kF32, false, 227 * 1024, fp32_bound, UpdateTiles::kTall},
    {"bf16, tall tiles", DType::kBF16, true, 227 * 1024, narrow_bound, UpdateTiles::kTall},
    {"fp32, keeping x", DType::kF32, false, 227 * 1024, fp32_bound, UpdateTiles::kKeeping},
    {"3xTF32, keeping x", DType::kF32, true, 227 * 1024, tf32_bound, UpdateTiles::kKeeping},
    {"bf16, keeping x", DType::kBF16, true, 227 * 1024, narrow_bound, UpdateTiles::kKeeping}};

struct LayerCase {
  std::int64_t out, in, n;
  int multiprocessors;  // two blocks on each
  bool clip, decoupled, aligned;
  bool grads_only;  // the new first moments equal the gradients

  [[nodiscard]] std::string name() const {
    return std::to_string(out) + " x " + std::to_string(in) + ", n " + std::to_string(n) + ", " +
           std::to_string(multiprocessors) + " multiprocessors" + (clip ? ", clip" : "") +
           (decoupled ? ", decoupled" : "") + (aligned ? "" : ", unaligned");
  }
};

constexpr LayerCase kLayerCases[] = {
    {64, 64, 64, 1, false, false, true, true},   {128, 192, 64, 2, true, false, true, true},
    {100, 70, 17, 1, true, true, true, true},    {256, 128, 100, 2, false, true, true, true},
    {128, 192, 64, 3, true, false, true, false}, {100, 70, 17, 1, true, true, false, false},
    {256, 128, 100, 1, true, true, true, false}, {68, 260, 200, 2, true, false, true, true},
    {96, 264, 128, 1, false, false, true, true}, {7, 5, 3, 1, false, false, true, true},
    {64, 132, 64, 1, true, false, false, true},  {36, 132, 0, 1, true, true, true, false}};

/// An op with its numbers: x as a ReLU leaves it, moments as training does.
struct Layer {
  Memory memory;
  LinearAdam op;

  explicit Layer(const LayerCase& c, DType type = DType::kF32) {
    const auto add = [&](std::int64_t rows, std::int64_t cols, DType of = DType::kF32) {
      constexpr std::int64_t kVector = 16;
      Tensor tensor = memory.add(1, rows * cols + kVector, of);
      tensor.offset_bytes =
          (tensor.offset_bytes + kVector - 1) / kVector * kVector + (c.aligned ? 0 : bytes_of(of));
      tensor.rows = rows;
      tensor.cols = cols;
      return tensor;
    };
    op = LinearAdam{
        .weight = add(c.out, c.in),
        .weight_moments1 = add(c.out, c.in),
        .weight_moments2 = add(c.out, c.in),
        .bias = add(1, c.out),
        .bias_moments1 = add(1, c.out),
        .bias_moments2 = add(1, c.out),
        .grad_y = add(c.n, c.out, type),
        .x = add(c.n, c.in, type),
        .scalars = add(1, c.decoupled ? 3 : 2),
        .step = {.weight_decay = c.decoupled || c.grads_only ? 0 : 0.01, .decoupled = c.decoupled}};
    if (c.clip) op.clip = add(1, 1);
    if (type != DType::kF32) {
      op.rounded_weight = add(c.out, c.in, type);
      op.rounded_bias = add(1, c.out, type);
    }
    if (c.grads_only) op.step.beta1 = 0;
    TorchGenerator random(static_cast<std::uint64_t>(c.out * 10007 + c.in * 101 + c.n));
    for (const Tensor& tensor : {op.weight, op.bias}) fill(random, tensor, 0.05F);
    for (const Tensor& tensor : {op.weight_moments1, op.bias_moments1}) fill(random, tensor, 1e-3F);
    fill(random, op.grad_y, 1e-3F);
    for (const Tensor& tensor : {op.weight_moments2, op.bias_moments2}) {
      fill(random, tensor, 1e-3F);
      for (float& moment : memory.values(tensor)) moment *= moment;
    }
    fill(random, op.x, 2, true);
    const float scalars[] = {-1e-3F / 0.271F, 0.0547F, 0.999F};
    std::copy_n(scalars, op.scalars.cols, memory.values(op.scalars).begin());
    if (op.clip) memory.values(*op.clip)[0] = 0.37F;
  }

  /// With numbers from -size to size, or, if `positive`, from 0 with many zeros.
  void fill(TorchGenerator& random, const Tensor& tensor, float size, bool positive = false) {
    if (tensor.size() == 0) return;
    std::vector<float> numbers(static_cast<std::size_t>(tensor.size()));
    random.uniform(numbers, -size, size);
    if (positive) {
      for (float& number : numbers) number = std::max(number, 0.0F);
    }
    set_numbers(memory, tensor, numbers);
  }
  [[nodiscard]] double at(const Tensor& tensor, std::int64_t i) {
    return with_number(tensor.dtype, [&]<class Number>(Number) -> double {
      return float_of(memory.values<Number>(tensor)[static_cast<std::size_t>(i)]);
    });
  }
  [[nodiscard]] double scalar(std::size_t i) { return memory.values(op.scalars)[i]; }
  [[nodiscard]] double clip_factor() { return op.clip ? memory.values(*op.clip)[0] : 1; }
};

/// A sum of products and the sum of their magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::abs(term);
  }
};

/// The difference of results from Adam in double, as a share of what rounding explains.
class Errors {
 public:
  Errors(Layer& before, Layer& after) : before_(before), after_(after) {}

  /// Number i of a weight or of the bias, whose gradient may be off by `units`.
  void check(const Tensor& weight, const Tensor& moment1, const Tensor& moment2, std::int64_t i,
             const Sum& grad, double units) {
    const LinearAdam& op = before_.op;
    const double kept1 = static_cast<float>(op.step.beta1);
    const double new1 = static_cast<float>(1 - op.step.beta1);
    const double kept2 = static_cast<float>(op.step.beta2);
    const double new2 = static_cast<float>(1 - op.step.beta2);
    const double scale = before_.scalar(0);
    const double root = before_.scalar(1);
    const double shrunk = before_.at(weight, i) * (op.step.decoupled ? before_.scalar(2) : 1);
    const double decay = static_cast<float>(op.step.weight_decay) * shrunk;
    const double full = grad.value * before_.clip_factor() + decay;
    const double m_old = before_.at(moment1, i) * kept1;
    const double m = m_old + full * new1;
    const double v = before_.at(moment2, i) * kept2 + full * full * new2;
    const double denominator = std::sqrt(v) / root + op.step.eps;
    const double step = scale * m / denominator;

    constexpr double kTiny = 1e-37;
    const double of_grad = units * kUnit * grad.magnitude * before_.clip_factor() +
                           4 * kUnit * (std::abs(full) + std::abs(decay)) +
                           rounding_of(op.x.dtype, grad.value) * before_.clip_factor();
    const double of_m =
        new1 * of_grad + 4 * kUnit * (std::abs(m_old) + std::abs(full * new1)) + kTiny;
    const double of_v = new2 * (2 * std::abs(full) + of_grad) * of_grad + 6 * kUnit * v + kTiny;
    const double of_denominator = of_v / std::sqrt(v + of_v) / root + 6 * kUnit * denominator;
    const double of_weight =
        std::abs(scale) * (of_m + std::abs(m) * of_denominator / denominator) / denominator +
        8 * kUnit * (std::abs(step) + std::abs(shrunk));
    note(after_.at(moment1, i), m, of_m);
    note(after_.at(moment2, i), v, of_v);
    note(after_.at(weight, i), shrunk + step, of_weight);
  }

  /// 1 if the largest error is exactly what rounding can cause.
  [[nodiscard]] double worst() const { return worst_; }

 private:
  void note(double actual, double expected, double bound) {
    const double part = std::abs(actual - expected) / bound;
    worst_ = part <= worst_ ? worst_ : part;  // keeps NaN
  }

  Layer& before_;
  Layer& after_;
  double worst_ = 0;
};

double worst_error(Layer& before, Layer& after, const ProductCase& product) {
  Errors errors(before, after);
  const LinearAdam& op = before.op;
  const std::int64_t in = op.weight.cols;
  const double units = product.bound(op.x.rows);
  for (std::int64_t row = 0; row < op.weight.rows; ++row) {
    Sum of_bias;
    for (std::int64_t k = 0; k < op.x.rows; ++k)
      of_bias.add(before.at(op.grad_y, k * op.weight.rows + row));
    errors.check(op.bias, op.bias_moments1, op.bias_moments2, row, of_bias, fp32_bound(op.x.rows));
    for (std::int64_t col = 0; col < in; ++col) {
      Sum grad;
      for (std::int64_t k = 0; k < op.x.rows; ++k)
        grad.add(before.at(op.grad_y, k * op.weight.rows + row) * before.at(op.x, k * in + col));
      errors.check(op.weight, op.weight_moments1, op.weight_moments2, row * in + col, grad, units);
    }
  }
  return errors.worst();
}

void run(Layer& layer, const KernelTarget& target) {
  ASSERT_EQ(launch(layer.op, layer.memory.addresses(), {}, target, nullptr), 0);
}

/// Whether everything that the op does not write is unchanged.
bool rest_is_intact(Layer& before, const Layer& after) {
  Memory rest = after.memory;
  for (const Access& access : accesses_of(Op(DeviceOp(before.op)))) {
    if (access.writes)
      std::ranges::copy(before.memory.bytes(access.tensor), rest.bytes(access.tensor).begin());
  }
  return rest.bytes() == before.memory.bytes();
}

TEST(CudaLinearAdam, IsWithinTheBoundsOfItsRoundingAtEveryShape) {
  for (const ProductCase& product : kProductCases) {
    for (const LayerCase& c : kLayerCases) {
      SCOPED_TRACE(std::string(product.name) + ", " + c.name());
      Layer before(c, product.type);
      Layer after(c, product.type);
      run(after, product.target(c.multiprocessors));
      EXPECT_LE(worst_error(before, after, product), 1);
      EXPECT_TRUE(rest_is_intact(before, after)) << "numbers changed that the op does not write";
    }
  }
}

TEST(CudaLinearAdam, HasTheSameBitsHoweverTilesAreSharedOutAndThreadsRun) {
  if (kAddressSanitized) GTEST_SKIP() << "another test runs these kernels with the sanitizer";
  for (const ProductCase& product : kProductCases) {
    for (const LayerCase& c : {kLayerCases[3], kLayerCases[7]}) {
      SCOPED_TRACE(std::string(product.name) + ", " + c.name());
      Layer one(c, product.type);
      run(one, product.target(1));
      Layer many(c, product.type);
      host_cuda::set_order(Order::kLastThread);
      run(many, product.target(7));
      host_cuda::set_order(Order::kFirstThread);
      EXPECT_EQ(one.memory.bytes(), many.memory.bytes());
    }
  }
}

TEST(CudaLinearAdam, HasTheSameBitsInOtherTiles) {
  if (kAddressSanitized) GTEST_SKIP() << "another test runs these kernels with the sanitizer";
  for (const ProductCase& product : kProductCases) {
    if (product.tiles == UpdateTiles::kUsual) continue;
    ProductCase usual = product;
    usual.tiles = UpdateTiles::kUsual;
    for (const LayerCase& c : {kLayerCases[6], kLayerCases[7], kLayerCases[8]}) {
      SCOPED_TRACE(std::string(product.name) + ", " + c.name());
      Layer in_others(c, product.type), in_usual(c, product.type);
      run(in_others, product.target(1));
      run(in_usual, usual.target(1));
      EXPECT_EQ(in_others.memory.bytes(), in_usual.memory.bytes());
    }
  }
}

/// The blocks of one multiprocessor share a strip of 256 rows of weights; the batch has four chunks
/// of 64 rows. A copy has four numbers: 32 a row of x, and 8 a row of grad_y for each 32 rows of a
/// tile.
TEST(CudaLinearAdam, CopiesXOncePerStripIfBlocksKeepIt) {
  if (kAddressSanitized) GTEST_SKIP() << "another test runs these kernels with the sanitizer";
  const LayerCase layer{256, 128, 200, 1, false, false, true, false};
  constexpr std::int64_t kRows = 4 * 64;
  for (const ProductCase& product : kProductCases) {
    if (product.block_shared_bytes < 200 * 1024) continue;
    SCOPED_TRACE(product.name);
    Layer one(layer, product.type);
    const std::int64_t before = host_cuda::machine().copies;
    run(one, product.target(1));
    const int blocks = product.type == DType::kF32 ? 1 : 2;
    const int times_of_x = product.tiles == UpdateTiles::kKeeping ? blocks
                           : product.tiles == UpdateTiles::kTall  ? 4
                                                                  : 8;
    EXPECT_EQ(host_cuda::machine().copies - before, kRows * (32 * times_of_x + 8 * 8));
  }
}

TEST(CudaLinearAdam, HasOtherTilesWhereXIsReadForEveryTile) {
  using enum UpdateTiles;
  const auto tiles_of = [](const ProductCase& product, std::int64_t rows, std::int64_t in = 64) {
    Layer layer({64, in, rows, 1, false, false, true, false}, product.type);
    return other_tiles(layer.op, product.target(132));
  };
  const ProductCase &fp32 = kProductCases[0], &tf32 = kProductCases[2], &bf16 = kProductCases[3];
  for (const ProductCase& product : {fp32, tf32, bf16}) EXPECT_TRUE(tiles_of(product, 128).empty());
  for (const std::int64_t rows : {129, 256}) {
    EXPECT_EQ(tiles_of(fp32, rows), std::vector({kTall, kKeeping}));
    EXPECT_EQ(tiles_of(tf32, rows), std::vector({kKeeping}));
    EXPECT_EQ(tiles_of(bf16, rows), std::vector({kTall, kKeeping}));
  }
  EXPECT_EQ(tiles_of(fp32, 257), std::vector({kTall}));
  EXPECT_TRUE(tiles_of(tf32, 257).empty());
  EXPECT_TRUE(tiles_of(fp32, 256, 66).empty()) << "rows that are not multiples of 16 bytes";
  ProductCase small = fp32;
  small.block_shared_bytes = 163 * 1024;
  EXPECT_EQ(tiles_of(small, 256), std::vector({kTall})) << "x does not fit";
  EXPECT_TRUE(tiles_of(kProductCases[4], 256).empty()) << "16 bits without tensor cores";
}

/// Layers of a model; each has a buffer of its own in ops().
struct Layers {
  std::vector<Layer> of;

  Layers(std::span<const LayerCase> cases, DType type) {
    for (const LayerCase& c : cases) of.emplace_back(c, type);
  }
  [[nodiscard]] std::vector<DeviceOp> ops() const {
    std::vector<DeviceOp> all;
    for (const Layer& layer : of) {
      LinearAdam op = layer.op;
      for (Tensor* const tensor :
           {&op.weight, &op.weight_moments1, &op.weight_moments2, &op.bias, &op.bias_moments1,
            &op.bias_moments2, &op.grad_y, &op.x, &op.scalars}) {
        tensor->buffer = static_cast<BufferId>(all.size());
      }
      for (auto* const tensor : {&op.clip, &op.rounded_weight, &op.rounded_bias}) {
        if (*tensor) (*tensor)->buffer = static_cast<BufferId>(all.size());
      }
      all.emplace_back(op);
    }
    return all;
  }
  void run_at_once(const KernelTarget& target) {
    const std::vector<DeviceOp> all = ops();
    std::vector<const DeviceOp*> pointers;
    for (const DeviceOp& op : all) pointers.push_back(&op);
    ASSERT_EQ(updates_of_one_launch(pointers, target), all.size());
    std::vector<std::byte*> starts;
    for (Layer& layer : of) starts.push_back(layer.memory.bytes().data());
    ASSERT_EQ(launch_updates(pointers, Addresses(starts), target, {}), 0);
  }
};

constexpr LayerCase kAlike[] = {{64, 64, 64, 1, true, false, true, false},
                                {128, 192, 64, 1, true, false, true, false},
                                {4, 4, 5, 1, false, false, true, false},
                                {100, 272, 128, 1, true, false, true, false}};

TEST(CudaLinearAdam, UpdatesSmallLayersInOneLaunchWithTheSameBits) {
  if (kAddressSanitized) GTEST_SKIP() << "another test runs these kernels with the sanitizer";
  for (const ProductCase& product : kProductCases) {
    if (product.tiles != UpdateTiles::kUsual || product.block_shared_bytes < 200 * 1024) continue;
    for (const int multiprocessors : {4, 7}) {
      SCOPED_TRACE(std::string(product.name) + ", " + std::to_string(multiprocessors));
      const KernelTarget target = product.target(multiprocessors);
      Layers apart(kAlike, product.type), at_once(kAlike, product.type);
      for (Layer& layer : apart.of) run(layer, target);
      const int launches = host_cuda::launches();
      host_cuda::set_order(multiprocessors == 4 ? Order::kLastThread : Order::kFirstThread);
      at_once.run_at_once(target);
      host_cuda::set_order(Order::kFirstThread);
      EXPECT_EQ(host_cuda::launches(), launches + 1);
      EXPECT_LT(host_cuda::launched_threads() / kBlockThreads, 2U + 8 + 1 + 12)
          << "blocks go on with the next layer";
      for (std::size_t i = 0; i < apart.of.size(); ++i) {
        EXPECT_EQ(at_once.of[i].memory.bytes(), apart.of[i].memory.bytes()) << "layer " << i;
      }
    }
  }
}

TEST(CudaLinearAdam, UpdatesInOneLaunchOnlyLayersThatAreSmallAndAlike) {
  const KernelTarget target = kProductCases[0].target(4);
  const auto count = [&](const std::function<void(LinearAdam&)>& change, DType type = DType::kF32) {
    std::vector<DeviceOp> ops = Layers(std::vector(3, kAlike[0]), type).ops();
    change(std::get<LinearAdam>(ops[1]));
    std::vector<const DeviceOp*> pointers;
    for (const DeviceOp& op : ops) pointers.push_back(&op);
    return updates_of_one_launch(pointers, target);
  };
  EXPECT_EQ(count([](LinearAdam&) {}), 3U);
  EXPECT_EQ(count([](LinearAdam& op) { op.step.beta1 = 0.8; }), 1U);
  EXPECT_EQ(count([](LinearAdam& op) { op.step.decoupled = true; }), 1U);
  EXPECT_EQ(count([](LinearAdam& op) { op.x.dtype = DType::kBF16; }), 1U);
  EXPECT_EQ(count([](LinearAdam& op) { op.x.rows = 129; }), 1U);
  EXPECT_EQ(count([](LinearAdam& op) { op.weight.cols = 66; }), 1U);
  EXPECT_EQ(count([](LinearAdam& op) { op.weight.offset_bytes += 4; }), 1U);
  EXPECT_EQ(count([](LinearAdam& op) { op.weight.rows = 32 * 17; }), 1U) << "17 tiles";
  EXPECT_EQ(count([](LinearAdam&) {}, DType::kBF16), 0U) << "without tensor cores";
  std::vector<const DeviceOp*> many;
  const std::vector<DeviceOp> ops = Layers(std::vector(17, kAlike[2]), DType::kF32).ops();
  for (const DeviceOp& op : ops) many.push_back(&op);
  EXPECT_EQ(updates_of_one_launch(many, target), 16U);
  const DeviceOp other = Fill{.out = {.rows = 1, .cols = 1}};
  many[0] = &other;
  EXPECT_EQ(updates_of_one_launch(many, target), 0U);
}

TEST(CudaLinearAdam, MeetsNoBankConflict) {
  if (kAddressSanitized) GTEST_SKIP() << "another test runs these kernels with the sanitizer";
  for (const ProductCase& product : kProductCases) {
    for (const LayerCase& c : kLayerCases) {
      SCOPED_TRACE(std::string(product.name) + ", " + c.name());
      static_cast<void>(host_cuda::take_shared_traffic());
      Layer layer(c, product.type);
      run(layer, product.target(c.multiprocessors));
      const auto traffic = host_cuda::take_shared_traffic();
      EXPECT_GT(traffic.accesses, 0U);
      EXPECT_EQ(traffic.rounds, traffic.min_rounds);
    }
  }
}

/// Whether the numbers of `a` are those of `b` rounded to the type of `of`.
bool are_rounded(Layer& layer, const Tensor& a, const Tensor& b, const Tensor& of) {
  return with_number(of.dtype, [&]<class Number>(Number) {
    for (std::int64_t i = 0; i < a.size(); ++i) {
      const auto number = static_cast<float>(layer.at(b, i));
      if (layer.at(a, i) != float_of(rounded<Number>(number))) return false;
    }
    return true;
  });
}

TEST(CudaLinearAdam, RoundsGradientsAndWeightsToTheTypeOfItsFactors) {
  for (const ProductCase& product : kProductCases) {
    if (product.type == DType::kF32) continue;
    for (LayerCase c : kLayerCases) {
      c.grads_only = true;
      c.clip = false;
      c.decoupled = true;
      SCOPED_TRACE(std::string(product.name) + ", " + c.name());
      Layer layer(c, product.type);
      run(layer, product.target(c.multiprocessors));
      const LinearAdam& op = layer.op;
      EXPECT_TRUE(are_rounded(layer, op.weight_moments1, op.weight_moments1, op.x));
      EXPECT_TRUE(are_rounded(layer, op.bias_moments1, op.bias_moments1, op.x));
      EXPECT_TRUE(are_rounded(layer, *op.rounded_weight, op.weight, op.x));
      EXPECT_TRUE(are_rounded(layer, *op.rounded_bias, op.bias, op.x));
    }
  }
}

TEST(CudaLinearAdam, TakesAsManyBlocksAsAreResidentAndNoMoreThanTiles) {
  Layer wide(LayerCase{512, 512, 1, 1, false, false, true, false});
  run(wide, kProductCases[0].target(3));
  EXPECT_EQ(host_cuda::launched_threads(), 3U * 2 * kBlockThreads);
  run(wide, kProductCases[0].target(132));
  EXPECT_EQ(host_cuda::launched_threads(), 16U * 4 * kBlockThreads);
  // Four strips: a multiple of them, if that costs little.
  run(wide, kProductCases[0].target(29));
  EXPECT_EQ(host_cuda::launched_threads(), 56U * kBlockThreads);
}

// Two of its blocks fit on a multiprocessor only if shared memory has the largest share of it.
TEST(CudaLinearAdam, AsksForTheLargestShareOfSharedMemory) {
  for (const ProductCase& product : kProductCases) {
    Layer layer(LayerCase{64, 64, 8, 1, false, false, true, false}, product.type);
    host_cuda::machine().carveout = -1;
    run(layer, product.target(1));
    EXPECT_EQ(host_cuda::machine().carveout, 100) << product.name;
  }
}

TEST(StraightArithmetic, HasTheBitsOfTheLanguagesRootsAndQuotients) {
  constexpr int kNumbers = 200'000;
  std::vector<float> mantissas(3 * kNumbers);
  TorchGenerator random(1);
  random.uniform(mantissas, 1, 2);
  int roots = 0;
  int quotients = 0;
  for (int i = 0; i < kNumbers; ++i) {
    const auto at = static_cast<std::size_t>(3 * i);
    // Remainders are normal too: 2^-24 of the dividend or of the radicand.
    const float x = std::ldexp(mantissas[at], i % 227 - 100);
    const float a = std::ldexp(i % 2 == 0 ? mantissas[at + 1] : -mantissas[at + 1], i % 140 - 70);
    const float b = std::ldexp(mantissas[at + 2], i % 97 - 48);
    if (StraightArithmetic::root(x) != std::sqrt(x)) ++roots;
    if (StraightArithmetic::divide(a, b) != a / b) ++quotients;
  }
  EXPECT_EQ(roots, 0);
  EXPECT_EQ(quotients, 0);
  EXPECT_EQ(StraightArithmetic::divide(0, 0.03F), 0);
  for (const float nothing : {0.0F, 1e-45F, 1e-39F})
    EXPECT_EQ(StraightArithmetic::root(nothing) / 0.03F + 1e-8F, 1e-8F);
  EXPECT_TRUE(std::isnan(StraightArithmetic::root(HUGE_VALF)));
}

}  // namespace
}  // namespace barestep
