#include "lab/explain/trace_events.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <iterator>
#include <span>
#include <streambuf>
#include <string_view>
#include <unordered_map>

#include "core/error.h"
#include "core/json_document.h"
#include "core/lookup.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr std::int64_t kMaxUnpackedBytes = std::int64_t{4} << 30;
constexpr std::int64_t kMaxEventBytes = std::int64_t{16} << 20;  // also of the file without events

/// The bytes of the valid UTF-8 sequence that a text begins with; 0 if there is none.
std::size_t utf8_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t bytes = lead < 0x80   ? 1
                            : lead < 0xC2 ? 0
                            : lead < 0xE0 ? 2
                            : lead < 0xF0 ? 3
                            : lead < 0xF5 ? 4
                                          : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Longer than they need be, halves of pairs of UTF-16, and beyond Unicode.
  const bool is_wrong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
                        (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
  return is_wrong ? 0 : bytes;
}

/// Makes JSON of what profilers write: NaN and infinity, control characters, backslashes and other
/// encodings in strings, trailing commas, and an array of events without its end.
/// No name or argument decides anything in an account.
class JsonMender {
 public:
  static constexpr std::size_t kLongest = 12;  // "\\ud83d\\ude00"

  /// Replaces bytes in place. Returns how many are done; unless it is the `last` of the text, the
  /// rest is to come again with what follows.
  std::size_t mend(std::span<char> text, bool last) {
    std::size_t at = 0;
    while (at < text.size() && (last || text.size() - at >= kLongest)) {
      const std::span<char> rest = text.subspan(at);
      const std::size_t done = in_string_            ? mend_string(rest)
                               : rest.front() == ',' ? mend_comma(rest, last)
                                                     : mend_value(rest);
      if (done == 0) break;
      at += done;
    }
    return std::min(at, text.size());
  }

  /// Whether all that lacks at the end of the text is that of an array of whole events.
  [[nodiscard]] bool lacks_bracket() const { return is_array_ && depth_ == 1 && !in_string_; }

 private:
  /// Returns 0 if it is not there yet what follows.
  std::size_t mend_comma(std::span<char> text, bool last) const {
    const std::string_view rest(text.data(), text.size());
    const std::size_t next = rest.find_first_not_of(" \t\r\n", 1);
    if (next == rest.npos && !last) return 0;
    const bool is_behind_last =
        next == rest.npos ? lacks_bracket() : rest[next] == ']' || rest[next] == '}';
    if (is_behind_last) text.front() = ' ';
    return 1;
  }

  std::size_t mend_value(std::span<char> text) {
    const std::string_view rest(text.data(), text.size());
    const char first = rest.front();
    in_string_ = first == '"';
    if (first == '[' || first == '{') {
      if (depth_++ == 0) is_array_ = first == '[';
    }
    if (first == ']' || first == '}') --depth_;
    if (std::string_view("nNiI-").find(rest.front()) == std::string_view::npos) return 1;
    const auto is_equal = [](char c, char lower) {
      return std::tolower(static_cast<unsigned char>(c)) == lower;
    };
    for (const std::string_view number : {"infinity", "-infinity", "inf", "-inf", "nan", "-nan"}) {
      if (!std::ranges::equal(rest.substr(0, number.size()), number, is_equal)) continue;
      std::ranges::fill(text.first(number.size()), ' ');
      std::ranges::copy(std::string_view("[0]"), text.begin());  // no number
      return number.size();
    }
    return 1;
  }

  std::size_t mend_string(std::span<char> text) {
    const std::string_view rest(text.data(), text.size());
    const char first = rest.front();
    if (first == '"') in_string_ = false;
    if (first == '\\') return mend_escape(text);
    if (first >= ' ') return 1;  // ASCII
    if (static_cast<unsigned char>(first) < 0x20) text.front() = ' ';
    const std::size_t bytes = utf8_bytes(rest);
    if (bytes == 0) text.front() = '?';
    return std::max<std::size_t>(bytes, 1);
  }

