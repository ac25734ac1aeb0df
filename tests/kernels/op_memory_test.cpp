// What ops touch: only what accesses_of declares; and that results depend on nothing else, the
// number of threads included.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "kernels/cpu_ops.h"
#include "kernels/op_cases.h"

namespace barestep {
namespace {

constexpr std::byte kNan{0xff};  // floats of this byte are NaN

/// Memory that holds `fill` except in what the op declares to read.
Memory poisoned(OpCase& op_case, std::byte fill) {
  Memory memory(op_case.memory.bytes().size(), fill);
  for (const Access& access : accesses_of(Op(op_case.op))) {
    if (!access.writes)
      std::ranges::copy(op_case.memory.bytes(access.tensor), memory.bytes(access.tensor).begin());
  }
  return memory;
}

void run(const DeviceOp& op, Memory& memory, int threads, Product& product) {
  ThreadPool pool(threads);
  CpuOps ops(pool, product);
  ops.prepare(op);
  ops.run(op, memory.addresses());
}

Memory result_of(OpCase& op_case, std::byte fill, int threads, Product& product) {
  Memory memory = poisoned(op_case, fill);
  run(op_case.op, memory, threads, product);
  return memory;
}

void expect_equal_results(OpCase& op_case, Memory& expected, Memory& actual) {
  for (const Access& access : accesses_of(Op(op_case.op))) {
    if (!access.writes) continue;
    EXPECT_TRUE(std::ranges::equal(expected.bytes(access.tensor), actual.bytes(access.tensor)))
        << "tensor at byte " << access.tensor.offset_bytes;
  }
}

std::vector<std::unique_ptr<Product>> products() {
  std::vector<std::unique_ptr<Product>> all;
  all.push_back(make_reference_product());
  if (auto cblas = make_cblas_product()) all.push_back(std::move(cblas));
  return all;
}

TEST(OpCases, CoverEveryKindOfOp) {
  std::set<std::size_t> kinds;
  for (const OpCase& op_case : all_op_cases()) kinds.insert(op_case.op.index());
  EXPECT_EQ(kinds.size(), std::variant_size_v<DeviceOp>);
}

TEST(Ops, WriteOnlyWhatTheyDeclare) {
  for (const auto& product : products()) {
    for (OpCase& op_case : all_op_cases()) {
      SCOPED_TRACE(op_case.name);
      Memory before = poisoned(op_case, kNan);
      Memory after = result_of(op_case, kNan, 2, *product);
      for (const Access& access : accesses_of(Op(op_case.op))) {
        if (access.writes)
          std::ranges::copy(after.bytes(access.tensor), before.bytes(access.tensor).begin());
      }
      EXPECT_TRUE(before.bytes() == after.bytes()) << product->name();
    }
  }
}

TEST(Ops, ReadOnlyWhatTheyDeclare) {
  for (const auto& product : products()) {
    for (OpCase& op_case : all_op_cases()) {
      SCOPED_TRACE(op_case.name);
      Memory expected = result_of(op_case, std::byte{0}, 1, *product);
      for (const std::byte fill : {kNan, std::byte{0x3c}}) {
        Memory actual = result_of(op_case, fill, 1, *product);
        expect_equal_results(op_case, expected, actual);
      }
    }
  }
}

TEST(Ops, GiveTheSameBitsForAnyNumberOfThreads) {
  const auto product = make_reference_product();
  for (OpCase& op_case : all_op_cases()) {
    SCOPED_TRACE(op_case.name);
    Memory expected = result_of(op_case, kNan, 1, *product);
    for (const int threads : {2, 3, 5}) {
      Memory actual = result_of(op_case, kNan, threads, *product);
      expect_equal_results(op_case, expected, actual);
    }
  }
}

TEST(Ops, GiveTheSameBitsWhileAnotherThreadUsesThePool) {
  const auto product = make_reference_product();
  ThreadPool pool(3);
  CpuOps ops(pool, *product);
  for (OpCase& op_case : all_op_cases()) {
    SCOPED_TRACE(op_case.name);
    Memory expected = result_of(op_case, kNan, 1, *product);
    Memory first = poisoned(op_case, kNan);
    Memory second = poisoned(op_case, kNan);
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
