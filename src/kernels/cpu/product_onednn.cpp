#include <omp.h>
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

namespace barestep {
namespace {

/// Above so many rows a thread a forward product is cut by rows: each tile has enough of them to
/// keep oneDNN busy, and needs no memory of its own.
constexpr std::int64_t kRowsOfATile = 128;

/// A forward product, c = a b^T, is computed by a matmul primitive: 40% faster than dnnl_sgemm. The
/// others, with a plain b, are faster with dnnl_sgemm.
bool is_forward(const Gemm& op) {
  return !op.transpose_a && op.transpose_b && op.beta == 0;
}

/// The library takes one thread for each call, and starts none, on a thread where this was called:
/// OpenMP's number of threads belongs to the calling thread.
void take_one_thread() {
  omp_set_num_threads(1);
}

/// Memory that oneDNN likes: it starts on a cache line.
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

/// A tile of a forward product: a is rows x depth, b cols x depth, c rows x cols and dense. oneDNN
/// silently takes a slow kernel for a c with gaps between its rows.
struct Shape {
  std::int64_t rows, cols, depth;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

/// oneDNN's names for the operands of a primitive, bound to memory just before it runs.
struct Memories {
  dnnl::memory a, b, c, scratchpad;
};

/// What a thread needs while it computes a tile.
struct Desk {
  explicit Desk(const dnnl::engine& engine) : stream(engine) {}

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

  void prepare(const Gemm& op, const ThreadPool& pool) override {
    take_one_thread();
    while (desks_.size() < static_cast<std::size_t>(pool.threads())) {
      desks_.push_back(std::make_unique<Desk>(engine_));
    }
    if (op.c.size() == 0 || op.b.size() == 0) return;
    if (!is_forward(op)) return warm_up();
    const Tiling tiles = forward_tiling(op, pool);
    for (const std::int64_t i : {std::int64_t{0}, tiles.count() - 1}) {
      const Tile tile = tiles[i];
      make_matmul({tile.rows, tile.cols, op.b.cols});
      for (const auto& desk : desks_) {
        if (!tiles.by_rows) desk->tile.grow(bytes_of_tile(tile));
      }
    }
  }

  [[nodiscard]] bool multiply(const TileProduct& p) const noexcept override {
    take_one_thread();
    const auto transpose = [](bool asked) { return asked ? 'T' : 'N'; };
    return dnnl_sgemm(transpose(p.transpose_a), transpose(p.transpose_b), p.m, p.n, p.k, 1, p.a,
                      p.stride_a, p.b, p.stride_b, p.beta, p.c, p.stride_c) == dnnl_success;
  }

  void run(const Gemm& op, const Addresses& addresses, ThreadPool& pool) override {
    const BoundGemm g = bind(op, addresses);
    if (g.m == 0 || g.n == 0) return;
    const bool forward = is_forward(op) && g.k > 0;
    const Tiling tiles = forward ? forward_tiling(op, pool) : tiling_of(op, pool.threads());
    std::atomic<bool> failed{false};
    pool.run(tiles.count(), [&](std::int64_t i, int thread) {
      take_one_thread();
      const bool done = forward ? run_forward(g, tiles[i], thread) : run_sgemm(g, tiles[i]);
      if (!done) failed.store(true, std::memory_order_relaxed);
    });
    BARESTEP_REQUIRE(!failed.load(std::memory_order_relaxed), "oneDNN computed no product");
  }

 private:
  static Tiling forward_tiling(const Gemm& op, const ThreadPool& pool) {
    const bool by_rows = op.c.rows >= std::min(op.c.cols, kRowsOfATile * pool.threads());
    return tiling_of(op, pool.threads(), by_rows);
  }

  static std::size_t bytes_of_tile(const Tile& tile) {
    return static_cast<std::size_t>(tile.rows * tile.cols) * sizeof(float);
  }

  /// The first dnnl_sgemm that is no product with a vector makes all kernels, which takes as long
  /// as a few steps.
  static void warm_up() {
    [[maybe_unused]] static const bool done = [] {
      const float ones[] = {1, 1, 1, 1};
      float out[4] = {};
      return dnnl_sgemm('N', 'N', 2, 2, 2, 1, ones, 2, ones, 2, 0, out, 2) == dnnl_success;
    }();
  }

