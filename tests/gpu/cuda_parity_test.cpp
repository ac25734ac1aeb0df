// The CUDA device compared with the CPU device and with PyTorch. Built twice: with CUDA, for
// machines with a GPU, and with the fake runtime of tests/support, for all machines.
#include <nlohmann/json.hpp>

#include "core/philox.h"
#include "gpu/cuda_harness.h"
#include "kernels/make_device.h"
#include "kernels/rounding.h"
#include "support/attention_golden.h"
#include "support/each_step.h"
#include "support/expect_error.h"
#include "support/forwarding_device.h"
#include "support/golden.h"
#include "support/near.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using nlohmann::json;

bool is_for_cuda(const DeviceOp& op) {
  const auto* randn = std::get_if<Randn>(&op);
  if (randn != nullptr) return randn->generator == Generator::kTorchCuda;
  const auto* gemm = std::get_if<Gemm>(&op);
  // With 16 bits, cuBLASLt adds the bias, and it does not compute empty products.
  if (gemm != nullptr && gemm->bias && is_narrow(op) && gemm->a.size() == 0) return false;
  // A product without operands that only scales c; see CudaProduct::run.
  const bool scales_only = gemm != nullptr && gemm->c.size() > 0 && gemm->a.size() == 0 &&
                           gemm->beta != 0 && gemm->beta != 1;
  return !scales_only;
}

std::vector<std::byte> run_on_cpu(const DeviceOp& op, Memory memory) {
  const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  const auto stream = device->new_stream("compute");
  const Addresses addresses = memory.addresses();
  device->prepare(op);
  device->run(op, addresses, *stream, {});
  stream->synchronize();
  return memory.bytes();
}

template <class T>
T number_at(const std::vector<std::byte>& bytes, const Tensor& tensor, std::int64_t i) {
  T number{};
  std::memcpy(&number, bytes.data() + tensor.offset_bytes + i * std::int64_t{sizeof(T)}, sizeof(T));
  return number;
}

double real_at(const std::vector<std::byte>& bytes, const Tensor& tensor, std::int64_t i) {
  return with_number(tensor.dtype, [&]<class Number>(Number) {
    return double{float_of(number_at<Number>(bytes, tensor, i))};
  });
}

/// Whether a row of one of the product's 16-bit matrices is not a multiple of 16 bytes.
bool has_odd_rows(const Gemm& op) {
  return (op.a.cols | op.b.cols | op.c.cols) % 8 != 0;
}

/// What a product, or a sum of rows, of 16-bit numbers wrote: whatever rounding explains.
void expect_explained(const OpCase& op_case, const std::vector<std::vector<double>>& terms,
                      const std::vector<std::byte>& actual,
                      const std::vector<std::byte>& expected) {
  const auto* const gemm = std::get_if<Gemm>(&op_case.op);
  const Tensor& out = gemm != nullptr ? gemm->c : std::get<SumRows>(op_case.op).out;
  const Activation activation = gemm != nullptr ? gemm->activation : Activation::kNone;
  for (std::int64_t i = 0; i < out.size(); ++i) {
    const bool in_two_steps = gemm != nullptr && gemm->bias && has_odd_rows(*gemm);
    const ExactSum once = exact_sum(at(terms, i));
    const ExactSum twice = in_two_steps ? sum_after_rounding(at(terms, i), out.dtype) : once;
    const auto either = [&](auto&& explained) { return explained(once) || explained(twice); };
    const double number = real_at(actual, out, i);
    const double on_cpu = real_at(expected, out, i);
    ASSERT_TRUE(either([&](ExactSum sum) {
      // Smooth activations are compared with the CPU's, which is that of the sum rounded once.
      const bool is_compared = activation != Activation::kNone && activation != Activation::kRelu;
      if (is_compared) sum.error += std::abs(sum.value - once.value) / 2;
      return explains_output(sum, activation, out.dtype, number, on_cpu);
    })) << "element "
        << i << " is " << number << ", the CPU's " << on_cpu << ", its sum " << once.value << " +- "
        << once.error;
    if (gemm == nullptr || !gemm->pre_activation) continue;
    const Tensor& before = *gemm->pre_activation;
    ASSERT_TRUE(either([&](const ExactSum& sum) {
      return explains(sum, before.dtype, real_at(actual, before, i));
    })) << "element "
        << i;
  }
}

