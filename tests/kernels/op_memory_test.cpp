// Ops access only what accesses_of declares, and their results depend on nothing else, including
// the number of threads.
#include "kernels/cpu/ops.h"
#include "kernels/op_cases.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// The content, word by word, of memory that an op does not declare to read.
using Poison = std::uint32_t (*)(std::size_t word);

/// Different NaNs, so that mixed-up words are detected.
constexpr Poison kNans = [](std::size_t word) {
  return 0xfff00000 | static_cast<std::uint32_t>(word & 0xfffff);
};
constexpr Poison kZeros = [](std::size_t) { return std::uint32_t{0}; };
constexpr Poison kNumbers = [](std::size_t) { return std::uint32_t{0x3c3c3c3c}; };

/// Poison of this many bytes. Generated once, because sanitized loops are slow.
const std::uint32_t* words_of(Poison poison, std::size_t bytes) {
  static std::map<Poison, std::vector<std::uint32_t>> made;
  std::vector<std::uint32_t>& words = made[poison];
  while (words.size() * sizeof(std::uint32_t) < bytes) words.push_back(poison(words.size()));
  return words.data();
}

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

bool equal_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// Memory that holds poison except for the tensors that the op declares to read.
Memory poisoned(OpCase& op_case, Poison poison) {
  Memory memory = op_case.memory;
  std::vector<std::byte>& bytes = memory.bytes();
  copy_bytes(std::as_bytes(std::span(words_of(poison, bytes.size()), bytes.size() / 4)), bytes);
  for (const Access& access : accesses_of(Op(op_case.op))) {
    if (!access.writes)
      copy_bytes(op_case.memory.bytes(access.tensor), memory.bytes(access.tensor));
  }
  return memory;
}

Memory result_of(OpCase& op_case, Poison poison, ThreadPool& pool, Product& product) {
  Memory memory = poisoned(op_case, poison);
  CpuOps ops(pool, product);
  ops.prepare(op_case.op);
  ops.run(op_case.op, memory.addresses());
  return memory;
}

void expect_equal_results(OpCase& op_case, Memory& expected, Memory& actual) {
  for (const Access& access : accesses_of(Op(op_case.op))) {
    if (!access.writes) continue;
    EXPECT_TRUE(equal_bytes(expected.bytes(access.tensor), actual.bytes(access.tensor)))
        << "tensor at byte " << access.tensor.offset_bytes;
  }
}

/// Calls `check` with each case and each library of products that takes part in it.
void for_each_case(const std::function<void(OpCase&, Product&)>& check) {
  std::vector<std::unique_ptr<Product>> products;
  products.push_back(make_reference_product());
  products.push_back(make_own_product());
  if (auto onednn = make_onednn_product()) products.push_back(std::move(onednn));
  if (auto cblas = make_cblas_product()) products.push_back(std::move(cblas));
  for (OpCase& op_case : all_op_cases()) {
    for (const auto& product : products) {
      if (product != products.front() && !multiplies(op_case.op)) continue;
      SCOPED_TRACE(testing::Message() << op_case.name << " with " << product->name());
      check(op_case, *product);
    }
  }
}

TEST(OpCases, CoverEveryKindOfOp) {
  std::set<std::size_t> kinds;
  for (const OpCase& op_case : all_op_cases()) kinds.insert(op_case.op.index());
  EXPECT_EQ(kinds.size(), std::variant_size_v<DeviceOp>);
}

TEST(Ops, WriteOnlyWhatTheyDeclare) {
  ThreadPool pool(2);
  for_each_case([&](OpCase& op_case, Product& product) {
    Memory before = poisoned(op_case, kNans);
    Memory after = result_of(op_case, kNans, pool, product);
    for (const Access& access : accesses_of(Op(op_case.op))) {
      if (access.writes) copy_bytes(after.bytes(access.tensor), before.bytes(access.tensor));
    }
    EXPECT_TRUE(equal_bytes(before.bytes(), after.bytes()));
  });
}

TEST(Ops, ReadOnlyWhatTheyDeclare) {
  ThreadPool pool(1);
  for_each_case([&](OpCase& op_case, Product& product) {
    Memory expected = result_of(op_case, kZeros, pool, product);
    for (const Poison poison : {kNans, kNumbers}) {
      Memory actual = result_of(op_case, poison, pool, product);
      expect_equal_results(op_case, expected, actual);
    }
  });
}

TEST(Ops, GiveTheSameBitsForAnyNumberOfThreads) {
  const auto product = make_reference_product();
  ThreadPool one(1), two(2), three(3), five(5);
  for (OpCase& op_case : all_op_cases()) {
    SCOPED_TRACE(op_case.name);
    Memory expected = result_of(op_case, kNans, one, *product);
    for (ThreadPool* const pool : {&two, &three, &five}) {
      Memory actual = result_of(op_case, kNans, *pool, *product);
      expect_equal_results(op_case, expected, actual);
    }
  }
}

TEST(Ops, GiveTheSameBitsWhileAnotherThreadUsesThePool) {
  const auto product = make_reference_product();
  ThreadPool one(1), pool(3);
  CpuOps ops(pool, *product);
  for (OpCase& op_case : all_op_cases()) {
    SCOPED_TRACE(op_case.name);
    Memory expected = result_of(op_case, kNans, one, *product);
    Memory first = poisoned(op_case, kNans);
    Memory second = poisoned(op_case, kNans);
    ops.prepare(op_case.op);
    const Addresses first_addresses = first.addresses();
    std::thread other([&] { ops.run(op_case.op, first_addresses); });
    ops.run(op_case.op, second.addresses());
    other.join();
    expect_equal_results(op_case, expected, first);
    expect_equal_results(op_case, expected, second);
  }
}

}  // namespace
}  // namespace barestep
