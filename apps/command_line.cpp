#include "command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "argument_parser.h"
#include "core/input_file.h"
#include "options/options.h"

namespace barestep {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxConfigBytes = 1 << 20;

/// The content of a config file. Of a file of --metrics, the object in its first line, with blanks
/// in the place of what is left out before it, so that places in messages are those of the file.
std::string content_of(const std::filesystem::path& path) {
  constexpr std::string_view kRecord = R"({"configuration":)";
  InputFile file(path, "config file");
  std::string start(static_cast<std::size_t>(std::min(file.size_bytes(), kMaxConfigBytes)), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(start)));
  const std::size_t end = std::min(start.find('\n'), start.size());
  const bool is_record = start.starts_with(kRecord) && start[end - 1] == '}';
  if (!is_record) return file.text(kMaxConfigBytes);
  start.resize(end - 1);
  return start.replace(0, kRecord.size(), kRecord.size(), ' ');
}

/// Receives the parser's events one by one; `text` is the stream that the parser reads, and its
/// position gives the position of an event.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(SchemeKind scheme, std::string file, std::istringstream& text)
      : scheme_(scheme), file_(std::move(file)), text_(text), content_(text.str()) {}

  std::map<std::string_view, RawValue> take() { return std::move(given_); }

  bool start_object(std::size_t /*size*/) override {
    if (depth_++ > 0) refuse_kind("an object");
    return true;
  }
  bool end_object() override { return --depth_ == 0; }

  bool key(string_t& name) override {
    // The parser has already read the closing quote.
    const std::size_t length = std::min(name.size() + 2, position());
    key_where_ = where(position() - length);
    const auto options = options_of(scheme_);
    const auto found = std::ranges::find(options, name, &Option::name);
    if (found == options.end()) {
      fail(ExitCode::kConfiguration,
           {fmt::format("{}: unknown key", key_where_), name, "no option has that name",
            did_you_mean(name, names_of_options(scheme_), false)});
    }
    option_ = &*found;
    if (!seen_.insert(option_->name).second) {
      fail(ExitCode::kConfiguration,
           {fmt::format("{}: key", key_where_), name, "given twice", "give it once"});
    }
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    const bool requested =
        option_ != nullptr && (option_->value.json == JsonKind::kNumbers ||
                               option_->value.json == JsonKind::kNumberOrNumbers);
    if (numbers_ || !requested) refuse_kind("an array");
    numbers_.emplace();
    return true;
  }
  bool end_array() override {
    const std::string text = std::move(*numbers_);
    numbers_.reset();
    return keep(text);
  }

  bool string(string_t& text) override {
    expect({JsonKind::kString, JsonKind::kNumberOrString}, "a string");
    if (text.find('\0') != std::string::npos) {
      fail(ExitCode::kConfiguration, {fmt::format("{}: {}", key_where_, option_->name), "",
                                      "holds a NUL character", "leave \\u0000 out"});
    }
    return keep(text);
  }
  bool boolean(bool is_true) override {
    expect({JsonKind::kBoolean}, is_true ? "true" : "false");
    return !is_true || keep("true");
  }
  bool number_integer(number_integer_t value) override { return number(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return number(text);
  }
  bool null() override { refuse_kind("null"); }
  bool binary(binary_t& /*value*/) override { refuse_kind("binary"); }

  bool parse_error(std::size_t read, const std::string& token,
                   const Json::exception& error) override {
    constexpr int kNumberOverflows = 406;
    if (error.id == kNumberOverflows) {
      number(token);  // rejects it if no number is allowed here
      fail(ExitCode::kConfiguration,
           {fmt::format("{}: {}", key_where_, option_->name), token, "out of range",
            fmt::format("--help describes --{}", option_->name)});
    }
    // "[json.exception...] parse error at line 1, column 2: syntax error ...": keeps only the
    // reason. The position is that of the last character of the unexpected token.
    const std::string_view text = error.what();
    const std::size_t column = text.find("column");
    const std::size_t reason = text.find(": ", column == std::string_view::npos ? 0 : column);
    fail(ExitCode::kConfiguration,
         {where(std::max<std::size_t>(read, 1) - 1), "",
          fmt::format("not JSON: {}",
                      reason == std::string_view::npos ? text : text.substr(reason + 2)),
          "a config file is one JSON object"});
  }

 private:
  [[noreturn]] void refuse_kind(std::string_view found) const {
    constexpr std::string_view kExpected[] = {"true or false",
                                              "a number",
                                              "a string",
                                              "an array of numbers",
                                              "a number or a string",
                                              "a number or an array of numbers"};
    if (option_ == nullptr) {
      fail(ExitCode::kConfiguration,
           {where(0), "", fmt::format("{} where an object should be", found),
            "a config file is one JSON object"});
    }
    fail(ExitCode::kConfiguration, {fmt::format("{}: {}", key_where_, option_->name), "",
                                    fmt::format("{} where {} should be", found,
                                                kExpected[static_cast<int>(option_->value.json)]),
                                    fmt::format("--help describes --{}", option_->name)});
  }

  void expect(std::initializer_list<JsonKind> kinds, std::string_view found) const {
    const bool fits = option_ != nullptr && !numbers_ &&
                      std::ranges::find(kinds, option_->value.json) != kinds.end();
    if (!fits) refuse_kind(found);
  }

  bool number(const std::string& text) {
    if (!numbers_) {
      expect({JsonKind::kNumber, JsonKind::kNumberOrString, JsonKind::kNumberOrNumbers},
             "a number");
      return keep(text);
    }
    if (!numbers_->empty()) *numbers_ += ',';
    *numbers_ += text;
    return true;
  }

  bool keep(const std::string& text) {
    given_[option_->name] = {.where = fmt::format("{}: {}", key_where_, option_->name),
                             .text = text,
                             .code = ExitCode::kConfiguration};
    return true;
  }

  /// How many bytes the parser has read so far.
  [[nodiscard]] std::size_t position() const {
    const auto at = text_.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in);
    return static_cast<std::size_t>(std::max<std::streamoff>(at, 0));
  }

  /// The file:line:column of a byte.
  [[nodiscard]] std::string where(std::size_t byte) const {
    const std::string_view before = std::string_view(content_).substr(0, byte);
    const auto line = 1 + std::ranges::count(before, '\n');
    const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    return fmt::format("{}:{}:{}", file_, line, before.size() - line_start + 1);
  }

  const SchemeKind scheme_;
  const std::string file_;
  std::istringstream& text_;
  const std::string content_;
  int depth_ = 0;
  const Option* option_ = nullptr;  // for the key read last
  std::string key_where_;
  std::optional<std::string> numbers_;  // inside an array
  std::set<std::string_view> seen_;
  std::map<std::string_view, RawValue> given_;
};