/// The place of a 16-bit number among all of its type, from these bits; that of 0 is 0.
int place_of(std::int16_t bits) {
  return bits < 0 ? -(bits & 0x7FFF) : bits;
}

/// Sums have a different order, and exponentials come from a different library.
void expect_near(const Tensor& tensor, const std::vector<std::byte>& actual,
                 const std::vector<std::byte>& expected) {
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    if (tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16) {
      // At most the neighboring number of the type.
      const int difference = place_of(number_at<std::int16_t>(actual, tensor, i)) -
                             place_of(number_at<std::int16_t>(expected, tensor, i));
      ASSERT_LE(std::abs(difference), 1) << "element " << i;
    } else if (tensor.dtype == DType::kI8 || tensor.dtype == DType::kI32) {
      const std::int64_t size = bytes_of(tensor.dtype);
      const std::int64_t at = tensor.offset_bytes + i * size;
      ASSERT_EQ(
          std::memcmp(actual.data() + at, expected.data() + at, static_cast<std::size_t>(size)), 0)
          << "element " << i;
    } else {
      const double want = number_at<float>(expected, tensor, i);
      ASSERT_NEAR(number_at<float>(actual, tensor, i), want, 1e-5 * (1 + std::abs(want)))
          << "element " << i;
    }
  }
}

bool is_attention(const DeviceOp& op) {
  return std::holds_alternative<Attention>(op) || std::holds_alternative<AttentionGrad>(op);
}

/// Devices have tiles of other sizes, and probabilities of 16 bits are rounded in each tile
/// relative to its largest score. That is 2^-8 of a probability in bf16, so of a mean of values
/// less than 2^-7 of the largest, on the way there and back.
void expect_near_in_tiles(const Tensor& tensor, const std::vector<std::byte>& actual,
                          const std::vector<std::byte>& expected) {
  if (tensor.dtype == DType::kF32) return expect_near(tensor, actual, expected);
  double largest = 0;
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    largest = std::max(largest, std::abs(double{real_at(expected, tensor, i)}));
  }
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    ASSERT_NEAR(real_at(actual, tensor, i), real_at(expected, tensor, i), 0x1p-7 * largest)
        << "element " << i;
  }
}

/// Whether only the op itself reads what it writes there.
bool is_scratch(const DeviceOp& op, const Tensor& tensor) {
  const auto* const grad = std::get_if<AttentionGrad>(&op);
  return grad != nullptr && grad->scratch == tensor;
}

class CudaDevice : public OnGpu {
 protected:
  void expect_parity(OpCase& op_case) {
    SCOPED_TRACE(op_case.name);
    const auto expected = run_on_cpu(op_case.op, op_case.memory);
    auto actual = run(op_case.op, op_case.memory);
    const auto terms = terms_of(op_case.op, op_case.memory);
    if (terms) expect_explained(op_case, *terms, actual, expected);
    for (const Access& access : accesses_of(Op(op_case.op))) {
      const Tensor& tensor = access.tensor;
      if (!access.writes) continue;
      if (is_attention(op_case.op) && !is_scratch(op_case.op, tensor)) {
        expect_near_in_tiles(tensor, actual, expected);
      } else if (!terms && tensor.dtype != DType::kU8 && !is_scratch(op_case.op, tensor)) {
        expect_near(tensor, actual, expected);
      }
      // The rest must be unchanged.
      std::memcpy(actual.data() + tensor.offset_bytes, expected.data() + tensor.offset_bytes,
                  static_cast<std::size_t>(tensor.bytes()));
    }
    EXPECT_TRUE(actual == expected) << "bytes changed that the op does not write";
  }
};

/// Leaves out the largest shapes under a sanitizer, because the fake's kernels are slow.
constexpr std::size_t kMaxBytes = kAddressSanitized ? 120'000 : SIZE_MAX;