  static std::size_t mend_escape(std::span<char> text) {
    const std::string_view rest(text.data(), text.size());
    const bool is_known =
        rest.size() > 1 && std::string_view("\"\\/bfnrtu").find(rest[1]) != rest.npos;
    if (!is_known) text.front() = '/';
    // A half of a pair of UTF-16 is no character.
    const auto is_half = [&](std::size_t at, std::string_view thirds) {
      return rest.size() > at + 5 && rest[at] == '\\' && rest[at + 1] == 'u' &&
             (rest[at + 2] | 0x20) == 'd' && thirds.find(rest[at + 3]) != rest.npos;
    };
    if (is_half(0, "89abAB") && is_half(6, "cdefCDEF")) return 12;
    if (is_half(0, "89abcdefABCDEF")) std::ranges::copy(std::string_view("003f"), text.begin() + 2);
    return is_known ? 2 : 1;
  }

  bool in_string_ = false, is_array_ = false;  // what is not in anything else
  std::int64_t depth_ = 0;                     // of arrays and objects
};

/// The text of a trace, mended while it is read.
class TraceText : public std::streambuf {
 public:
  TraceText(const TraceSource& source, const char* remedy)
      : source_(source), remedy_(remedy), piece_(1 << 18) {}

  /// Called after each event; limits the size of the next one.
  void begin_event() { event_bytes_ = 0; }

  /// How many bytes were taken; the end counts as one.
  [[nodiscard]] std::int64_t taken() const { return bytes_ - (egptr() - gptr()) + ends_; }

 protected:
  int_type underflow() override {
    int read = 0;
    do {
      // What was not mended yet comes first.
      const std::size_t left = end_ - mended_;
      std::copy(piece_.begin() + static_cast<std::ptrdiff_t>(mended_),
                piece_.begin() + static_cast<std::ptrdiff_t>(end_), piece_.begin());
      read = source_.read(std::span(piece_).subspan(left));
      if (read < 0) refuse_trace(source_.path, "its gzip stream is corrupt", remedy_);
      end_ = left + static_cast<std::size_t>(read);
      mended_ = mender_.mend(std::span(piece_).first(end_), read == 0);
    } while (mended_ == 0 && read > 0);
    auto count = static_cast<std::ptrdiff_t>(mended_);
    if (count == 0 && mender_.lacks_bracket()) {
      piece_.front() = ']';
      mender_.mend(std::span(piece_).first(1), true);
      count = 1;
    }
    bytes_ += count;
    event_bytes_ += count;
    if (bytes_ > kMaxUnpackedBytes) refuse_trace(source_.path, "holds more than 4 GiB", remedy_);
    if (event_bytes_ > kMaxEventBytes) {
      refuse_trace(source_.path, "holds more than 16 MiB in one of its events, or beside them",
                   remedy_);
    }
    setg(piece_.data(), piece_.data(), piece_.data() + count);
    ends_ = count == 0 ? 1 : 0;
    return count == 0 ? traits_type::eof() : traits_type::to_int_type(piece_.front());
  }

 private:
  const TraceSource& source_;
  const char* remedy_;
  std::vector<char> piece_;
  std::size_t mended_ = 0, end_ = 0;  // bytes of the piece: ready to be read, there
  JsonMender mender_;
  std::int64_t bytes_ = 0, event_bytes_ = 0;
  int ends_ = 0;
};

constexpr const char* kTraceRemedy = "give traces by PyTorch's profiler, or by --trace";

// Beyond any time or count of a trace: until 2049 and, for an event, 30 years. Sums of a begin, a
// duration and a base fit into 64 bits of nanoseconds, and so do their differences.
constexpr double kMaxMicroseconds = 2.5e15;
constexpr double kMaxDuration = 1e15;
constexpr double kMaxInteger = 9e15;
constexpr std::int64_t kMaxBase = std::int64_t{1} << 61;

/// A member's number, or that of its text; `otherwise` if there is none, or one out of range.
double number_or(const EventJson& object, const char* key, double otherwise) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  if (found->is_boolean()) return found->get<bool>() ? 1 : 0;
  double number = 0;
  if (found->is_string()) {
    const auto& text = found->get_ref<const std::string&>();
    const auto [end, error] = read_real(text, number);
    if (error != std::errc() || end != text.data() + text.size()) return otherwise;
  } else if (found->is_number()) {
    number = found->get<double>();
  } else {
    return otherwise;
  }
  return std::abs(number) <= kMaxInteger ? number : otherwise;
}

std::int64_t integer_or(const EventJson& object, const char* key, std::int64_t otherwise) {
  return std::llround(number_or(object, key, static_cast<double>(otherwise)));
}

