// The table of options that are refused together.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "options/options.h"

namespace barestep {
namespace {

constexpr const char* kUseFiles = "use --data with files";
constexpr const char* kGiveOne = "give one of the two";
constexpr const char* kNotDynamic = "there is no dynamic loss scale";
constexpr const char* kScaleDynamically = "use --precision fp16 and --loss-scale dynamic";
constexpr const char* kSeveralSizes = "cannot be combined with several batch sizes";
constexpr const char* kGiveOneSize = "give one --batch-size, or leave it out";

/// A condition is written as an option that is given ("clip-norm"), that has one of some values
/// ("scheme=zero1|factor"), or the opposite of either ("!profile").
struct Row {
  std::string_view options;  // separated by ", "
  std::string_view when;     // conditions, separated by " & "
  const char* why;
  const char* remedy;
};

constexpr Row kRows[] = {
    // The model.
    {"dropout=*", "activation=none", "follows activations, and --activation none has none",
     "leave it out, or use --activation relu"},
    {"layers", "dim", "cannot be combined with --dim", "give --layers, or --dim and --depth"},
    {"layers", "depth", "cannot be combined with --depth", "give --layers, or --dim and --depth"},
    {"heads, length, ffn, causal, attention=standard", "!block=transformer",
     "only --block transformer has it", "leave it out, or use --block transformer"},
    {"layers", "block=transformer", "all blocks of a transformer have one width",
     "give --dim and --depth"},
    {"activation=*, no-last-relu, dropout=*", "block=transformer",
     "a transformer block has GELU inside, and nothing after it", "leave it out"},
    {"loss=cross-entropy|bce", "block=transformer",
     "has a label for each sample, and a transformer's output has --length rows for each",
     "use --loss mse, l1 or huber"},
    {"precision=int8", "block=transformer", "int8 is for Linear layers alone",
     "use --precision fp32 or bf16"},
    {"update=fused", "block=transformer", "the gradients of norms are no products",
     "use --update separate"},
    {"scheme=factor", "block=transformer", "the gradients of norms are no products",
     "use --scheme ddp or zero1"},
    {"recompute=auto", "block=transformer", "applies to the outputs of Linear layers",
     "give a number of segments"},
    {"label-smoothing=*", "!loss=cross-entropy", "only --loss cross-entropy has it",
     "leave it out, or use --loss cross-entropy"},
    // Training.
    {"nesterov", "optimizer=sgd & !momentum", "needs momentum",
     "give --momentum 0.9, or leave it out"},
    {"lr-min", "!lr-schedule=linear|cosine", "only --lr-schedule linear or cosine has it",
     "leave it out, or use --lr-schedule cosine"},
    {"lr-step, lr-gamma", "!lr-schedule=step", "only --lr-schedule step has it",
     "leave it out, or use --lr-schedule step"},
    {"steps", "epochs", "cannot be combined with --epochs", kGiveOne},
    {"no-zero-grad", "clip-norm",
     "it adds up gradients that are not clipped, so --clip-norm cannot be used", kGiveOne},
    {"update=per-bucket", "clip-norm", "--clip-norm needs the gradients of all buckets first",
     "use --update separate"},
    {"no-zero-grad", "grad-dtype=bf16",
     "--grad-dtype bf16 rounds the whole sum in each step, which loses the gradients added",
     "use --grad-dtype fp32"},
    {"update=fused", "!optimizer=adam|adamw",
     "only Adam and AdamW can run inside the weight gradient",
     "use --optimizer adam or adamw, or --update separate"},
    {"update=fused", "amsgrad",
     "the Adam step inside the weight gradient keeps no maximum for --amsgrad",
     "leave out --amsgrad, or use --update separate"},
    {"no-zero-grad", "update=fused", "--update fused stores no gradients that could add up",
     "use --update separate"},
    {"clip-norm=*", "update=fused & precision=tf32",
     "--update fused would find the norm from products in tf32",
     "use --update separate, or --precision fp32"},
    {"clip-norm=*", "update=fused & precision=bf16 & !evaluate-only",
     "--update fused would find the norm of gradients that are not yet rounded",
     "use --update separate, or --precision fp32"},
    {"clip-norm=*", "update=fused & scheme=factor", "--scheme factor clips stored gradients only",
     "use --update separate"},
    {"recompute=auto", "!plan", "works only with --plan",
     "give --plan too, or a number of segments"},
    {"recompute=auto", "!memory", "there is no memory to fit into",
     "give --memory too, such as 16GiB"},
    {"recompute=*", "update=fused",
     "--update fused makes gradients and update from the activations of all layers at the end of "
     "the step",
     "use --update separate"},
    {"recompute=*", "scheme=factor",
     "--scheme factor gathers and keeps the activations of all layers",
     "use --scheme ddp or zero1"},
    // The same bits on any number of ranks.
    {"reproducible=*", "scheme=factor", "--scheme factor has one rank's bits without it",
     "leave it out, or use --scheme ddp or zero1"},
    {"reproducible=*", "scheme=server", "a server adds up the sums of its ranks",
     "use --scheme ddp or zero1"},
    {"reproducible=*", "tensor=*",
     "tensor ranks add up parts of a product in an order of their own", "leave one of the two out"},
    {"reproducible=*", "pipeline=*", "the stages of --pipeline pass on micro-batches, not chunks",
     "leave one of the two out"},
    {"reproducible=*", "sync-every=*", "ranks that average their weights add up no gradients",
     kGiveOne},
    {"reproducible=*", "reduce-every-micro-step",
     "sums are exchanged once a rank has added up its chunks", kGiveOne},
    {"reproducible=*", "staleness=*", "delayed gradients are added up rank by rank", kGiveOne},
    {"reproducible=*", "no-zero-grad",
     "gradients of earlier steps have no place in the order of sums", kGiveOne},
    {"reproducible=*", "grad-dtype=bf16", "sums in bf16 are rounded on the way from rank to rank",
     "use --grad-dtype fp32"},
    {"reproducible=*", "update=fused", "--update fused stores no gradients that could be added up",
     "use --update separate"},
    {"reproducible=*", "data=teacher",
     "a teacher computes the targets of all of a rank's samples at once",
     "use --data randn or files"},
    {"reproducible=*", "data-seeding=per-rank", "each rank draws other samples",
     "leave one of the two out"},
    {"reproducible=*", "lr-scale=linear", "the learning rate depends on the number of ranks",
     "give the learning rate by --lr"},
    {"reproducible=*", "early-stop", "the test loss, which decides, is added up rank by rank",
     "give --epochs"},
    // Precision.
    {"precision=int8", "!evaluate-only", "nothing is trained in int8, only evaluated",
     "use --precision fp32, or --evaluate-only --load FILE (not in mlp_dp)"},
    {"loss-scale=*", "!precision=fp16", "gradients of {precision} need none",
     "leave it out, or use --precision fp16"},
    {"loss-scale-window=*", "!precision=fp16", kNotDynamic, kScaleDynamically},
    {"loss-scale-window=*", "precision=fp16 & loss-scale=[0-9]*", kNotDynamic, kScaleDynamically},
    {"fusion=off", "precision=bf16|fp16",
     "with --precision {precision} a product is rounded once, after its bias",
     "use --fusion on, or --precision fp32"},
    {"update=fused|per-bucket", "precision=fp16 & !evaluate-only",
     "with --precision fp16 no weight may change before all gradients are known to be finite",
     "use --update separate, or --precision bf16"},
    {"no-zero-grad", "precision=fp16 & !evaluate-only",
     "gradients of different loss scales would add up", "use --precision bf16"},
    {"quantization=*", "!precision=int8", "only --precision int8 quantizes",
     "leave it out, or add --precision int8"},
    {"fusion=off", "precision=int8 & evaluate-only",
     "a product in int8 ends in its bias and activation", "leave it out, or use --precision fp32"},
    {"autotune=*", "precision=int8 & evaluate-only & !autotune=off",
     "there is no choice of int8 products", "leave it out, or use --precision fp32"},
    // Data.
    {"teacher-noise=*", "!data=teacher", "there is no teacher",
     "use --data teacher, or leave it out"},
    {"loss=cross-entropy|bce", "data=randn|teacher", "needs labels, and --data {data} has none",
     kUseFiles},
    {"epochs, test-split", "data=randn|teacher", "--data {data} is not a fixed set of samples",
     kUseFiles},
    {"no-shuffle", "data=randn|teacher", "--data {data} has no order to keep", kUseFiles},
    {"input-scale", "data=randn|teacher", "--data {data} reads no numbers from files", kUseFiles},
    {"standardize", "data=randn|teacher",
     "--data {data} is drawn with mean 0 and standard deviation 1", kUseFiles},
    {"standardize", "evaluate-only & !test-split",
     "means and deviations are those of the training set, and all of --data is evaluated",
     "give the files and the --test-split of the training"},
    {"early-stop", "!test-split & !evaluate-only", "there is no test set to decide when to stop",
     "give --test-split"},
    {"no-pin", "graph", "a graph cannot hold copies to and from pageable memory",
     "leave out --no-pin or --graph"},
    {"workers=*, prefetch=*, no-pin, drop-last", "data=randn|teacher",
     "--data {data} is drawn in each step, not loaded", kUseFiles},
    // Devices and ranks.
    {"devices=*", "device", "cannot be combined with --device", kGiveOne},
    {"data-seeding=per-rank", "!data=randn|teacher", "files hold the same samples for every rank",
     "leave it out, or use --data randn"},
    {"update=per-bucket, first-bucket=whole, grad-dtype=bf16", "!scheme=ddp",
     "applies only to the buckets of --scheme ddp", "leave it out, or use --scheme ddp"},
    {"reduce-every-micro-step", "scheme=zero1|zero2|zero3|factor|server",
     "applies only to the buckets of --scheme ddp", "leave it out, or use --scheme ddp"},
    {"reduce-every-micro-step", "no-overlap",
     "--no-overlap reduces after the last backward pass only", kGiveOne},
    {"reduce-every-micro-step", "pipeline=*",
     "the copies of a --pipeline may have different numbers of micro-batches",
     "leave one of the two out"},
    {"no-overlap", "scheme=factor", "applies to buckets, and --scheme factor has none",
     "leave it out, or use --scheme ddp or zero1"},
    {"no-overlap", "scheme=zero2|zero3",
     "--scheme {scheme} keeps the gradients of two buckets only until they are scattered",
     "leave it out, or use --scheme zero1"},
    {"servers=*, server-reduce=*", "!scheme=server", "there are no parameter servers",
     "give --scheme server too, or leave it out"},
    {"no-zero-grad", "scheme=server", "only the server has the sum to which gradients would add up",
     "use --scheme ddp"},
    {"pipeline=*", "scheme=server", "--scheme server pushes the gradients of whole models",
     "use --scheme ddp or zero1"},
    {"update=fused", "scheme=zero1|zero2|zero3|server & !evaluate-only",
     "stores no gradients, which several ranks or devices exchange", "use --update separate"},
    {"update=fused", "scheme=ddp & !tensor=* & !sync-every=* & !evaluate-only",
     "stores no gradients, which several ranks or devices exchange", "use --update separate"},
    {"staleness=*", "scheme=zero1|zero2|zero3|factor|server", "only --scheme ddp delays gradients",
     "leave it out, or use --scheme ddp"},
    {"staleness=*", "update=fused|per-bucket",
     "--update {update} applies gradients as soon as they are there", "use --update separate"},
    {"staleness=*", "precision=fp16 & !evaluate-only",
     "a delayed gradient has the loss scale of an earlier step", "use --precision bf16"},
    {"staleness=*", "no-zero-grad",
     "--no-zero-grad adds up gradients instead of applying them late", kGiveOne},
    {"staleness=*", "sync-every=*", "ranks that average their weights reduce no gradients",
     kGiveOne},
    {"no-overlap, first-bucket=whole, reduce-every-micro-step", "staleness=*",
     "applies to reductions during backward, but delayed gradients are reduced beside the next "
     "step",
     "leave it out, or --staleness"},
    {"sync-every=*", "!scheme=ddp", "--scheme {scheme} keeps the same weights on all ranks",
     "leave it out, or use --scheme ddp"},
    {"bucket-mib, no-overlap, reduce-every-micro-step, first-bucket=whole, grad-dtype=bf16, "
     "update=per-bucket",
     "sync-every=*", "applies to reductions of gradients, but --sync-every averages weights",
     "leave it out, or --sync-every"},
    {"sync-every=*", "no-zero-grad", "gradients that add up would be each rank's own", kGiveOne},
    {"sync-every=*", "precision=fp16 & !evaluate-only",
     "each rank would skip other steps with its own loss scale", "use --precision bf16"},
    {"outer=*", "!sync-every=*", "without --sync-every ranks average no weights",
     "give --sync-every too, or leave it out"},
    {"schedule=*, micro-batches", "!pipeline=*", "there is no pipeline",
     "give --pipeline too, or leave it out"},
    {"accumulate=*", "pipeline=*", "the micro-batches of --pipeline accumulate already",
     "give --micro-batches"},
    {"schedule=zb-h1", "block=transformer & pipeline=*",
     "transformer blocks do not compute the gradients of weights later", "use another --schedule"},
    {"recompute=*", "pipeline=*", "a stage of --pipeline does not recompute",
     "leave one of the two out"},
    {"show-split", "pipeline=*", "a pipeline does not split the batch among devices",
     "leave it out"},
    {"transport=nccl", "pipeline=* & !scheme=?*",
     "the stages of --pipeline exchange by peer copies", "use --transport peer or auto"},
    {"pipeline=*", "scheme=zero2|zero3",
     "--scheme {scheme} would scatter the gradients of every micro-batch",
     "use --scheme ddp or zero1"},
    {"pipeline=*", "scheme=factor", "--scheme factor gathers the factors of all layers at once",
     "use --scheme ddp or zero1"},
    {"pipeline=*", "evaluate-only & scheme=ddp|zero1",
     "an evaluation alone shares out samples only", "leave out --pipeline"},
    {"update=fused", "pipeline=* & tensor=*", "stores no gradients, which micro-batches add up",
     "use --update separate"},
    {"clip-norm=*", "update=fused & tensor=*", "--update fused finds the norm of whole layers only",
     "use --update separate"},
    {"tensor=*", "scheme=factor", "--scheme factor gathers the factors of whole layers",
     "use --scheme ddp or zero1"},
    {"dropout=*", "tensor=*", "a rank of --tensor has no mask for some of the columns",
     "leave one of the two out"},
    {"tensor=*", "evaluate-only", "an evaluation alone shares out samples only",
     "leave out --tensor"},
    // Output.
    {"sort-by, row-limit, profile-phases", "!profile", "nothing is profiled",
     "give --profile too, or leave it out"},
    {"profile-steps", "!profile & !trace", "nothing is profiled",
     "give --profile too, or leave it out"},
    {"evaluate-only", "!load", "there are no weights to evaluate", "give --load FILE"},
    {"evaluate-only", "data=randn|teacher", "there are no samples to evaluate with",
     "give files by --data"},
    {"save, profile, trace, tensorboard, monitor, epochs, steps, early-stop, accumulate, "
     "reproducible=*, recompute, staleness=*, graph, checkpoint, resume-from, time-limit, "
     "verify-every, flip",
     "evaluate-only", "cannot be combined with --evaluate-only, which trains nothing",
     "leave one of the two out"},
    {"save, trace, tensorboard, checkpoint, resume-from", "batch-size=*,*", kSeveralSizes,
     kGiveOneSize},
    {"metrics", "batch-size=*,* & !evaluate-only", kSeveralSizes, kGiveOneSize},
    {"checkpoint-every, checkpoint-keep, checkpoint-best, resume", "!checkpoint",
     "there is no folder of checkpoints", "give --checkpoint DIR too"},
    {"resume", "resume-from", "cannot be combined with --resume-from", kGiveOne},
    {"load", "resume-from", "cannot be combined with --resume-from, whose file has weights",
     kGiveOne},
    {"checkpoint-best", "!test-split", "there is no test set to decide which is best",
     "give --test-split"},
};

Condition condition_of(std::string_view text) {
  Condition condition{.is_opposite = text.starts_with('!')};
  if (condition.is_opposite) text.remove_prefix(1);
  const std::vector<std::string_view> sides = split(text, "=");
  condition.name = sides.front();
  if (sides.size() > 1) {
    for (const std::string_view value : split(sides[1], "|")) condition.values.emplace_back(value);
  }
  return condition;
}

std::vector<Condition> conditions_of(std::string_view text, std::string_view separator) {
  std::vector<Condition> conditions;
  for (const std::string_view part : split(text, separator)) {
    conditions.push_back(condition_of(part));
  }
  return conditions;
}

/// The option of the program; null if it has none of this name.
const Option* option_called(std::string_view name, const TrainConfig& config) {
  const std::span<const Option> options = options_of(config.parallel.scheme);
  const auto found = std::ranges::find(options, name, &Option::name);
  return found == options.end() ? nullptr : &*found;
}

/// The text with the values of the options that it names in braces.
std::string with_values(std::string text, const TrainConfig& config) {
  for (std::size_t begin = 0; (begin = text.find('{', begin)) != std::string::npos;) {
    const std::size_t end = text.find('}', begin);
    const Option* const option = option_called(text.substr(begin + 1, end - begin - 1), config);
    BARESTEP_REQUIRE(option != nullptr, "a text names an option of the program");
    text.replace(begin, end + 1 - begin, option->value.text(config).value_or(""));
  }
  return text;
}

}  // namespace

bool Condition::holds(const std::optional<std::string>& text,
                      const std::optional<std::string>& usual) const {
  const bool is_given = text && text != usual;
  const auto matches = [&](const std::string& pattern) {
    return pattern == "*" ? is_given : text && fnmatch(pattern.c_str(), text->c_str(), 0) == 0;
  };
  return (values.empty() ? is_given : std::ranges::any_of(values, matches)) != is_opposite;
}

std::span<const OptionConflict> conflicts() {
  static const std::vector<OptionConflict> all = [] {
    std::vector<OptionConflict> parsed;
    for (const Row& row : kRows) {
      parsed.push_back({.options = conditions_of(row.options, ", "),
                        .when = conditions_of(row.when, " & "),
                        .why = row.why,
                        .remedy = row.remedy});
    }
    return parsed;
  }();
  return all;
}

void refuse_conflicts(const TrainConfig& config) {
  const auto holds = [&](const Condition& condition) {
    const Option* const option = option_called(condition.name, config);
    if (option == nullptr) return condition.holds({}, {});
    return condition.holds(option->value.text(config), option->value.text({}));
  };
  for (const OptionConflict& conflict : conflicts()) {
    for (const Condition& given : conflict.options) {
      if (!holds(given) || !std::ranges::all_of(conflict.when, holds)) continue;
      const Option& option = *option_called(given.name, config);
      fail(ExitCode::kConfiguration,
           {fmt::format("--{}", option.name),
            given.values.empty() ? "" : option.value.text(config).value_or(""),
            with_values(conflict.why, config), conflict.remedy});
    }
  }
}

}  // namespace barestep
