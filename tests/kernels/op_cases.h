// Every device op with awkward shapes, and the numbers it reads.
#pragma once

#include "core/addresses.h"
#include "core/ops.h"
#include "support/testing.h"

namespace barestep {

/// The bytes of one buffer that holds tensors with gaps between them.
class Memory {
 public:
  /// Appends a tensor.
  Tensor add(std::int64_t rows, std::int64_t cols, DType dtype = DType::kF32);

  template <class T = float>
  [[nodiscard]] std::span<T> values(const Tensor& tensor) {
    return {reinterpret_cast<T*>(bytes_.data() + tensor.offset_bytes),
            static_cast<std::size_t>(tensor.size())};
  }

  [[nodiscard]] std::span<std::byte> bytes(const Tensor& tensor) {
    return std::span(bytes_).subspan(static_cast<std::size_t>(tensor.offset_bytes),
                                     static_cast<std::size_t>(tensor.bytes()));
  }

  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

  /// Binds buffer 0 to these bytes.
  [[nodiscard]] Addresses addresses() { return Addresses({bytes_.data()}); }

 private:
  std::vector<std::byte> bytes_;
};

struct OpCase {
  std::string name;
  DeviceOp op;
  Memory memory;  // holds the numbers that the op reads
};

/// At least one case for each kind of op, including those with 16-bit operands.
std::vector<OpCase> all_op_cases();

/// An Attention in double, straight from its definition.
struct ExactAttention {
  std::vector<double> out, log_sums, probabilities;  // in the order of the tensors
  std::vector<double> grad_qkv;                      // if given a gradient of out
};
ExactAttention exact_attention(const AttentionShape& shape, std::int64_t rows,
                               std::span<const float> qkv, std::span<const float> grad_out = {});

/// The mean of a row and its mean squared deviation.
struct ExactMoments {
  double mean = 0, variance = 0;
};
ExactMoments exact_moments(std::span<const float> row);

/// Whether the op has a 16-bit operand and is not just a cast.
bool is_narrow(const DeviceOp& op);

/// The numbers of a tensor of a real type, in fp32.
std::vector<float> numbers_of(Memory& memory, const Tensor& tensor);
/// Rounds numbers to the tensor's type.
void set_numbers(Memory& memory, const Tensor& tensor, std::span<const float> numbers);

/// Whether a library of products computes the op.
bool multiplies(const DeviceOp& op);

}  // namespace barestep