std::string text_or_empty(const EventJson& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

/// Exact: times since 1970 have more digits than a double of nanoseconds.
std::int64_t trace_ns(double us) {
  const double whole = std::trunc(us);
  return 1000 * static_cast<std::int64_t>(whole) + std::llround(1e3 * (us - whole));
}

std::optional<TraceEvent::Kind> kind_named(std::string_view category) {
  using Kind = TraceEvent::Kind;
  constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"cpu_op", Kind::kOp},         {"user_annotation", Kind::kAnnotation},
      {"cuda_runtime", Kind::kCall}, {"cuda_driver", Kind::kCall},
      {"kernel", Kind::kKernel},     {"gpu_memcpy", Kind::kCopy},
      {"gpu_memset", Kind::kFill},   {"cuda_sync", Kind::kStreamWait},
      {"Operator", Kind::kOp},       {"Kernel", Kind::kKernel},  // before PyTorch 1.13
      {"Runtime", Kind::kCall},      {"Memcpy", Kind::kCopy},
      {"Memset", Kind::kFill},       {"hip_runtime", Kind::kCall},
      {"xpu_runtime", Kind::kCall},  {"python_function", Kind::kFunction}};
  const Kind* const found = found_in(kKinds, category);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

/// The bytes of a number, by the names of types in collectives and in ops.
std::int64_t type_bytes(std::string_view type) {
  constexpr std::pair<std::string_view, std::int64_t> kBytes[] = {
      {"Half", 2},       {"BFloat16", 2},    {"Double", 8},        {"Long", 8},
      {"Short", 2},      {"Byte", 1},        {"Char", 1},          {"Bool", 1},
      {"double", 8},     {"long", 8},        {"short", 2},         {"bool", 1},
      {"long int", 8},   {"signed char", 1}, {"unsigned char", 1}, {"Float8_e4m3fn", 1},
      {"Float8_e5m2", 1}};
  constexpr std::string_view kNamespace = "c10::";
  if (type.starts_with(kNamespace)) type.remove_prefix(kNamespace.size());
  const std::int64_t* const found = found_in(kBytes, type);
  return found == nullptr ? 4 : *found;
}

/// The numbers of an array; nothing if it is none of sensible numbers.
std::vector<std::int64_t> extents_of(const EventJson& array) {
  std::vector<std::int64_t> extents;
  if (!array.is_array()) return {};
  for (const EventJson& number : array) {
    if (!number.is_number_integer()) return {};
    const auto extent = number.get<std::int64_t>();
    if (extent < 0 || extent > (std::int64_t{1} << 40)) return {};
    extents.push_back(extent);
  }
  return extents;
}

/// One name for the ways in which NCCL, gloo and PyTorch write a collective:
/// "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "nccl:all_reduce", "gloo:all_reduce", "allreduce".
std::string collective_named(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"reducescatter", "reduce_scatter"},
      {"allreduce", "all_reduce"},
      {"allgather", "all_gather"},
      {"alltoall", "all_to_all"},
      {"broadcast", "broadcast"},
      {"sendrecv", "send_receive"},
      {"send", "send"},
      {"recv", "receive"},
      {"barrier", "barrier"},
      {"scatter", "scatter"},
      {"gather", "gather"},
      {"reduce", "reduce"}};
  for (const auto& [part, called] : kNames) {
    if (letters.find(part) != std::string::npos) return called;
  }
  return "collective";
}

bool names_collective(std::string_view name) {
  return name.starts_with("nccl") || name.find("ncclKernel") != std::string_view::npos ||
         name.find("ncclDevKernel") != std::string_view::npos;
}

/// Whether it is a function of the user's program, which has a name: "train.py(12): augment".
bool is_of_user(std::string_view function) {
  constexpr std::string_view kLibraries[] = {"torch/",      "numpy/",       "multiprocessing/",
                                             "concurrent/", "asyncio/",     "importlib/",
                                             "logging/",    "json/",        "collections/",
                                             "threading.",  "queue.",       "selectors.",
                                             "contextlib.", "pickle.",      "copy.",
                                             "random.",     "socket.",      "tempfile.",
                                             "runpy.",      "subprocess.",  "gzip.",
                                             "zipfile.",    "functools.",   "enum.",
                                             "abc.",        "warnings.",    "inspect.",
                                             "typing.",     "weakref.",     "os.",
                                             "shutil.",     "dataclasses.", "traceback.",
                                             "site.",       "codecs.",      "<"};
  constexpr std::string_view kFolders[] = {"/torch/", "site-packages/", "dist-packages/",
                                           "/lib/python"};
  const auto name = function.find("): ");
  return name != function.npos && !function.substr(name + 3).starts_with('<') &&
         std::ranges::none_of(kLibraries, [&](auto root) { return function.starts_with(root); }) &&
         std::ranges::none_of(kFolders,
                              [&](auto folder) { return function.find(folder) != function.npos; });
}