TEST_F(CudaDevice, ComputesEveryOpAsTheCpuDoes) {
  for (OpCase& op_case : all_op_cases()) {
    if (op_case.memory.bytes().size() > kMaxBytes) continue;
    if (is_for_cuda(op_case.op)) expect_parity(op_case);
  }
}

TEST_F(CudaDevice, UpdatesFromFactorsInTf32AsExactlyAsInFp32) {
  std::vector<OpCase> cases = all_op_cases();
  std::erase_if(cases, [](OpCase& op_case) {
    return !std::holds_alternative<LinearAdam>(op_case.op) || is_narrow(op_case.op) ||
           op_case.memory.bytes().size() > kMaxBytes;
  });
  std::vector<std::vector<std::byte>> in_fp32;
  for (OpCase& op_case : cases) in_fp32.push_back(run(op_case.op, op_case.memory));
  open({.device = "cuda", .precision = Precision::kTf32});
  std::size_t other_bits = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    expect_parity(cases[i]);
    if (run(cases[i].op, cases[i].memory) != in_fp32[i]) ++other_bits;
  }
  EXPECT_GT(other_bits, cases.size() / 2) << "as if by the same instructions";
}

TEST_F(CudaDevice, ComputesProductsInTf32RoughlyAsInFp32) {
  open({.device = "cuda", .precision = Precision::kTf32});
  EXPECT_NE(device->info().product_library.find("tf32"), std::string::npos);
  constexpr std::int64_t kSize = 64;
  Memory memory;
  const Gemm op{
      .c = memory.add(kSize, kSize), .a = memory.add(kSize, kSize), .b = memory.add(kSize, kSize)};
  for (const Tensor& tensor : {op.a, op.b}) {
    float next = 0.001F;
    for (float& value : memory.values(tensor)) value = next = 1 - 1.9F * next * next;
  }
  const auto expected = run_on_cpu(op, memory);
  const auto actual = run(op, memory);
  for (std::int64_t i = 0; i < op.c.size(); ++i) {
    const double want = number_at<float>(expected, op.c, i);
    EXPECT_NEAR(number_at<float>(actual, op.c, i), want, 2e-2 * (1 + std::abs(want)));
  }
}

TEST_F(CudaDevice, DrawsTheNormalNumbersOfPyTorch) {
  constexpr std::int64_t kCount = 5000;
  constexpr CudaGeometry kAnyGpu{};  // such small sizes do not depend on it
  PhiloxState state{.seed = 7, .offset = 0};
  std::vector<float> expected(kCount);
  Memory memory;
  const Randn op{.out = memory.add(1, kCount),
                 .state = memory.add(1, sizeof(PhiloxState), DType::kU8),
                 .generator = Generator::kTorchCuda};
  for (int call = 0; call < 2; ++call) {
    std::memcpy(memory.bytes(op.state).data(), &state, sizeof(state));
    philox_randn(state, expected, kAnyGpu);
    const auto bytes = run(op, memory);
    for (std::int64_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(number_at<float>(bytes, op.out, i), expected[static_cast<std::size_t>(i)], 5e-6);
    }
    EXPECT_EQ(std::memcmp(bytes.data() + op.state.offset_bytes, &state, sizeof(state)), 0);
  }
}

/// Reads files that bench/torch_worker.py wrote on this machine: consecutive calls of torch.randn.
TEST_F(CudaDevice, DrawsWhatPyTorchDrewHere) {
  const char* const folder = std::getenv("BARESTEP_TORCH_RANDN");
  if (folder == nullptr)
    GTEST_SKIP() << "BARESTEP_TORCH_RANDN names no folder of PyTorch's numbers";
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    std::ifstream file(std::string(folder) + "/randn_" + std::to_string(seed) + ".f32");
    PhiloxState state{.seed = seed, .offset = 0};
    for (const std::int64_t count : {64 * 8192, 64 * 1024, 33}) {
      Memory memory;
      const Randn op{.out = memory.add(1, count),
                     .state = memory.add(1, sizeof(PhiloxState), DType::kU8),
                     .generator = Generator::kTorchCuda};
      std::vector<float> expected(static_cast<std::size_t>(count));
      file.read(reinterpret_cast<char*>(expected.data()), op.out.bytes());
      ASSERT_TRUE(file) << "the file of seed " << seed << " ends early";
      std::memcpy(memory.bytes(op.state).data(), &state, sizeof(state));
      const auto bytes = run(op, memory);
      std::memcpy(&state, bytes.data() + op.state.offset_bytes, sizeof(state));
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(number_at<float>(bytes, op.out, i), expected[static_cast<std::size_t>(i)])
            << "number " << i << " of " << count << ", seed " << seed;
      }
    }
  }
}

