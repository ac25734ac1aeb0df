// What a browser lacks of the libraries below src: throwing of C++ exceptions, numbers by
// std::from_chars, and the host's processor.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <typeinfo>

#include "core/error.h"
#include "core/host.h"
#include "core/units.h"

// The page's: throws a JavaScript exception with this text.
extern "C" [[clang::import_module("page"), clang::import_name("refuse"), noreturn]] void refuse(
    const char* text, unsigned bytes);

namespace barestep {

std::from_chars_result read_real(std::string_view text, double& number,
                                 std::chars_format /*format*/) {
  // strtod also takes blanks, a plus sign and hexadecimal digits.
  const std::string copy(text.substr(0, text.find_first_not_of("0123456789.eE+-")));
  const bool begins_well = !copy.empty() && copy.front() != '+';
  char* end = nullptr;
  errno = 0;
  const double value = begins_well ? std::strtod(copy.c_str(), &end) : 0;
  if (end == nullptr || end == copy.c_str()) return {text.data(), std::errc::invalid_argument};
  const char* const stop = text.data() + (end - copy.c_str());
  if (errno == ERANGE) return {stop, std::errc::result_out_of_range};
  number = value;
  return {stop, std::errc()};
}

bool has_vnni(const std::filesystem::path& /*root*/) {
  return false;
}

}  // namespace barestep

// Debian's C++ library for WebAssembly comes without exceptions. Here an Error is one of
// WebAssembly, for which each catch on the way is a match, since none catches another type. Any
// other exception goes to the page as one of JavaScript, which no C++ code catches.
extern "C" {

struct {
  unsigned landing_pad;
  void* language_data;
  unsigned selector;
} __wasm_lpad_context;

void* __cxa_allocate_exception(std::size_t bytes) noexcept {
  return std::malloc(bytes);
}

void __cxa_free_exception(void* exception) noexcept {
  std::free(exception);
}

[[noreturn]] void __cxa_throw(void* exception, std::type_info* type, void* (*)(void*)) {
  if (*type == typeid(barestep::Error)) __builtin_wasm_throw(0, exception);
  const std::string text = std::string("unexpected: ") + type->name();
  refuse(text.data(), static_cast<unsigned>(text.size()));
}

[[noreturn]] void __cxa_rethrow() {
  std::abort();
}

void* __cxa_begin_catch(void* exception) noexcept {
  return exception;
}

void __cxa_end_catch() noexcept {}

int _Unwind_CallPersonality(void* /*exception*/) {
  __wasm_lpad_context.selector = 1;  // the first type that the function catches
  return 0;
}
}