/// Whether it is a node of autograd's graph, or backward of a user's Function: "MulBackward0".
bool is_node_of_backward(std::string_view op) {
  const auto last = op.find_last_not_of("0123456789");
  return op.find(':') == op.npos && op.substr(0, last + 1).ends_with("Backward");
}

/// Collects the events of a file.
class TraceCollector {
 public:
  explicit TraceCollector(TraceFile& file) : file_(file) {}

  void add(const EventJson& from) {
    if (!from.is_object()) return;
    const std::string phase = text_or_empty(from, "ph");
    if (phase == "X") add_whole(from);
    if (phase == "B") begin(from);
    if (phase == "E") end(from);
  }

 private:
  /// An event that another one ends; until then it has no duration.
  void begin(const EventJson& from) {
    if (!kind_named(text_or_empty(from, "cat"))) return;
    begun_[row_index(from)].push_back(from);
    ++file_.left_out;
  }

  /// Ends what began last on the same row. The category of an end need not be given.
  void end(const EventJson& from) {
    const auto begun = begun_.find(row_index(from));
    if (begun == begun_.end() || begun->second.empty()) return;
    EventJson whole = std::move(begun->second.back());
    begun->second.pop_back();
    --file_.left_out;
    whole["dur"] = number_or(from, "ts", -kMaxInteger) - number_or(whole, "ts", 0);
    add_whole(whole);
  }

  void add_whole(const EventJson& from) {
    const std::optional<TraceEvent::Kind> kind = kind_named(text_or_empty(from, "cat"));
    if (!kind) return;
    const std::string name = text_or_empty(from, "name");
    const bool is_function = *kind == TraceEvent::Kind::kFunction;
    file_.has_stacks |= is_function;
    if (is_function && !is_of_user(name)) return;
    const double ts = number_or(from, "ts", 2 * kMaxInteger);
    const double duration = number_or(from, "dur", -1);
    if (std::abs(ts) > kMaxMicroseconds || duration < 0 || duration > kMaxDuration) {
      ++file_.left_out;
      return;
    }
    static const EventJson none = EventJson::object();
    const auto found = from.find("args");
    const EventJson& args = found != from.end() && found->is_object() ? *found : none;
    TraceEvent event{.kind = *kind, .name = name_index(name), .row = row_index(from)};
    event.begin_ns = trace_ns(ts);
    event.end_ns = event.begin_ns + trace_ns(duration);
    event.correlation = integer_or(args, "correlation", 0);
    event.is_step = name.starts_with("ProfilerStep#") && event.is_on_host();
    event.is_update = name.starts_with("Optimizer.step#") && event.is_on_host();
    add_details(event, name, args);
    (is_function ? file_.functions : file_.events).push_back(event);
  }

  void add_details(TraceEvent& event, const std::string& name, const EventJson& args) {
    using Kind = TraceEvent::Kind;
    switch (event.kind) {
      case Kind::kOp:
        event.is_backward = integer_or(args, "Fwd thread id", 0) > 0 ||
                            name.starts_with("autograd::engine::evaluate_function") ||
                            is_node_of_backward(name);
        event.correlation = integer_or(args, "Sequence number", -1);
        event.is_recorded = event.correlation >= 0 && !only_reads(name);
        if (name == "aten::linear" || name == "aten::addmm") event.details = add_linear(name, args);
        if (name == "c10d::send" || name == "c10d::recv_") event.details = peer_of(args);
        if (name == "torch::autograd::AccumulateGrad") {
          file_.gradients.push_back({event.begin_ns, event.end_ns, bytes_of_first(args)});
        }
        return;
      case Kind::kAnnotation:
        if (event.is_step && args.contains("clock start")) {
          event.details = add_step(args);
        } else if (name.starts_with("gloo:") || name.starts_with("mpi:") ||
                   name.starts_with("nccl:")) {
          event.collective = add_collective(name, args);
        }
        return;
      case Kind::kKernel:
      case Kind::kCopy:
      case Kind::kFill:
        if (args.contains("node") && args.contains("phase")) event.details = add_node(args);
        if (names_collective(name)) event.collective = add_collective(name, args);
        return;
      case Kind::kStreamWait:
        if (name != "Stream Wait Event") return;
        event.details = static_cast<std::int32_t>(file_.waits.size());
        file_.waits.push_back({integer_or(args, "stream", -1),
                               integer_or(args, "wait_on_stream", -1),
                               integer_or(args, "wait_on_cuda_event_record_corr_id", 0)});
        return;
      case Kind::kCall:
      case Kind::kFunction:
        return;
    }
  }