TEST_F(CudaDevice, RefusesMoreMemoryThanThereIs) {
  const std::int64_t bytes = 2 * device->info().total_bytes;
  expect_error(ExitCode::kMemory, "memory of device 'cuda:0': ", [&] {
    device->allocate(bytes, MemoryKind::kDevice);
  });
  // The device still works.
  const DeviceMemory small(*device, 256);
}

TEST_F(CudaDevice, CallsTheHostInStreamOrder) {
  int value = 1;
  stream->call([](void* argument) { *static_cast<int*>(argument) += 41; }, &value);
  stream->synchronize();
  EXPECT_EQ(value, 42);
}

TEST_F(CudaDevice, TimesADelay) {
  const auto before = device->new_event(EventUse::kTime);
  const auto after = device->new_event(EventUse::kTime);
  const DeviceOp delay = Delay{.seconds = 0.002};
  before->record(*stream);
  device->run(delay, Addresses(), *stream, {});
  after->record(*stream);
  after->synchronize();
  EXPECT_TRUE(after->reached());
  EXPECT_GE(after->seconds_since(*before), 0.002);
}

// Training.

struct TrainingResult {
  std::vector<float> losses;
  FlatWeights weights;
  std::vector<ScalingReport> scaling{};  // of fp16

  friend bool operator==(const TrainingResult&, const TrainingResult&) = default;
};

TrainConfig small_config() {
  TrainConfig config;
  config.model.layers = {9, 33, 6};
  config.data.batch_size = 5;
  config.training.steps = 6;
  config.training.seed = 3;
  config.device.device = "cuda";
  return config;
}

/// Counts the launches of several ops, by their number of ops.
class CountingDevice final : public ForwardingDevice {
 public:
  CountingDevice(std::unique_ptr<Device> device, std::map<std::size_t, int>& launches)
      : ForwardingDevice(*device), device_(std::move(device)), launches_(launches) {}
  void run_joined(std::span<const DeviceOp* const> ops, const Addresses& addresses, Stream& stream,
                  Tag tag) override {
    ++launches_[ops.size()];
    ForwardingDevice::run_joined(ops, addresses, stream, tag);
  }

 private:
  std::unique_ptr<Device> device_;
  std::map<std::size_t, int>& launches_;
};

TrainingResult train(const TrainConfig& config, const std::string& choices = "",
                     std::map<std::size_t, int>* launches = nullptr) {
  std::unique_ptr<Device> device;
  if (config.device.device == "cuda") device = make_cuda_device(config.device, 0);
  if (!choices.empty()) device->set_product_choices(choices);
  if (launches != nullptr) {
    device = std::make_unique<CountingDevice>(std::move(device), *launches);
  }
  TrainerHarness run(config, Generator::kTorchCuda, std::move(device));
  run.run();
  const Arena& arena = run.trainer->runner().arenas()[0];
  EXPECT_EQ(arena.high_water_bytes(), run.trainer->plan().device_bytes(0));
  TrainingResult result{run.losses(), run.trainer->weights()};
  for (const StepReport& report : run.steps) {
    if (report.scaling) result.scaling.push_back(*report.scaling);
  }
  return result;
}

void expect_equal_within(const TrainingResult& a, const TrainingResult& b, double tolerance) {
  expect_within(a.losses, b.losses, tolerance);
  EXPECT_LE(relative_distance(a.weights, b.weights), 10 * tolerance);
}

