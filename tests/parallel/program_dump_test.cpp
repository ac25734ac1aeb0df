// Temporary: writes programs of many configurations to $SCHEME_DUMP, every field.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "core/checker.h"
#include "core/error.h"
#include "core/overloaded.h"
#include "parallel/data_parallel.h"
#include "parallel/ddp.h"
#include "parallel/factor.h"
#include "parallel/zero1.h"
#include "train/trainer.h"

namespace barestep {
namespace {

using Text = std::string;

class Dumper {
 public:
  explicit Dumper(const Buffers& buffers) : buffers_(buffers) {}

  Text t(const Tensor& x) const {
    const Text name = x.buffer < 0 ? Text("none")
                                   : fmt::format("{}@{}", buffers_[x.buffer].name,
                                                 buffers_[x.buffer].device);
    return fmt::format("{}+{}[{}x{}]:{}", name, x.offset_bytes, x.rows, x.cols,
                       static_cast<int>(x.dtype));
  }
  Text t(const std::optional<Tensor>& x) const { return x ? t(*x) : "-"; }
  Text t(const std::vector<Tensor>& all) const {
    Text text = "{";
    for (const Tensor& x : all) text += t(x) + " ";
    return text + "}";
  }
  Text op(const DeviceOp& any) const {
    return std::visit(
        Overloaded{
            [&](const Gemm& o) {
              return fmt::format("gemm {} {} {} {} {} {} {} {}", t(o.c), t(o.a), t(o.b),
                                 o.transpose_a, o.transpose_b, o.beta, t(o.bias),
                                 static_cast<int>(o.activation));
            },
            [&](const BiasActivation& o) {
              return fmt::format("bias {} {} {}", t(o.values), t(o.bias),
                                 static_cast<int>(o.activation));
            },
            [&](const ActivationGrad& o) {
              return fmt::format("act_grad {} {} {}", t(o.grad), t(o.output),
                                 static_cast<int>(o.activation));
            },
            [&](const SumRows& o) { return fmt::format("sum_rows {} {} {}", t(o.out), t(o.in), o.beta); },
            [&](const MseLoss& o) {
              return fmt::format("mse {} {} {} {} {} {}", t(o.loss), t(o.grad), t(o.output),
                                 t(o.target), o.count, o.beta);
            },
            [&](const CrossEntropy& o) {
              return fmt::format("xent {} {} {} {} {} {}", t(o.loss), t(o.grad), t(o.logits),
                                 t(o.labels), o.count, o.beta);
            },
            [&](const CountCorrect& o) {
              return fmt::format("correct {} {} {}", t(o.correct), t(o.logits), t(o.labels));
            },
            [&](const Adam& o) {
              return fmt::format("adam {} {} {} {} {} {} {} {} {} {} {}", t(o.weights), t(o.grads),
                                 t(o.moments1), t(o.moments2), t(o.scalars), o.beta1, o.beta2,
                                 o.eps, o.weight_decay, o.decoupled, t(o.clip));
            },
            [&](const Sgd& o) {
              return fmt::format("sgd {} {} {} {} {} {} {} {}", t(o.weights), t(o.grads),
                                 t(o.scalars), t(o.velocities), o.momentum, o.weight_decay,
                                 o.nesterov, t(o.clip));
            },
            [&](const LinearAdam& o) {
              return fmt::format("linear_adam {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
                                 t(o.weight), t(o.weight_moments1), t(o.weight_moments2), t(o.bias),
                                 t(o.bias_moments1), t(o.bias_moments2), t(o.grad_y), t(o.x),
                                 t(o.scalars), o.beta1, o.beta2, o.eps, o.weight_decay, o.decoupled,
                                 t(o.clip));
            },
            [&](const SumSquares& o) { return fmt::format("sum_squares {} {}", t(o.out), t(o.in)); },
            [&](const GramSquares& o) {
              return fmt::format("gram {} {} {}", t(o.out), t(o.gram_y), t(o.gram_x));
            },
            [&](const ClipFactor& o) {
              return fmt::format("clip {} {} {}", t(o.factor), t(o.squares), o.max_norm);
            },
            [&](const Copy& o) { return fmt::format("copy {} {}", t(o.to), t(o.from)); },
            [&](const Cast& o) { return fmt::format("cast {} {} {}", t(o.to), t(o.from), o.scale); },
            [&](const Fill& o) { return fmt::format("fill {} {}", t(o.out), o.value); },
            [&](const Randn& o) {
              return fmt::format("randn {} {} {}", t(o.out), t(o.state),
                                 static_cast<int>(o.generator));
            },
            [&](const Delay& o) { return fmt::format("delay {} {}", o.seconds, t(o.more_seconds)); }},
        any);
  }
  Text op(const Collective& any) const {
    return std::visit(
        Overloaded{[&](const AllReduce& o) { return fmt::format("all_reduce {} {}", t(o.tensors), o.scale); },
                   [&](const Broadcast& o) { return fmt::format("broadcast {} {}", t(o.tensors), o.root); },
                   [&](const Reduce& o) { return fmt::format("reduce {} {}", t(o.tensors), o.root); },
                   [&](const ReduceScatter& o) {
                     return fmt::format("reduce_scatter {} {}", t(o.tensors), o.scale);
                   },
                   [&](const AllGather& o) {
                     return fmt::format("all_gather {} {}", t(o.tensors), t(o.own));
                   }},
        any);
  }
  Text node(const Node& n) const {
    Text text = std::visit([&](const auto& o) { return op(o); }, n.op);
    text += fmt::format(" | dev {} {} {} layer {} waits", n.device, name_of(n.lane), name_of(n.phase),
                        n.layer);
    for (const Wait& w : n.waits) text += fmt::format(" {}-{}", w.node, w.steps_back);
    return text;
  }
  Text step(const StepProgram& s) const {
    const StepTensors& e = s.tensors;
    Text text = fmt::format("program {} rows {}\n", s.program.name(), s.rows);
    text += fmt::format("tensors x {} y {} xh {} yh {} gen {} sc {} jit {} loss {} scale {} own {} lh {} corr {} stop {} stops {}\n",
                        t(e.x), t(e.y), t(e.x_host), t(e.y_host), t(e.generator),
                        t(e.scalars_host), t(e.jitter_host), t(e.loss), e.own_loss_scale,
                        t(e.own_loss_host), t(e.loss_host), t(e.correct_host), t(e.stop_host),
                        t(e.stops_host));
    for (const Node& n : s.program.nodes()) text += node(n) + "\n";
    EXPECT_TRUE(check(s.program).empty());
    return text;
  }