  /// c10d::send(tensors, group, rank, tag); -1 if shapes were not recorded.
  static std::int32_t peer_of(const EventJson& args) {
    const auto inputs = args.find("Concrete Inputs");
    if (inputs == args.end() || !inputs->is_array() || inputs->size() < 3) return -1;
    const EventJson rank = {{"rank", (*inputs)[2]}};
    return static_cast<std::int32_t>(
        std::clamp<std::int64_t>(integer_or(rank, "rank", -1), -1, 1 << 20));
  }

  /// aten::linear(x, weight, bias); aten::addmm(bias, x, transposed weight).
  std::int32_t add_linear(const std::string& name, const EventJson& args) {
    const auto dims = args.find("Input Dims");
    const std::size_t x = name == "aten::linear" ? 0 : 1;
    if (dims == args.end() || !dims->is_array() || dims->size() < x + 2) return -1;
    const std::vector<std::int64_t> input = extents_of((*dims)[x]),
                                    weight = extents_of((*dims)[x + 1]);
    TraceFile::Linear linear{.is_module = x == 0};
    if (input.size() == 2 && weight.size() == 2) {
      linear.rows = input[0];
      linear.inputs = input[1];
      linear.outputs = weight[x];
    }
    file_.linears.push_back(linear);
    return static_cast<std::int32_t>(file_.linears.size()) - 1;
  }

  std::int32_t add_step(const EventJson& args) {
    const auto at = [&](const char* key) { return trace_ns(number_or(args, key, 0)); };
    file_.steps.push_back({.step = integer_or(args, "step", 0),
                           .start_ns = at("clock start"),
                           .fetch_begin_ns = at("fetch begin"),
                           .fetched_ns = at("fetch end"),
                           .overlaps_previous = integer_or(args, "overlaps previous", 0) != 0,
                           .overlaps_next = integer_or(args, "overlaps next", 0) != 0,
                           .joins_lanes = integer_or(args, "joins lanes", 0) != 0});
    return static_cast<std::int32_t>(file_.steps.size()) - 1;
  }

  std::int32_t add_node(const EventJson& args) {
    const auto phase = value_named<Phase>(text_or_empty(args, "phase"));
    if (!phase) return -1;
    TracedNode node{.step = integer_or(args, "step", 0),
                    .node = integer_or(args, "node", 0),
                    .device = integer_or(args, "device", 0),
                    .phase = *phase,
                    .flops = number_or(args, "flops", 0)};
    if (const auto waits = args.find("waits"); waits != args.end() && waits->is_array()) {
      for (const EventJson& entry : *waits) {
        const std::vector<std::int64_t> wait = extents_of(entry);
        if (wait.size() == 3) node.waits.push_back({wait[0], wait[1], wait[2]});
      }
    }
    file_.nodes.push_back(std::move(node));
    return static_cast<std::int32_t>(file_.nodes.size()) - 1;
  }

  /// The bytes of an op's first argument; 0 if its shape was not recorded.
  static std::int64_t bytes_of_first(const EventJson& args) {
    const auto dims = args.find("Input Dims"), types = args.find("Input type");
    if (dims == args.end() || !dims->is_array() || dims->empty()) return 0;
    std::int64_t numbers = 1;
    for (const std::int64_t extent : extents_of(dims->front())) {
      numbers = std::min(numbers * std::min(extent, std::int64_t{1} << 30), std::int64_t{1} << 32);
    }
    const bool is_typed =
        types != args.end() && types->is_array() && !types->empty() && types->front().is_string();
    return numbers * type_bytes(is_typed ? types->front().get<std::string>() : "float");
  }

