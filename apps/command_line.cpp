#include "command_line.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "config_file.h"
#include "core/error.h"
#include "options/options.h"
#include "usage.h"

namespace barestep {
namespace {

/// What --help says besides the options.
struct About {
  TrainerKind trainer;
  std::string_view description;
  std::string_view examples;
};

constexpr About kAbout[] = {
    {TrainerKind::kSingle,
     "Trains a multi-layer perceptron on one device, and accounts for every step.",
     R"(Examples:
  mlp_single --dim 1024 --depth 6 --steps 50
  mlp_single --data idx:images.gz,labels.gz --layers 784,512,512,10 --no-last-relu \
      --loss cross-entropy --epochs 5 --test-split 0.2
  mlp_single --plan --dim 8192 --depth 6 --memory 16GiB)"},
    {TrainerKind::kDataParallel,
     "Trains a multi-layer perceptron on several devices of one process, as DataParallel does, "
     "and\n"
     "accounts for every step and device.",
     R"(Examples:
  mlp_dp --devices cuda:0,cuda:1 --batch-size 256
  mlp_dp --devices cpu,cpu,cpu --dim 1024 --depth 2 --show-split
  mlp_dp --devices cuda:0,cuda:1,cuda:2,cuda:3 --plan --memory 16GiB)"},
    {TrainerKind::kDdp,
     "Trains a multi-layer perceptron on many ranks, as DistributedDataParallel does, and "
     "accounts\n"
     "for every step. Started by mpirun or srun, each process is a rank; alone it is one rank.",
     R"(Examples:
  mpirun -np 4 mlp_ddp --dim 1024 --depth 2
  mpirun -np 2 mlp_ddp --global-batch-size 128 --bucket-mib 4 --no-overlap
  srun -n 8 --mpi=pmix mlp_ddp --batch-size 32 --slow-rank 1:20)"},
};

constexpr std::size_t kHelpWidth = 100;
constexpr std::size_t kHelpIndent = 31;

/// Lines of at most `width` characters; a longer word has a line of its own.
std::string wrapped(const std::string& text, std::size_t width) {
  std::string lines;
  std::istringstream paragraphs(text);
  for (std::string paragraph; std::getline(paragraphs, paragraph);) {
    std::istringstream words(paragraph);
    std::string line;
    for (std::string word; words >> word;) {
      if (!line.empty() && line.size() + 1 + word.size() > width) {
        lines += line + "\n";
        line.clear();
      }
      line += (line.empty() ? "" : " ") + word;
    }
    lines += line + "\n";
  }
  lines.pop_back();
  return lines;
}

class Formatter : public CLI::Formatter {
 public:
  Formatter() { column_width(kHelpIndent); }
  std::string make_usage(const CLI::App* /*app*/, std::string name) const override {
    return fmt::format("\nUsage: {} [options]\n\n", name);
  }
  [[nodiscard]] std::string make_group(std::string group, bool is_positional,
                                       std::vector<const CLI::Option*> options) const override {
    return CLI::Formatter::make_group(std::move(group), is_positional, std::move(options))
        .substr(1);
  }
  std::string make_footer(const CLI::App* app) const override { return app->get_footer() + "\n"; }
};

/// Everything is taken as text and as often as it comes: values and repetitions are judged here,
/// with our messages.
void add_options(CLI::App& app, TrainerKind trainer) {
  for (const Option& option : options_of(trainer)) {
    const std::string name = fmt::format("--{}", option.name);
    CLI::Option* added = is_flag(option) ? app.add_flag(name)
                                         : app.add_option(name)->type_name(option.value.argument);
    added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->description(wrapped(help_of(option), kHelpWidth - kHelpIndent))
        ->group(std::string(option.group));
  }
  app.add_option("--config")
      ->type_name("FILE")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->description("JSON object of these options; the command line wins over it")
      ->group("Files");
  app.set_help_flag("-h,--help", "print this and exit")->group("Other");
  app.set_version_flag("--version", BARESTEP_VERSION, "print the version and exit")->group("Other");
}

[[noreturn]] void refuse_unknown(TrainerKind trainer, const std::string& argument) {
  std::vector<std::string_view> names = names_of_options(trainer);
  names.insert(names.end(), {"config", "help", "version"});
  refuse_unknown_argument(name_of(trainer), argument, names);
}

/// The text given for `name`, if any.
std::optional<Given> given_on(const CLI::App& app, std::string_view name, bool needs_value) {
  const std::string option = fmt::format("--{}", name);
  const std::vector<std::string>& texts = app.get_option(option)->results();
  if (texts.empty()) return std::nullopt;
  if (texts.size() > 1) refuse_repeated(option);
  if (needs_value && texts.front().starts_with("--")) refuse_missing_value(option);
  return Given{.where = option, .text = texts.front()};
}

void parse(CLI::App& app, const std::vector<std::string>& arguments) {
  require_values(arguments);
  app.allow_extras();
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ArgumentMismatch&) {
    refuse_missing_value(arguments.back());  // only the last option can run out of arguments
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& error) {
    refuse_usage("command line", "", error.what(), "see --help");
  }
}

/// Applies the file's options, less those that the command line replaces, then the command line's.
CommandLine merge(std::span<const Option> options, const std::map<std::string_view, Given>& typed,
                  std::map<std::string_view, Given> in_file) {
  std::vector<std::string_view> overridden;
  const auto drop = [&](std::string_view name) {
    if (in_file.erase(name) > 0) overridden.push_back(name);
  };
  for (const Option& option : options) {
    if (!typed.contains(option.name)) continue;
    drop(option.name);
    for (const std::string_view other : option.replaces) drop(other);
  }
  CommandLine result;
  for (const auto& given : {typed, in_file}) {
    for (const Option& option : options) {
      const auto found = given.find(option.name);
      if (found != given.end()) option.value.read(found->second, result.config);
    }
  }
  if (!overridden.empty()) {
    result.note =
        fmt::format("the command line wins over the config file: {}", fmt::join(overridden, ", "));
  }
  return result;
}

}  // namespace

CommandLine parse_command_line(TrainerKind trainer, const std::vector<std::string>& arguments) {
  const std::string_view program = name_of(trainer);
  const About& about = *std::ranges::find(kAbout, trainer, &About::trainer);
  CLI::App app{std::string(about.description), std::string(program)};
  app.formatter(std::make_shared<Formatter>());
  app.footer(std::string(about.examples));
  add_options(app, trainer);
  try {
    parse(app, arguments);
  } catch (const CLI::CallForHelp&) {
    return {.config = {}, .answer = app.help(), .note = {}};
  } catch (const CLI::CallForVersion&) {
    return {.config = {}, .answer = fmt::format("{} {}\n", program, BARESTEP_VERSION), .note = {}};
  }
  std::map<std::string_view, Given> typed;
  for (const Option& option : options_of(trainer)) {
    auto given = given_on(app, option.name, !is_flag(option));
    if (given) typed.emplace(option.name, std::move(*given));
  }
  const auto config = given_on(app, "config", true);
  const std::vector<std::string> rest = app.remaining();
  if (!rest.empty()) refuse_unknown(trainer, rest.front());
  std::map<std::string_view, Given> in_file;
  if (config) in_file = read_config_file(trainer, file_path(*config));
  CommandLine line = merge(options_of(trainer), typed, std::move(in_file));
  if (config) line.config.file = file_path(*config);
  return line;
}

}  // namespace barestep
