// Checkpoints for tests to write and compare.
#pragma once

#include "data/checkpoint_folder.h"
#include "support/testing.h"

namespace barestep {

inline StoredTensor stored(const std::string& name, const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, "F32", {static_cast<std::int64_t>(values.size())}, {bytes.begin(), bytes.end()}};
}

/// An image that differs for every step and run; its tensors have several types.
inline CheckpointImage image_of(std::int64_t step, int run = 0) {
  const auto value = static_cast<float>(step);
  StoredTensor random{"random", "U8", {3}, {std::byte{1}, std::byte{2}, std::byte(run)}};
  return {.step = step,
          .state = R"({"run": )" + std::to_string(run) + R"(, "text": "\"checksum\":\"\u00e4"})",
          .tensors = {std::move(random),
                      stored("net.0.weight", {value, 1, 2}),
                      stored("net.0.bias", {-value}),
                      stored("empty", {}),
                      {"updates", "I64", {}, std::vector<std::byte>(8, std::byte{7})}}};
}

/// Begins, writes and finishes a checkpoint, as a single writer.
inline void write_checkpoint(CheckpointFolder& folder, const CheckpointImage& image) {
  CheckpointForm form{.step = image.step, .state = image.state, .tensors = {}};
  std::vector<TensorPiece> pieces;
  std::vector<PieceChecksum> checksums;
  for (const StoredTensor& tensor : image.tensors) {
    pieces.push_back({.tensor = std::ssize(pieces), .bytes = tensor.bytes});
    checksums.push_back(checksum_of(pieces.back()));
    form.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, std::ssize(tensor.bytes)});
  }
  CheckpointDraft draft = folder.begin(form, std::move(checksums));
  if (const int result = draft.write_pieces(pieces); result < 0) {
    CheckpointFolder::fail_writing(draft.place(), result);
  }
  folder.finish(draft);
}

/// Everything in an image except the order of its tensors.
inline std::string text_of(const CheckpointImage& image) {
  std::map<std::string, std::string> tensors;
  for (const StoredTensor& tensor : image.tensors) {
    std::string& text = tensors[tensor.name];
    text = tensor.dtype + testing::PrintToString(tensor.shape);
    text.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return std::to_string(image.step) + image.state + testing::PrintToString(tensors);
}

}  // namespace barestep