  std::int32_t add_collective(const std::string& name, const EventJson& args) {
    std::string kind = collective_named(text_or_empty(args, "Collective name"));
    if (kind == "collective") kind = collective_named(name);
    TracedCollective all{.name = std::move(kind),
                         .group = text_or_empty(args, "Process Group Name"),
                         .ranks = static_cast<int>(std::clamp<std::int64_t>(
                             integer_or(args, "Group size", 0), 0, 1 << 20))};
    all.peer = static_cast<int>(std::clamp<std::int64_t>(
        integer_or(args, all.name == "send" ? "Dst Rank" : "Src Rank", -1), -1, 1 << 20));
    if (args.contains("In msg nelems")) {
      const std::int64_t numbers =
          std::max(integer_or(args, "In msg nelems", 0), integer_or(args, "Out msg nelems", 0));
      all.bytes = std::min<std::int64_t>(numbers, std::int64_t{1} << 50) *
                  type_bytes(text_or_empty(args, "dtype"));
    } else {
      all.bytes = bytes_of_first(args);
      all.is_share = all.name == "all_gather";
    }
    file_.collectives.push_back(std::move(all));
    return static_cast<std::int32_t>(file_.collectives.size()) - 1;
  }

  TraceIndex name_index(const std::string& name) {
    const auto [at, is_new] = names_.try_emplace(name, static_cast<TraceIndex>(file_.names.size()));
    if (is_new) file_.names.push_back(name);
    return at->second;
  }

  TraceIndex row_index(const EventJson& from) {
    TracedRow row{text_or_empty(from, "pid"), text_or_empty(from, "tid")};
    const auto [at, is_new] = rows_.try_emplace(row.process + '\n' + row.thread,
                                                static_cast<TraceIndex>(file_.rows.size()));
    if (is_new) file_.rows.push_back(std::move(row));
    return at->second;
  }

  TraceFile& file_;
  std::unordered_map<std::string, TraceIndex> names_, rows_;
  std::unordered_map<TraceIndex, std::vector<EventJson>> begun_;  // by row, the last one last
};

/// Adds what the file tells beside its events.
void read_trace_head(const EventJson& rest, TraceFile& file) {
  if (!rest.is_object() || !rest.contains("traceEvents") || !rest.at("traceEvents").is_array()) {
    refuse_trace(file.path, "has no traceEvents", kTraceRemedy);
  }
  file.is_ours = rest.contains("barestep_version");
  file.host = text_or_empty(rest, "host_name");
  if (const auto job = rest.find("distributedInfo"); job != rest.end() && job->is_object()) {
    const std::int64_t rank = integer_or(*job, "rank", -1);
    if (rank >= 0 && rank < 1 << 20) file.rank = rank;
    file.world_size = std::clamp<std::int64_t>(integer_or(*job, "world_size", 0), 0, 1 << 20);
  }
  if (const auto devices = rest.find("deviceProperties");
      devices != rest.end() && devices->is_array() && !devices->empty() &&
      devices->front().is_object()) {
    file.gpu = text_or_empty(devices->front(), "name");
  }
  for (TracedCollective& collective : file.collectives) {
    const std::int64_t ranks = collective.ranks > 0 ? collective.ranks : file.world_size;
    if (collective.is_share && ranks > 0) {
      collective.bytes = std::min(collective.bytes, std::int64_t{1} << 42) * ranks;
      collective.is_share = false;
    }
  }
  std::int64_t base_ns = 0;
  if (const auto base = rest.find("baseTimeNanoseconds");
      base != rest.end() && base->is_number_integer()) {
    base_ns = base->get<std::int64_t>();
    if (base_ns < 0 || base_ns > kMaxBase) base_ns = 0;
  }
  for (auto* const events : {&file.events, &file.functions}) {
    for (TraceEvent& event : *events) {
      event.begin_ns += base_ns;
      event.end_ns += base_ns;
    }
  }
  for (TraceFile::Gradient& gradient : file.gradients) {
    gradient.begin_ns += base_ns;
    gradient.end_ns += base_ns;
  }
  for (TracedStep& step : file.steps) {
    for (std::int64_t* const at : {&step.start_ns, &step.fetch_begin_ns, &step.fetched_ns}) {
      *at += base_ns;
    }
  }
}