  /// One caller at a time: primitives come from a cache of the whole process, and how it keeps
  /// threads apart ThreadSanitizer does not see.
  void make_matmul(const Shape& shape) {
    static std::mutex taking_turns;
    const std::lock_guard lock(taking_turns);
    using dnnl::memory;
    const auto& [rows, cols, depth] = shape;
    const auto describe = [](const memory::dims& extents, const memory::dims& strides) {
      return memory::desc(extents, memory::data_type::f32, strides);
    };
    const memory::desc a = describe({rows, depth}, {depth, 1});
    const memory::desc b = describe({depth, cols}, {1, depth});
    const memory::desc c = describe({rows, cols}, {cols, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine_);
    matmuls_.try_emplace(shape, description);

    const memory::desc scratchpad = description.scratchpad_desc();
    const auto unbound = [&](const memory::desc& of) { return memory(of, engine_, nullptr); };
    for (const auto& desk : desks_) {
      desk->scratchpad.grow(scratchpad.get_size());
      desk->operands.try_emplace(shape,
                                 Memories{unbound(a), unbound(b), unbound(c), unbound(scratchpad)});
    }
  }

  /// A free desk, its own one first; there may be more threads than desks, for two callers of a
  /// pool both count as thread 0.
  Desk& take_desk(int thread) {
    for (auto i = static_cast<std::size_t>(thread);; ++i) {
      Desk& desk = *desks_[i % desks_.size()];
      if (!desk.taken.exchange(true, std::memory_order_acquire)) return desk;
      if (i >= desks_.size()) std::this_thread::yield();
    }
  }

  /// False when the library failed. Bias and ReLU are not left to it: its ReLU makes NaN 0, so that
  /// a run that diverged would go on.
  bool run_forward(const BoundGemm& g, const Tile& tile, int thread) {
    const TileProduct p = operands_of(g, tile);
    Desk& desk = take_desk(thread);
    const bool in_place = tile.cols == g.n;
    float* c = in_place ? p.c : static_cast<float*>(desk.tile.data());
    const bool done = execute({p.m, p.n, p.k}, p.a, p.b, c, desk);
    for (std::int64_t i = 0; i < p.m && !in_place; ++i) {
      std::memcpy(p.c + i * p.stride_c, c + i * p.n, static_cast<std::size_t>(p.n) * sizeof(float));
    }
    desk.taken.store(false, std::memory_order_release);
    bias_activation_tile(g, tile);
    return done;
  }

  bool execute(const Shape& shape, const float* a, const float* b, float* c, Desk& desk) {
    const auto matmul = matmuls_.find(shape);
    const auto operands = desk.operands.find(shape);
    if (matmul == matmuls_.end() || operands == desk.operands.end()) return false;
    const auto bind_to = [](const dnnl::memory& memory, const void* address) {
      dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(address));
      return memory.get();
    };
    const Memories& o = operands->second;
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, bind_to(o.a, a)},
        {DNNL_ARG_WEIGHTS, bind_to(o.b, b)},
        {DNNL_ARG_DST, bind_to(o.c, c)},
        {DNNL_ARG_SCRATCHPAD, bind_to(o.scratchpad, desk.scratchpad.data())}};
    return dnnl_primitive_execute(matmul->second.get(), desk.stream.get(), 4, arguments) ==
           dnnl_success;
  }

  bool run_sgemm(const BoundGemm& g, const Tile& tile) const {
    const TileProduct p = begin_tile(g, tile);
    const bool done = p.k == 0 || multiply(p);
    activation_tile(g, tile);
    return done;
  }

  dnnl::engine engine_;
  std::string name_;
  std::map<Shape, dnnl::matmul> matmuls_;
  std::vector<std::unique_ptr<Desk>> desks_;
};

}  // namespace

std::unique_ptr<Product> make_onednn_product() {
  return std::make_unique<OneDnnProduct>();
}

}  // namespace barestep