TrainConfig on_the_cpu(TrainConfig config) {
  config.device = {.device = "cpu",
                   .threads = 1,
                   .gemm = GemmProvider::kReference,
                   .precision = config.device.precision};
  return config;
}

class CudaTraining : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(CudaTraining, EqualsTheCpuDevice) {
  const TrainConfig usual = small_config();
  TrainConfig apart = usual, adds_up = usual, adamw = usual, sgd = usual;
  apart.device.fusion = false;
  adds_up.training.zero_grad = false;
  adamw.optimizer.kind = OptimizerKind::kAdamW;
  sgd.optimizer = {.kind = OptimizerKind::kSgd, .lr = 0.1, .weight_decay = 0.01};
  TrainConfig nesterov = sgd;
  nesterov.optimizer.momentum = 0.9;
  nesterov.optimizer.nesterov = true;
  nesterov.training.accumulate = 2;
  for (const TrainConfig& config : {usual, apart, adds_up, adamw, sgd, nesterov}) {
    expect_equal_within(train(config), train(on_the_cpu(config)), 1e-6);
  }
}

TEST_F(CudaTraining, DropsWhatTheCpuDeviceDropsInAGraphToo) {
  TrainConfig config = small_config();
  config.model.dropout = 0.3;
  const TrainingResult eager = train(config);
  expect_equal_within(eager, train(on_the_cpu(config)), 1e-6);
  config.device.graph = true;
  EXPECT_EQ(train(config), eager);
}

TEST_F(CudaTraining, HasTheSameBitsWithRecomputationInAGraphToo) {
  TrainConfig config = small_config();
  config.model.layers = {9, 33, 12, 20, 6};
  config.model.dropout = 0.3;
  config.training.accumulate = 2;
  const TrainingResult none = train(config);
  config.training.recompute = 2;
  for (const bool graph : {false, true}) {
    config.device.graph = graph;
    EXPECT_EQ(train(config), none) << graph;
  }
}

// Each step is within 1e-6, so a run is within that times the number of steps.
TEST_F(CudaTraining, UpdatesFusedAsSeparately) {
  TrainConfig plain = small_config();
  TrainConfig clipped = plain;
  clipped.training.clip_norm = 0.01;
  clipped.optimizer.kind = OptimizerKind::kAdamW;
  TrainConfig parts = clipped;
  parts.training.accumulate = 2;
  parts.device.graph = true;
  for (const TrainConfig& separate : {plain, clipped, parts}) {
    TrainConfig fused = separate;
    fused.training.update = Update::kFused;
    expect_equal_within(train(fused), train(separate),
                        1e-6 * static_cast<double>(*separate.training.steps));
  }
}

/// Both round at the same points, and sums differ by less than a 16-bit number: rounding rarely
/// goes to the other neighbor. The bounds are those of PyTorch's golden files.
TEST_F(CudaTraining, EqualsTheCpuDeviceInSixteenBits) {
  for (const bool graph : {false, true}) {
    TrainConfig bf16 = small_config();
    bf16.device.precision = Precision::kBf16;
    TrainConfig several = bf16;
    several.training.accumulate = 2;
    several.optimizer.kind = OptimizerKind::kAdamW;
    TrainConfig fused = bf16;
    fused.training.update = Update::kFused;
    TrainConfig fp16 = small_config();
    fp16.device.precision = Precision::kFp16;
    TrainConfig clipped = fp16;
    clipped.training.clip_norm = 0.1;
    for (TrainConfig config : {bf16, several, fused, fp16, clipped}) {
      config.device.graph = graph;
      SCOPED_TRACE(name_of(config.device.precision));
      expect_equal_within(train(config), train(on_the_cpu(config)), 4e-4);
    }
  }
}