/// Leaves out what lies a day or more before or behind most events, such as an event at 0.
void leave_out_far_events(TraceFile& file) {
  constexpr std::int64_t kDayNs = 86'400'000'000'000;
  using Events = std::span<const TraceEvent>;
  Events most, from(file.events);
  while (!from.empty()) {
    const auto far = std::ranges::adjacent_find(from, [](const TraceEvent& a, const TraceEvent& b) {
      return b.begin_ns - a.begin_ns > kDayNs;
    });
    const auto count =
        far == from.end() ? from.size() : static_cast<std::size_t>(far - from.begin()) + 1;
    if (count > most.size()) most = from.first(count);
    from = from.subspan(count);
  }
  if (most.size() == file.events.size()) return;
  file.far_apart = std::ssize(file.events) - std::ssize(most);
  file.events = std::vector(most.begin(), most.end());
}

}  // namespace

bool only_reads(std::string_view op) {
  return op == "aten::item" || op == "aten::_local_scalar_dense" || op == "aten::is_nonzero" ||
         op == "aten::detach";
}

bool has_within(const std::vector<std::int64_t>& moments_ns, const TraceEvent& event) {
  const auto after = std::ranges::upper_bound(moments_ns, event.begin_ns);
  return after != moments_ns.end() && *after < event.end_ns;
}

bool has_passes_in_update(const TraceFile& file) {
  return std::ranges::any_of(file.events, [&](const TraceEvent& event) {
    return event.is_update && has_within(file.backward_ns, event);
  });
}

void refuse_trace(const std::filesystem::path& path, std::string why, const char* remedy) {
  fail(ExitCode::kBadData,
       {.what = "trace", .value = path.string(), .why = std::move(why), .remedy = remedy});
}

EventJson read_trace_json(const TraceSource& source, const char* remedy,
                          const std::function<void(EventJson&)>& on_event) {
  TraceText text(source, remedy);
  int event_depth = 2;  // in an array in an object; in Chrome's array form, 1
  bool in_events = false;
  using Kind = EventJson::parse_event_t;
  const auto on_value = [&](int depth, Kind kind, EventJson& value) {
    const bool begins = kind == Kind::object_start || kind == Kind::array_start;
    if (begins && depth >= kMaxJsonDepth) {
      refuse_trace(source.path,
                   fmt::format("is nested deeper than {} arrays and objects", kMaxJsonDepth),
                   remedy);
    }
    if (kind == Kind::array_start && depth == 0) {
      event_depth = 1;
      in_events = true;
    }
    if (kind == Kind::key && depth == 1) in_events = value == "traceEvents";
    if (!in_events || depth != event_depth || begins || kind == Kind::key) return true;
    on_event(value);
    text.begin_event();
    return false;
  };
  // No code in a browser catches exceptions of the parser. After a mistake it takes one more token.
  using Characters = std::istreambuf_iterator<char>;
  EventJson rest = EventJson::parse(Characters(&text), Characters(), on_value, false);
  if (rest.is_discarded()) {
    refuse_trace(source.path,
                 fmt::format("is damaged or cut: it is not complete JSON by byte {}", text.taken()),
                 remedy);
  }
  if (rest.is_array()) return EventJson::object({{"traceEvents", std::move(rest)}});
  return rest;
}

TraceFile read_trace_file(const TraceSource& source) {
  TraceFile file{.path = source.path};
  TraceCollector collector(file);
  read_trace_head(
      read_trace_json(source, kTraceRemedy, [&](EventJson& event) { collector.add(event); }), file);
  if (file.events.empty())
    refuse_trace(file.path, "has no event of a program's work", kTraceRemedy);
  const auto on_host = std::ranges::find_if(file.events, &TraceEvent::is_on_host);
  if (on_host != file.events.end()) file.process = file.rows[on_host->row].process;
  for (auto* const events : {&file.events, &file.functions}) {
    std::ranges::stable_sort(*events, [](const TraceEvent& a, const TraceEvent& b) {
      return std::pair(a.begin_ns, -a.end_ns) < std::pair(b.begin_ns, -b.end_ns);
    });
  }
  std::ranges::sort(file.gradients, {}, &TraceFile::Gradient::begin_ns);
  leave_out_far_events(file);
  for (const TraceEvent& event : file.events) {
    if (event.is_step) file.steps_ns.push_back(event.begin_ns);
    if (event.is_update) file.updates_ns.push_back(event.begin_ns);
    if (event.is_backward) file.backward_ns.push_back(event.begin_ns);
  }
  return file;
}

}  // namespace barestep