/// The text of --help other than the options.
struct About {
  SchemeKind usual;
  std::string_view description;
  std::string_view examples;
};

constexpr About kAbout[] = {
    {SchemeKind::kSingle,
     "Trains multi-layer perceptrons and transformer blocks on one device, and accounts for every "
     "step.",
     R"(Examples:
  mlp_single --dim 1024 --depth 6 --steps 50
  mlp_single --data idx:images.gz,labels.gz --layers 784,512,512,10 --no-last-relu \
      --loss cross-entropy --epochs 5 --test-split 0.2
  mlp_single --plan --dim 8192 --depth 6 --memory 16GiB)"},
    {SchemeKind::kDataParallel,
     "Trains multi-layer perceptrons and transformer blocks on several devices of one process, as\n"
     "DataParallel does, and accounts for every step and device.",
     R"(Examples:
  mlp_dp --devices cuda:0,cuda:1 --batch-size 256
  mlp_dp --devices cpu,cpu,cpu --dim 1024 --depth 2 --show-split
  mlp_dp --devices cuda:0,cuda:1,cuda:2,cuda:3 --plan --memory 16GiB)"},
    {SchemeKind::kDdp,
     "Trains multi-layer perceptrons and transformer blocks on many ranks, as\n"
     "DistributedDataParallel does, and accounts for every step. Started by mpirun or srun, each\n"
     "process is a rank; alone it is one rank.",
     R"(Examples:
  mpirun -np 4 mlp_ddp --dim 1024 --depth 2
  mpirun -np 2 mlp_ddp --global-batch-size 128 --bucket-mib 4 --no-overlap
  srun -n 8 --mpi=pmix mlp_ddp --batch-size 32 --slow-rank 1:20)"},
};

/// Applies the file's options, except those that the command line replaces, then the command
/// line's.
CommandLine merge(SchemeKind usual, const std::map<std::string_view, RawValue>& typed,
                  std::map<std::string_view, RawValue> in_file) {
  const std::span<const Option> options = options_of(usual);
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
  result.config.parallel.scheme = usual;
  for (const auto& given : {typed, in_file}) {
    for (const Option& option : options) {
      const auto found = given.find(option.name);
      if (found != given.end()) option.value.read(found->second, result.config);
    }
  }
  if (!overridden.empty()) {
    result.note =
        fmt::format("the command line overrides the config file: {}", fmt::join(overridden, ", "));
  }
  return result;
}

}  // namespace

std::map<std::string_view, RawValue> read_config_file(SchemeKind scheme,
                                                      const std::filesystem::path& path) {
  std::string content = content_of(path);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.erase(0, kByteOrderMark.size());
  // The parser would take NUL as the end of the file.
  if (content.find('\0') != std::string::npos) {
    fail(ExitCode::kConfiguration, {"config file", path.string(), "not JSON: holds a NUL byte",
                                    "a config file is one JSON object"});
  }
  std::istringstream text(std::move(content));
  Reader reader(scheme, path.string(), text);
  Json::sax_parse(text, &reader);
  return reader.take();
}

CommandLine parse_command_line(SchemeKind scheme, const std::vector<std::string>& arguments) {
  const auto& [name, usual, last] = program_of(scheme);
  const About& about = *std::ranges::find(kAbout, usual, &About::usual);
  ArgumentParser parser(name, BARESTEP_VERSION, about.description, about.examples);
  std::map<std::string_view, RawValue> typed;
  for (const Option& option : options_of(usual)) {
    const auto keep = [&typed, &option](const RawValue& given) {
      typed.emplace(option.name, given);
    };
    parser.program().add({.name = fmt::format("--{}", option.name),
                          .type = is_flag(option) ? "" : std::string(option.value.argument),
                          .help = help_of(option),
                          .group = std::string(option.group),
                          .read = keep});
  }
  std::filesystem::path config;
  parser.program().add({.name = "--config",
                        .type = "FILE",
                        .help = "JSON object of these options, or a file of --metrics, whose first "
                                "line has one; the command line overrides it",
                        .group = "Files",
                        .read = [&config](const RawValue& given) { config = file_path(given); }});
  if (std::string answer = parser.parse(arguments); !answer.empty()) {
    return {.config = {}, .answer = std::move(answer), .note = {}};
  }
  std::map<std::string_view, RawValue> in_file;
  if (!config.empty()) in_file = read_config_file(usual, config);
  CommandLine line = merge(usual, typed, std::move(in_file));
  line.config.file = config;
  return line;
}

}  // namespace barestep
