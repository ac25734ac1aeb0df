#include "session/shared_checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <type_traits>

#include "core/index.h"

namespace barestep {
namespace {

/// The ranks that write, or the single process.
class Writers {
 public:
  explicit Writers(Group* ranks) : ranks_(ranks) {}

  [[nodiscard]] bool are_several() const { return ranks_ != nullptr && ranks_->size() > 1; }
  [[nodiscard]] bool is_first() const { return !are_several() || ranks_->rank() == 0; }
  [[nodiscard]] std::string prefix_of(std::size_t rank) const {
    return are_several() ? fmt::format("rank {}: ", rank) : "";
  }

  /// All ranks' texts, in rank order.
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine) const {
    return are_several() ? gather_lists(*ranks_, mine) : std::vector{mine};
  }

 private:
  Group* ranks_;
};

/// Numbers as the bytes of a text, which ranks of the same build exchange.
template <class T>
std::string packed(const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = std::as_bytes(std::span(values));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class T>
void unpack(std::string_view text, std::vector<T>& values) {
  const std::size_t before = values.size();
  values.resize(before + text.size() / sizeof(T));
  if (!text.empty()) std::memcpy(&values[before], text.data(), text.size());
}

/// Whether any rank has nothing to write; throws on rank 0 if so.
bool has_failed(const Writers& writers, const CheckpointFolder* folder,
                const std::optional<CheckpointFailure>& mine) {
  const auto code = mine ? static_cast<int>(mine->code) : 0;
  const auto all =
      writers.gather(mine ? fmt::format("{}\n{}\n{}", code, mine->why, mine->remedy) : "");
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string& text = all[rank];
    if (text.empty()) continue;
    if (!writers.is_first()) return true;
    const std::size_t why = text.find('\n') + 1;
    const std::size_t remedy = text.find('\n', why) + 1;
    fail(static_cast<ExitCode>(std::stoi(text)),
         {"checkpoint", folder->path().string(),
          writers.prefix_of(rank) + text.substr(why, remedy - 1 - why), text.substr(remedy)});
  }
  return false;
}

/// Starts the file on rank 0. Nothing on other ranks.
std::optional<CheckpointDraft> begin(const Writers& writers, CheckpointFolder* folder,
                                     const CheckpointShare& share) {
  std::vector<PieceChecksum> mine;
  for (const TensorPiece& piece : share.pieces) mine.push_back(checksum_of(piece));
  const auto texts = writers.gather(packed(mine));
  if (!writers.is_first()) return std::nullopt;
  std::vector<PieceChecksum> all;
  for (const std::string& text : texts) unpack(text, all);
  CheckpointDraft draft = folder->begin(share.form, std::move(all));
  if (writers.are_several()) draft.share();
  return draft;
}

/// Rank 0's place of the draft, on all ranks; nothing if it has none.
std::optional<CheckpointPlace> place_of(const Writers& writers,
                                        const std::optional<CheckpointDraft>& draft) {
  std::string message;
  if (draft) message = draft->place().draft.string() + '\0' + packed(draft->place().offsets);
  const std::string first = writers.gather(message).front();
  if (first.empty()) return std::nullopt;
  const std::size_t end = first.find('\0');
  CheckpointPlace place{.file = {}, .draft = first.substr(0, end), .offsets = {}};
  unpack(std::string_view(first).substr(end + 1), place.offsets);
  return place;
}

}  // namespace

void write_checkpoint(Group* ranks, CheckpointFolder* folder, const CheckpointShare& share,
                      FileSystem& files) {
  const Writers writers(ranks);
  if (has_failed(writers, folder, share.failure)) return;
  std::optional<CheckpointDraft> draft;
  std::optional<Error> failure;
  try {
    draft = begin(writers, folder, share);
  } catch (const Error& error) {
    failure = error;
  }
  const auto place = place_of(writers, draft);
  if (failure) throw Error(*failure);
  if (!place) return;
  const int mine =
      draft ? draft->write_pieces(share.pieces) : write_pieces(*place, share.pieces, files);
  const auto results = writers.gather(std::to_string(mine));
  if (!draft) return;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const int result = std::stoi(results[rank]);
    if (result < 0) {
      CheckpointFolder::fail_writing(draft->place(), result, writers.prefix_of(rank));
    }
  }
  folder->finish(*draft);
}

}  // namespace barestep