 private:
  const Buffers& buffers_;
};

Text dump(const StepPrograms& programs, Text& order) {
  const Buffers& buffers = programs.buffers();
  const Dumper dumper(buffers);
  Text text;
  for (const StepProgram* step : programs.all()) text += dumper.step(*step);
  std::vector<Text> lines;
  for (const Buffer& b : buffers.all()) {
    lines.push_back(fmt::format("buffer {}@{} {} {} slots {} {}\n", b.name, b.device,
                                name_of(b.category), b.bytes, b.slots, b.pinned));
    order += b.name + " ";
  }
  std::ranges::sort(lines);
  for (const Text& line : lines) text += line;
  const auto name = [&](BufferId id) { return id < 0 ? Text("none") : buffers[id].name; };
  text += "flat " + name(programs.parameters());
  try {
    text += " " + name(programs.gradients());
  } catch (const Error& e) {
    text += Text(" ") + e.what();
  }
  for (const BufferId id : programs.optimizer_state()) text += " " + name(id);
  return text + "\n";
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  int of(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool one_in(int n) { return of(n) == 0; }

 private:
  std::mt19937 random_;
};

struct Drawn {
  TrainConfig config;
  DdpSettings ddp;
  int ranks = 1, rank = 0, devices = 1;
  bool pieces = false;
  Text text;
};

Drawn drawn(Draw& draw, const Text& scheme) {
  Drawn d;
  TrainConfig& c = d.config;
  const std::vector<std::vector<std::int64_t>> models = {
      {6, 12, 7, 4}, {5, 7, 6, 3}, {3, 4}, {8, 8, 8, 8, 8, 8, 8}, {300, 700, 500, 10}};
  const int model = draw.of(5);
  c.model.layers = models[static_cast<std::size_t>(model)];
  c.model.last_relu = draw.one_in(2);
  c.model.activation = static_cast<Activation>(draw.of(2) == 0 ? 0 : draw.of(4));
  if (draw.one_in(3)) c.model.loss = LossKind::kCrossEntropy;
  c.device.fusion = draw.one_in(2);
  c.optimizer.kind = static_cast<OptimizerKind>(draw.of(3));
  if (c.optimizer.kind == OptimizerKind::kSgd && draw.one_in(2)) c.optimizer.momentum = 0.9;
  c.training.accumulate = draw.one_in(2) ? 3 : 1;
  if (draw.one_in(3)) c.training.clip_norm = 0.5;
  c.training.zero_grad = !draw.one_in(4);
  if (draw.one_in(3)) c.injected.delay_ms = 2;
  if (draw.one_in(3)) c.injected.jitter_ms = 3;
  if (draw.one_in(3)) c.data.io_delay_ms = 4;
  const int batches[] = {12, 10, 7, 5, 4, 64};
  c.data.batch_size = batches[draw.of(6)];
  if (draw.one_in(4)) c.parallel.seed_per_rank = true;
  if (scheme == "none" || scheme == "ddp" || scheme == "zero1" || scheme == "factor") {
    d.ranks = scheme == "none" ? 1 : 1 + draw.of(4);
    d.rank = draw.of(d.ranks);
  }
  if (scheme == "none" || scheme == "factor") {
    if (draw.one_in(3)) {
      c.training.update = Update::kFused;
      c.optimizer.kind = static_cast<OptimizerKind>(draw.of(2));
    }
  } else if (draw.one_in(30)) {
    c.training.update = Update::kFused;
  }
  if (scheme == "ddp") {
    const std::int64_t bytes[] = {1, 50, 100, 300, 1 << 20};
    d.ddp.first_bucket_bytes = bytes[draw.of(5)];
    d.ddp.bucket_bytes = bytes[draw.of(5)];
    d.ddp.whole_first_bucket = draw.one_in(2);
    d.ddp.overlap = !draw.one_in(3);
    d.ddp.update_per_bucket = draw.one_in(2);
    d.ddp.bf16_gradients = draw.one_in(2);
    if (d.ddp.update_per_bucket) c.training.clip_norm.reset();
  }
  if (scheme == "dp") {
    d.devices = 1 + draw.of(4);
    d.pieces = draw.one_in(2);
  }
  return d;
}

Text text_of(Draw& draw, const Text& scheme, Text& order) {
  Drawn d = drawn(draw, scheme);
  const auto kind = draw.one_in(2) ? DeviceKind::kCpu : DeviceKind::kCuda;
  StepSpec spec = spec_of_rank(d.config, kind, nullptr, d.rank, d.ranks);
  const bool files = draw.one_in(2);
  const int train_rows[] = {40, 37, 41, 90, 100};
  const int test_rows[] = {0, 2, 12, 23};
  spec.train_rows = train_rows[draw.of(5)];
  spec.test_rows = test_rows[draw.of(4)];
  spec.drop_last = draw.one_in(4);
  const bool trains = !draw.one_in(12);
  spec.model.trains = trains || scheme != "none";
  spec.workspace_bytes = draw.one_in(2) ? 256 : 0;
  if (files) {
    spec.data = DataKind::kIdx;
  } else {
    spec.train_rows = spec.test_rows = 0;
  }
  Text text = fmt::format(
      "config layers {} last_relu {} act {} loss {} fusion {} opt {} acc {} clip {} zero {} batch {} "
      "ranks {} rank {} own {} update {} dp {} {} files {} ddp {} {} {} {} {} {}\n",
      d.config.model.layers, d.config.model.last_relu, static_cast<int>(d.config.model.activation),
      static_cast<int>(d.config.model.loss), d.config.device.fusion,
      static_cast<int>(d.config.optimizer.kind), d.config.training.accumulate,
      d.config.training.clip_norm.value_or(0), d.config.training.zero_grad, spec.batch_size, d.ranks,
      d.rank, spec.own_data, static_cast<int>(d.config.training.update), d.devices, d.pieces, files,
      d.ddp.first_bucket_bytes, d.ddp.bucket_bytes, d.ddp.whole_first_bucket, d.ddp.overlap,
      d.ddp.update_per_bucket, d.ddp.bf16_gradients);
  std::unique_ptr<Scheme> by;
  if (scheme == "ddp") by = std::make_unique<Ddp>(d.ddp);
  if (scheme == "zero1") by = std::make_unique<Zero1>();
  if (scheme == "factor") by = std::make_unique<Factor>();
  if (scheme == "dp") by = std::make_unique<DataParallel>(d.devices, d.pieces);
  const StepPrograms programs(spec, by.get());
  return text + dump(programs, order);
}

TEST(Dump, WritesProgramsOfEachScheme) {
  const char* const folder = std::getenv("SCHEME_DUMP");
  if (folder == nullptr) GTEST_SKIP();
  for (const Text scheme : {"none", "ddp", "zero1", "factor", "dp"}) {
    std::ofstream file(fmt::format("{}/{}.txt", folder, scheme));
    std::ofstream order_file(fmt::format("{}/{}.order", folder, scheme));
    int built = 0;
    const int count = scheme == "ddp" ? 3000 : 1500;
    for (int i = 0; i < count; ++i) {
      Draw draw(static_cast<unsigned>(i));
      Text text;
      Text order;
      try {
        text = text_of(draw, scheme, order);
        ++built;
      } catch (const Error& error) {
        text = fmt::format("error {}\n", error.what());
      }
      file << "=== " << i << "\n" << text;
      order_file << i << " " << order << "\n";
    }
    std::cout << scheme << ": " << built << " of " << count << " built\n";
  }
}

}  // namespace
}  // namespace barestep