/// Gradients overflow at first. The skipped steps and the scale of each step must not depend on the
/// device, or on a graph captured earlier.
TEST_F(CudaTraining, ScalesLossesAndSkipsStepsAsTheCpuDoes) {
  TrainConfig config = small_config();
  config.device.precision = Precision::kFp16;
  config.training.steps = 12;
  config.training.loss_scale = LossScaling{.initial = std::ldexp(1.0, 24)};
  config.training.loss_scale_window = 3;
  const std::vector<ScalingReport> expected = train(on_the_cpu(config)).scaling;
  ASSERT_EQ(expected.size(), 12);
  EXPECT_TRUE(expected.front().skipped);
  EXPECT_TRUE(std::ranges::any_of(expected, [](const auto& each) { return !each.skipped; }));
  EXPECT_EQ(train(config).scaling, expected);
  config.device.graph = true;
  EXPECT_EQ(train(config).scaling, expected);
}

class CudaLaunches : public TempDirTest {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// A step's launches of several ops: the last product with the loss, the two input gradients each
/// with the ReLU before it, and the updates of all three layers.
TEST_F(CudaLaunches, OfSeveralOpsHaveTheBitsOfOneAfterAnother) {
  for (const Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
    SCOPED_TRACE(name_of(precision));
    TrainConfig config = small_config();
    config.model.layers = {16, 32, 24, 8};
    config.model.loss = precision == Precision::kTf32 ? LossKind::kHuber : LossKind::kMse;
    config.training.update = Update::kFused;
    config.device.precision = precision;
    const std::filesystem::path path = folder() / std::string(name_of(precision));
    config.device.autotune = path.string();
    train(config);
    json choices = json::parse(read_file(path));
    for (json& choice : choices.at("choices")) {
      // "barestep skinny product 1", in one split.
      if (choice.at("transpose") == "TN") continue;
      choice["algorithm"] =
          "626172657374657020736b696e6e792070726f64756374203101" + std::string(76, '0');
    }
    std::ofstream(path) << choices.dump();
    train(config);
    choices = json::parse(read_file(path));
    EXPECT_EQ(choices.at("kernels").size(), 4U) << choices.at("kernels");
    const auto preferring = [&](double other_us) {
      for (json& kernels : choices.at("kernels")) {
        EXPECT_GT(kernels.at("other_us").get<double>(), 0);
        kernels["usual_us"] = 2;
        kernels["other_us"] = other_us;
      }
      return choices.dump();
    };
    std::map<std::size_t, int> launches;
    const TrainingResult apart = train(config, preferring(3), &launches);
    EXPECT_TRUE(launches.empty());
    EXPECT_EQ(train(config, preferring(1), &launches), apart);
    const int steps = static_cast<int>(*config.training.steps);
    EXPECT_EQ(launches, (std::map<std::size_t, int>{{2, 3 * steps}, {3, steps}}));
    launches.clear();
    config.device.graph = true;
    EXPECT_EQ(train(config, preferring(1), &launches), apart);
    EXPECT_EQ(launches, (std::map<std::size_t, int>{{2, 3 * 3}, {3, 3}})) << "captured twice";
  }
}

TrainConfig transformer_config() {
  TrainConfig config;
  config.model = {.dim = 24,
                  .depth = 2,
                  .block = BlockKind::kTransformer,
                  .heads = 3,
                  .length = 7,
                  .causal = true};
  config.data.batch_size = 3;
  config.training.steps = 5;
  config.training.seed = 3;
  config.device.device = "cuda";
  return config;
}

/// Losses only: the gradients of keys' biases are 0 but for rounding, and Adam takes whole steps by
/// them.
TEST_F(CudaTraining, TrainsTransformerBlocksAsTheCpuDoesInBothFormsOfAttention) {
  for (const AttentionForm form : {AttentionForm::kFlash, AttentionForm::kStandard}) {
    TrainConfig config = transformer_config();
    config.model.attention = form;
    const TrainingResult eager = train(config);
    expect_within(eager.losses, train(on_the_cpu(config)).losses, 5e-6);
    config.device.graph = true;
    EXPECT_EQ(train(config), eager);
  }
}

TEST_F(CudaTraining, TrainsTransformerBlocksWithRecomputationToTheBit) {
  TrainConfig config = transformer_config();
  config.model.causal = false;
  config.model.dropout = 0.2;
  config.training.accumulate = 2;
  const TrainingResult none = train(config);
  config.training.recompute = 2;
  EXPECT_EQ(train(config), none);
}

TEST_F(CudaTraining, TrainsTransformerBlocksAsTheCpuDoesInSixteenBits) {
  for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
    SCOPED_TRACE(name_of(precision));
    TrainConfig config = transformer_config();
    config.device.precision = precision;
    const std::vector<float> expected = train(on_the_cpu(config)).losses;
    expect_within(train(config).losses, expected, 4e-4);
    config.device.graph = true;
    expect_within(train(config).losses, expected, 4e-4);
  }
}

