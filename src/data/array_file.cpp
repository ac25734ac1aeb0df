#include "data/array_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "core/error.h"

namespace barestep {
namespace {

struct TypeInfo {
  std::int64_t bytes;
  std::string_view name;
};

constexpr TypeInfo kTypes[] = {{1, "u8"},  {1, "i8"},  {2, "i16"}, {4, "i32"},
                               {8, "i64"}, {4, "f32"}, {8, "f64"}};

const TypeInfo& info_of(ElementType type) {
  return kTypes[static_cast<std::size_t>(type)];
}

void to_host_order(const ArrayHeader& header, std::span<std::byte> elements) {
  if (header.big_endian == (std::endian::native == std::endian::big)) return;
  const auto width = static_cast<std::size_t>(bytes_of(header.type));
  for (std::size_t at = 0; width > 1 && at < elements.size(); at += width) {
    std::reverse(&elements[at], &elements[at] + width);
  }
}

}  // namespace

std::int64_t bytes_of(ElementType type) {
  return info_of(type).bytes;
}

std::string_view name_of(ElementType type) {
  return info_of(type).name;
}

std::int64_t ArrayHeader::cols() const {
  std::int64_t product = 1;
  for (std::size_t d = 1; d < dims.size(); ++d) product *= dims[d];
  return product;
}

std::optional<std::int64_t> ArrayHeader::bytes() const {
  std::int64_t total = bytes_of(type);
  bool is_empty = false;
  for (const std::int64_t extent : dims) {
    is_empty = is_empty || extent == 0;
    // An empty dimension does not excuse the others: products of some of them are taken too.
    if (__builtin_mul_overflow(total, std::max<std::int64_t>(extent, 1), &total)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : total;
}

std::string shape_of(const ArrayHeader& header) {
  if (header.dims.empty()) return fmt::format("a scalar of {}", name_of(header.type));
  return fmt::format("{} of {}", fmt::join(header.dims, " x "), name_of(header.type));
}

ArrayFile::ArrayFile(std::filesystem::path path, ArrayHeader header,
                     std::vector<std::byte> elements)
    : path_(std::move(path)), header_(std::move(header)) {
  BARESTEP_REQUIRE(static_cast<std::int64_t>(elements.size()) == header_.bytes(),
                   "the elements are those of the header");
  to_host_order(header_, elements);
  elements_ = std::make_shared<const std::vector<std::byte>>(std::move(elements));
}

ArrayFile::ArrayFile(std::filesystem::path path, ArrayHeader header,
                     std::shared_ptr<const InputFile> file)
    : path_(std::move(path)), header_(std::move(header)), file_(std::move(file)) {}

void ArrayFile::load() {
  if (is_loaded()) return;
  try {
    std::vector<std::byte> elements(static_cast<std::size_t>(bytes()));
    read(0, elements);
    elements_ = std::make_shared<const std::vector<std::byte>>(std::move(elements));
    file_.reset();
  } catch (const std::bad_alloc&) {
    fail(ExitCode::kMemory, {.what = "data",
                             .value = path_.string(),
                             .why = "does not fit into this machine's memory",
                             .remedy = "use fewer samples"});
  }
}

void ArrayFile::read(std::int64_t first, std::span<std::byte> out) const {
  const std::int64_t begin = first * bytes_of(header_.type);
  if (is_loaded()) {
    std::copy_n(elements_->begin() + begin, out.size(), out.begin());
    return;
  }
  file_->read_at(header_.begin_bytes + begin, out);
  to_host_order(header_, out);
}

}  // namespace barestep
