#include <oneapi/dnnl/dnnl.hpp>

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/product_tiles.h"

extern "C" void omp_set_num_threads(int count);  // of libgomp, whose header clang may lack

namespace barestep {
namespace {

/// With more rows per thread than this, a forward product is cut by rows. Each tile then has enough
/// rows to keep oneDNN busy, and needs no memory of its own.
constexpr std::int64_t kRowsOfATile = 128;

/// A forward product, c = a b^T, uses a matmul primitive, which is 40% faster than dnnl_sgemm. The
/// others, whose b is not transposed, are faster with dnnl_sgemm.
bool is_forward(const Gemm& op) {
  return !op.transpose_a && op.transpose_b && op.beta == 0;
}

/// Makes the library use one thread for each call from this thread, and start none. OpenMP's number
/// of threads is a setting of the calling thread.
void take_one_thread() {
  omp_set_num_threads(1);
}

/// Memory that starts on a cache line, as oneDNN prefers.
class Lines {
 public:
  void grow(std::size_t bytes) {
    lines_.resize(std::max(lines_.size(), (bytes + sizeof(Line) - 1) / sizeof(Line)));
  }
  [[nodiscard]] void* data() { return lines_.data(); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

/// A tile of a product with a matmul primitive: op(a) is rows x depth, op(b) depth x cols, c
/// rows x cols and dense. For a c with gaps between its rows, oneDNN silently uses a slow kernel.
struct Shape {
  std::int64_t rows, cols, depth;
  bool transpose_a, transpose_b;
  std::int64_t stride_a, stride_b;
  DType from, to;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

/// c's type if the sums are the result; otherwise fp32, for the sums.
DType type_of_tile(const Gemm& op) {
  return is_sum(op) ? op.c.dtype : DType::kF32;
}

Shape shape_of(const Gemm& op, const Tile& tile) {
  return {.rows = tile.rows,
          .cols = tile.cols,
          .depth = op.transpose_a ? op.a.rows : op.a.cols,
          .transpose_a = op.transpose_a,
          .transpose_b = op.transpose_b,
          .stride_a = op.a.cols,
          .stride_b = op.b.cols,
          .from = op.a.dtype,
          .to = type_of_tile(op)};
}

dnnl::memory::data_type data_type_of(DType type) {
  return type == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// Whether this processor multiplies bf16 in hardware and the library supports that.
bool has_bf16() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (isa & needed) == needed;
}

/// oneDNN's objects for the operands of a primitive; bound to addresses just before it runs.
struct Memories {
  dnnl::memory a, b, c, scratchpad;
};

/// The memory and objects that a thread uses to compute a tile.
struct ThreadWorkspace {
  explicit ThreadWorkspace(const dnnl::engine& engine) : stream(engine) {}

  std::atomic<bool> taken{false};
  dnnl::stream stream;
  std::map<Shape, Memories> operands;
  Lines tile;  // a dense c
  Lines scratchpad;
};

class OneDnnProduct final : public Product {
 public:
  OneDnnProduct() : engine_(dnnl::engine::kind::cpu, 0) {
    const dnnl_version_t& version = *dnnl_version();
    name_ = "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
            std::to_string(version.patch);
  }

  [[nodiscard]] std::string_view name() const override { return name_; }

  [[nodiscard]] bool takes(DType type) const override {
    return type == DType::kF32 || (type == DType::kBF16 && has_bf16_);
  }

  void prepare(const Gemm& op, const ThreadPool& pool) override {
    take_one_thread();
    while (workspaces_.size() < static_cast<std::size_t>(pool.threads())) {
      workspaces_.push_back(std::make_unique<ThreadWorkspace>(engine_));
    }
    if (op.c.size() == 0 || op.a.size() == 0 || op.b.size() == 0) return;
    if (!has_matmul(op)) return warm_up();
    const Tiling tiles = matmul_tiling(op, pool);
    for (const std::int64_t i : {std::int64_t{0}, tiles.count() - 1}) {
      const Tile tile = tiles[i];
      make_matmul(shape_of(op, tile));
      for (const auto& workspace : workspaces_) {
        if (!is_in_place(op, tile)) workspace->tile.grow(bytes_of_tile(tile));
      }
    }
  }

  void prepare_tiles(const ThreadPool& /*pool*/) override {
    take_one_thread();
    warm_up();
  }

  [[nodiscard]] bool multiply(const TileProduct& p) const noexcept override {
    take_one_thread();
    const auto transpose = [](bool transposed) { return transposed ? 'T' : 'N'; };
    return dnnl_sgemm(transpose(p.transpose_a), transpose(p.transpose_b), p.m, p.n, p.k, 1, p.a,
                      p.stride_a, p.b, p.stride_b, p.beta, p.c, p.stride_c) == dnnl_success;
  }

  void run(const Gemm& op, const Addresses& addresses, ThreadPool& pool) override {
    if (op.c.size() == 0) return;
    if (op.a.dtype != DType::kF32 && op.a.size() == 0) {
      // There are no products to sum.
      return run_tiles(*this, op, addresses, pool);
    }
    const bool by_matmul = has_matmul(op) && op.a.size() > 0;
    const Tiling tiles = by_matmul ? matmul_tiling(op, pool) : tiling_of(op, pool.threads());
    std::atomic<bool> failed{false};
    pool.run(tiles.count(), [&](std::int64_t i, int thread) {
      take_one_thread();
      const bool done = by_matmul ? run_matmul(op, addresses, tiles[i], thread)
                                  : run_sgemm(bind(op, addresses), tiles[i]);
      if (!done) failed.store(true, std::memory_order_relaxed);
    });
    BARESTEP_REQUIRE(!failed.load(std::memory_order_relaxed), "oneDNN computed no product");
  }

 private:
  static bool has_matmul(const Gemm& op) { return op.a.dtype != DType::kF32 || is_forward(op); }

  static Tiling matmul_tiling(const Gemm& op, const ThreadPool& pool) {
    if (!is_forward(op)) return tiling_of(op, pool.threads());
    const bool by_rows = op.c.rows >= std::min(op.c.cols, kRowsOfATile * pool.threads());
    return tiling_of(op, pool.threads(), by_rows);
  }

  /// Whether the library can write the tile directly into c: the tile's rows of c are contiguous,
  /// and the steps after the sums can be done there.
  static bool is_in_place(const Gemm& op, const Tile& tile) {
    return tile.cols == op.c.cols && (op.a.dtype == DType::kF32 || is_sum(op));
  }

  /// An upper bound, for fp32.
  static std::size_t bytes_of_tile(const Tile& tile) {
    return static_cast<std::size_t>(tile.rows * tile.cols) * sizeof(float);
  }

  /// The first dnnl_sgemm that is not a product with a vector generates all kernels, which takes as
  /// long as a few steps.
  static void warm_up() {
    [[maybe_unused]] static const bool done = [] {
      const float ones[] = {1, 1, 1, 1};
      float out[4] = {};
      return dnnl_sgemm('N', 'N', 2, 2, 2, 1, ones, 2, ones, 2, 0, out, 2) == dnnl_success;
    }();
  }

  /// One caller at a time: primitives come from a process-wide cache, and ThreadSanitizer cannot
  /// see how that cache synchronizes threads.
  void make_matmul(const Shape& shape) {
    static std::mutex taking_turns;
    const std::lock_guard lock(taking_turns);
    using dnnl::memory;
    const auto describe = [](std::int64_t rows, std::int64_t cols, bool transposed,
                             std::int64_t stride, DType type) {
      const memory::dims strides = {transposed ? 1 : stride, transposed ? stride : 1};
      return memory::desc({rows, cols}, data_type_of(type), strides);
    };
    const Shape& s = shape;
    const memory::desc a = describe(s.rows, s.depth, s.transpose_a, s.stride_a, s.from);
    const memory::desc b = describe(s.depth, s.cols, s.transpose_b, s.stride_b, s.from);
    const memory::desc c = describe(s.rows, s.cols, false, s.cols, s.to);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine_);
    matmuls_.try_emplace(shape, description);

    const memory::desc scratchpad = description.scratchpad_desc();
    const auto unbound = [&](const memory::desc& of) { return memory(of, engine_, nullptr); };
    for (const auto& workspace : workspaces_) {
      workspace->scratchpad.grow(scratchpad.get_size());
      workspace->operands.try_emplace(
          shape, Memories{unbound(a), unbound(b), unbound(c), unbound(scratchpad)});
    }
  }

  /// A free workspace, preferably the thread's own. More threads than workspaces may ask: two
  /// callers of a pool both count as thread 0.
  ThreadWorkspace& take_workspace(int thread) {
    for (auto i = static_cast<std::size_t>(thread);; ++i) {
      ThreadWorkspace& workspace = *workspaces_[i % workspaces_.size()];
      if (!workspace.taken.exchange(true, std::memory_order_acquire)) return workspace;
      if (i >= workspaces_.size()) std::this_thread::yield();
    }
  }

  /// Returns false if the library failed. Does not use the library's ReLU, nor its bias: that ReLU
  /// turns NaN into 0, so a diverged run would continue.
  bool run_matmul(const Gemm& op, const Addresses& addresses, const Tile& tile, int thread) {
    const Shape shape = shape_of(op, tile);
    const auto address = [&](const Tensor& tensor, std::int64_t index) {
      return addresses.at<std::byte>(tensor) + index * bytes_of(tensor.dtype);
    };
    const auto* const a = address(op.a, op.transpose_a ? tile.row : tile.row * op.a.cols);
    const auto* const b = address(op.b, op.transpose_b ? tile.col * op.b.cols : tile.col);
    auto* const c = address(op.c, tile.row * op.c.cols + tile.col);
    announce(shape, a, b);
    ThreadWorkspace& workspace = take_workspace(thread);
    const bool in_place = is_in_place(op, tile);
    void* const result = in_place ? static_cast<void*>(c) : workspace.tile.data();
    const std::int64_t row_bytes = tile.cols * bytes_of(shape.to);
    if (in_place) announce_write(c, tile.rows, row_bytes, row_bytes);
    const bool done = execute(shape, a, b, result, workspace);
    if (in_place) {
      if (shape.from == DType::kF32) bias_activation_tile(bind(op, addresses), tile);
    } else if (shape.to == DType::kF32) {
      finish_tile(op, addresses, tile, static_cast<const float*>(result), tile.cols);
    } else {
      for (std::int64_t i = 0; i < tile.rows; ++i) {
        std::memcpy(c + i * op.c.cols * bytes_of(shape.to),
                    static_cast<const std::byte*>(result) + i * row_bytes,
                    static_cast<std::size_t>(row_bytes));
      }
    }
    workspace.taken.store(false, std::memory_order_release);
    return done;
  }

  /// Announces to ThreadSanitizer what the library will read.
  static void announce(const Shape& s, const std::byte* a, const std::byte* b) {
    const std::int64_t bytes = bytes_of(s.from);
    const auto read = [&](const std::byte* first, bool transposed, std::int64_t rows,
                          std::int64_t cols, std::int64_t stride) {
      announce_read(first, transposed ? cols : rows, (transposed ? rows : cols) * bytes,
                    stride * bytes);
    };
    read(a, s.transpose_a, s.rows, s.depth, s.stride_a);
    read(b, s.transpose_b, s.depth, s.cols, s.stride_b);
  }

  bool execute(const Shape& shape, const void* a, const void* b, void* c,
               ThreadWorkspace& workspace) {
    const auto matmul = matmuls_.find(shape);
    const auto operands = workspace.operands.find(shape);
    if (matmul == matmuls_.end() || operands == workspace.operands.end()) return false;
    const auto bind_to = [](const dnnl::memory& memory, const void* address) {
      dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(address));
      return memory.get();
    };
    const Memories& o = operands->second;
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, bind_to(o.a, a)},
        {DNNL_ARG_WEIGHTS, bind_to(o.b, b)},
        {DNNL_ARG_DST, bind_to(o.c, c)},
        {DNNL_ARG_SCRATCHPAD, bind_to(o.scratchpad, workspace.scratchpad.data())}};
    return dnnl_primitive_execute(matmul->second.get(), workspace.stream.get(), 4, arguments) ==
           dnnl_success;
  }

  bool run_sgemm(const BoundGemm& g, const Tile& tile) const {
    const TileProduct p = begin_tile(g, tile);
    const bool done = p.k == 0 || multiply(p);
    activation_tile(g, tile);
    return done;
  }

  dnnl::engine engine_;
  bool has_bf16_ = has_bf16();
  std::string name_;
  std::map<Shape, dnnl::matmul> matmuls_;
  std::vector<std::unique_ptr<ThreadWorkspace>> workspaces_;
};

}  // namespace

std::unique_ptr<Product> make_onednn_product() {
  return std::make_unique<OneDnnProduct>();
}

}  // namespace barestep