TEST_F(CudaTraining, GoesOnToTheBitFromASnapshotThatIsCopiedBesideIt) {
  for (const bool graph : {false, true}) {
    TrainConfig config = small_config();
    config.device.graph = graph;
    config.training.log_every = 4;
    config.checkpoint.folder = "checkpoints";
    TrainerHarness run(config, Generator::kTorchCuda, make_cuda_device(config.device, 0));
    const std::atomic<bool> never{false};
    run.trainer->pause_when(1, never);
    TrainingState state{.position = {.steps = 1}, .tensors = {}};
    run.at_pause = [&] {
      if (run.trainer->steps_done() == 1) run.trainer->begin_copy();
      if (run.trainer->steps_done() == 4)
        add_saved(state, *run.programs, run.trainer->finish_copy());
    };
    run.run();
    TrainerHarness rest(config, Generator::kTorchCuda, make_cuda_device(config.device, 0), &state);
    rest.run();
    const std::vector<float> whole = run.losses();
    EXPECT_EQ(rest.losses(), std::vector<float>(whole.begin() + 1, whole.end()));
    EXPECT_EQ(rest.trainer->weights(), run.trainer->weights());
  }
}

TEST_F(CudaTraining, HasItsWorkOnTheHostsClock) {
  constexpr double kNear = 0.01;  // the fake's events are not more precise
  for (const bool graph : {false, true}) {
    TrainConfig config = small_config();
    config.device.graph = graph;
    ByNodes profiler([](std::int64_t step) { return step % 2 == 1; });
    TrainerHarness run(config, Generator::kTorchCuda, make_cuda_device(config.device, 0));
    Trainer trainer(run.config, *run.programs, {run.device.get()}, {}, nullptr, {},
                    graph ? nullptr : &profiler);
    run.after_step = [&](const StepReport& report) {
      const StepTimeline& step = *report.timeline->at(0);
      EXPECT_EQ(step.host.is_graph, graph && report.step > 0);
      const double near_s = kNear + trainer.runner().clock_error_s();
      for (const Span& span : step.spans) {
        EXPECT_TRUE(span.is_known());
        EXPECT_GE(span.seconds(), 0);
        EXPECT_GE(span.begin_s, step.host.begin_s - near_s);
        EXPECT_LE(span.end_s, step.host.end_s + near_s);
        if (!graph) {
          EXPECT_GE(span.queued_until_s, span.queued_s);
        }
      }
    };
    trainer.run(run);
  }
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

class TransformerPredictedForCuda : public TempDirTest,
                                    public testing::WithParamInterface<std::string> {};

TEST_P(TransformerPredictedForCuda, LossesLieWithinAMillionthInBothForms) {
  if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  const json golden = attention_golden(golden_path("x").parent_path(), GetParam());
  TrainConfig config = config_of_transformer(golden);
  config.device.device = "cuda";
  const std::vector<double> expected = golden.at("losses");
  for (const AttentionForm form : kValuesOf<AttentionForm>) {
    SCOPED_TRACE(name_of(form));
    config.model.attention = form;
    expect_within(train(config).losses, expected, 1e-6);
  }
}

/// Choices of the device with which it computes a model's attention on tensor cores, whatever is
/// faster there. Writes `file`.
std::string choices_of_tensor_cores(const TrainConfig& config, const std::filesystem::path& file) {
  const std::int64_t dim = *config.model.dim;
  const std::int64_t length = *config.model.length;
  const std::int64_t heads = *config.model.heads;
  const DType type = config.device.precision == Precision::kBf16   ? DType::kBF16
                     : config.device.precision == Precision::kFp16 ? DType::kF16
                                                                   : DType::kF32;
  const auto tensor = [&](std::int64_t cols, DType of) {
    return Tensor{.buffer = 0, .rows = length, .cols = cols, .dtype = of};
  };
  const AttentionShape shape{.heads = heads, .length = length, .causal = config.model.causal};
  const Attention forward{.out = tensor(dim, type),
                          .kept = tensor(heads, DType::kF32),
                          .qkv = tensor(3 * dim, type),
                          .shape = shape};
  DeviceConfig tuned = config.device;
  tuned.autotune = file;
  const auto device = make_cuda_device(tuned, 0);
  device->prepare(forward);
  device->prepare(AttentionGrad{.grad_qkv = forward.qkv,
                                .qkv = forward.qkv,
                                .out = forward.out,
                                .grad_out = forward.out,
                                .kept = forward.kept,
                                .shape = shape});
  json choices = json::parse(device->product_choices());
  for (json& kernels : choices.at("kernels"))
    kernels["usual_us"] = 2 * kernels.at("other_us").get<double>();
  return choices.dump();
}

TEST_P(TransformerPredictedForCuda, LossesLieWithinTheirRoundingOnTensorCores) {
  if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  const json golden = attention_golden(golden_path("x").parent_path(), GetParam());
  TrainConfig config = config_of_transformer(golden);
  config.device.device = "cuda";
  config.training.steps = 3;
  std::vector<double> expected = golden.at("losses");
  expected.resize(3);
  for (const auto& [precision, tolerance] : {std::pair(Precision::kFp32, 1e-6),
                                             {Precision::kTf32, 1e-3},
                                             {Precision::kBf16, 2e-3},
                                             {Precision::kFp16, 1e-3}}) {
    SCOPED_TRACE(name_of(precision));
    config.device.precision = precision;
    const std::string choices =
        choices_of_tensor_cores(config, folder() / std::string(name_of(precision)));
    const TrainingResult eager = train(config, choices);
    expect_within(eager.losses, expected, tolerance);
    if (precision != Precision::kFp32) continue;
    EXPECT_NE(eager, train(config)) << "the kernels were the same";
    TrainConfig with_graph = config;
    with_graph.device.graph = true;
    EXPECT_EQ(train(with_graph, choices), eager);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TransformerPredictedForCuda,
                         testing::ValuesIn(words_of(BARESTEP_CUDA_TRANSFORMERS)),
                         [](const auto& golden) { return golden.param; });

class PredictedForCuda : public testing::TestWithParam<std::string> {};

/// A golden run's losses in this precision beside its losses in fp32.
void expect_predicted(const std::string& name, Precision precision, double tolerance) {
  SCOPED_TRACE(name_of(precision));
  const json golden = json::parse(std::ifstream(golden_path(name)));
  TrainConfig config;
  config.model.dim = golden.at("dim");
  config.model.depth = golden.at("depth");
  config.data.batch_size = golden.at("batch");
  config.training.seed = golden.at("seed");
  config.training.steps = static_cast<std::int64_t>(golden.at("losses").size());
  config.device.device = "cuda";
  config.device.precision = precision;
  const std::vector<double> expected = golden.at("losses");
  expect_within(train(config).losses, expected, tolerance);
}

TEST_P(PredictedForCuda, LossesLieWithinAMillionth) {
  if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  expect_predicted(GetParam(), Precision::kFp32, 1e-6);
}

/// On the CPU, fp16 and bf16 are at most 3.5e-4 from fp32.
TEST_P(PredictedForCuda, LossesOfShorterPrecisionsLieWithinAThousandthOfThoseInFp32) {
  if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  for (const Precision precision : {Precision::kTf32, Precision::kBf16, Precision::kFp16}) {
    expect_predicted(GetParam(), precision, 1e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, PredictedForCuda,
                         testing::ValuesIn(words_of(BARESTEP_CUDA_GOLDENS)),
                         [](const auto& golden) { return golden.param; });

}  // namespace
}  // namespace barestep
