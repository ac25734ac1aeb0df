#include "core/bench_stream.h"

#include <vector>

namespace barestep {

BenchStream::BenchStream(Device& device, std::int64_t bytes, std::string_view label)
    : device_(device),
      memory_(device.allocate(bytes, MemoryKind::kDevice)),
      addresses_(std::vector<std::byte*>{memory_}),
      stream_(device.new_stream(label)),
      begin_(device.new_event(EventUse::kTime)),
      end_(device.new_event(EventUse::kTime)) {
  const std::int64_t scratch = workspace_bytes(device.kind());
  if (scratch > 0) {
    workspace_ = device.allocate(scratch, MemoryKind::kDevice);
    stream_->set_workspace({workspace_, static_cast<std::size_t>(scratch)});
  }
  const DeviceOp zeros = Fill{.out = {0, 0, 1, bytes / bytes_of(DType::kF32)}};
  device.prepare(zeros);
  run(zeros);
  synchronize();
}

BenchStream::~BenchStream() {
  stream_.reset();
  if (workspace_ != nullptr) device_.release(workspace_, MemoryKind::kDevice);
  device_.release(memory_, MemoryKind::kDevice);
}

}  // namespace barestep
