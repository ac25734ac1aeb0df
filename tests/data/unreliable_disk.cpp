#include "data/unreliable_disk.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace barestep {

namespace fs = std::filesystem;

int FaultyDisk::next(const char* call) {
  const std::size_t at = calls_.size();
  calls_.emplace_back(call);
  if (fault_.kind == Kind::kDeath && at >= fault_.at) return -EIO;
  return fault_.kind == Kind::kError && at == fault_.at ? -fault_.error : 0;
}

int FaultyDisk::create(const fs::path& path) {
  const int failure = next("create");
  return failure != 0 ? failure : files_.create(path);
}

std::int64_t FaultyDisk::write(int descriptor, std::span<const std::byte> bytes) {
  const int failure = next("write");
  if (failure != 0) return failure;
  const bool is_short = fault_.kind == Kind::kShortWrite && calls_.size() == fault_.at + 1;
  return files_.write(descriptor, is_short ? bytes.first((bytes.size() + 1) / 2) : bytes);
}

int FaultyDisk::sync(int descriptor) {
  const int failure = next("sync");
  return failure != 0 ? failure : files_.sync(descriptor);
}

int FaultyDisk::sync_folder(const fs::path& folder) {
  const int failure = next("sync_folder");
  return failure != 0 ? failure : files_.sync_folder(folder);
}

int FaultyDisk::close(int descriptor) {
  const int failure = next("close");
  const int closed = files_.close(descriptor);  // Linux closes it in any case
  return failure != 0 ? failure : closed;
}

int FaultyDisk::rename(const fs::path& from, const fs::path& to) {
  const int failure = next("rename");
  return failure != 0 ? failure : files_.rename(from, to);
}

int FaultyDisk::unlink(const fs::path& path) {
  const int failure = next("unlink");
  return failure != 0 ? failure : files_.unlink(path);
}

int FaultyDisk::make_folder(const fs::path& path) {
  const int failure = next("make_folder");
  return failure != 0 ? failure : files_.make_folder(path);
}

int FaultyDisk::list(const fs::path& folder, std::vector<std::string>& names) {
  const int failure = next("list");
  return failure != 0 ? failure : files_.list(folder, names);
}

fs::path RecordingDisk::relative(const fs::path& path) const {
  return path.lexically_relative(root_);
}

int RecordingDisk::create(const fs::path& path) {
  const int descriptor = real_files().create(path);
  if (descriptor < 0) return descriptor;
  const int file = static_cast<int>(operations_.size());
  open_[descriptor] = file;
  named_[relative(path)] = file;
  operations_.push_back({.what = What::kCreate, .file = file, .path = relative(path)});
  return descriptor;
}

std::int64_t RecordingDisk::write(int descriptor, std::span<const std::byte> bytes) {
  const std::int64_t written = real_files().write(descriptor, bytes);
  if (written < 0) return written;
  operations_.push_back({.what = What::kWrite,
                         .file = open_.at(descriptor),
                         .bytes = std::string(reinterpret_cast<const char*>(bytes.data()),
                                              static_cast<std::size_t>(written))});
  return written;
}

int RecordingDisk::sync(int descriptor) {
  if (obeys_.sync) operations_.push_back({.what = What::kSync, .file = open_.at(descriptor)});
  return 0;
}

int RecordingDisk::sync_folder(const fs::path& folder) {
  if (obeys_.sync_folder) {
    operations_.push_back({.what = What::kSyncFolder, .path = relative(folder)});
  }
  return 0;
}

int RecordingDisk::close(int descriptor) {
  open_.erase(descriptor);
  return real_files().close(descriptor);
}

int RecordingDisk::rename(const fs::path& from, const fs::path& to) {
  const int result = real_files().rename(from, to);
  if (result < 0) return result;
  const int file = named_.at(relative(from));
  named_.erase(relative(from));
  named_[relative(to)] = file;
  operations_.push_back(
      {.what = What::kRename, .file = file, .path = relative(from), .renamed = relative(to)});
  return 0;
}

int RecordingDisk::unlink(const fs::path& path) {
  const int result = real_files().unlink(path);
  if (result < 0) return result;
  const int file = named_.at(relative(path));
  named_.erase(relative(path));
  operations_.push_back({.what = What::kUnlink, .file = file, .path = relative(path)});
  return 0;
}

int RecordingDisk::make_folder(const fs::path& path) {
  const int result = real_files().make_folder(path);
  if (result < 0) return result;
  operations_.push_back({.what = What::kMakeFolder, .path = relative(path)});
  return 0;
}

int RecordingDisk::list(const fs::path& folder, std::vector<std::string>& names) {
  return real_files().list(folder, names);
}

std::string RecordingDisk::bytes_on_disk(const File& file, Unsynced unsynced) {
  constexpr std::size_t kBlockBytes = 64;
  const std::size_t synced = file.on_disk.size();
  std::string bytes = file.cached;
  switch (unsynced) {
    case Unsynced::kNone:
      return file.on_disk;
    case Unsynced::kHalf:
      return bytes.substr(0, synced + (bytes.size() - synced) / 2);
    case Unsynced::kZeros:
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(synced), bytes.end(), '\0');
      return bytes;
    case Unsynced::kHoles:
      for (std::size_t i = synced; i < bytes.size(); ++i) {
        if (i / kBlockBytes % 2 == 1) bytes[i] = '\0';
      }
      return bytes;
    case Unsynced::kAll:
      break;
  }
  return bytes;
}

RecordingDisk::State RecordingDisk::state_of(const std::vector<const Operation*>& changes,
                                             const std::map<int, File>& files,
                                             Unsynced unsynced) const {
  std::map<fs::path, int> names;
  State state;
  for (const Operation* change : changes) {
    const auto named = names.find(change->path);
    const bool is_there = named != names.end() && named->second == change->file;
    switch (change->what) {
      case What::kCreate:
        names[change->path] = change->file;
        break;
      case What::kRename:
        if (is_there) names.erase(named);
        names[change->renamed] = change->file;
        break;
      case What::kUnlink:
        if (is_there) names.erase(named);
        break;
      default:
        state.folders.push_back(change->path);
    }
  }
  // The contents of a missing folder are missing too.
  const auto is_gone = [&](const fs::path& path) {
    const fs::path above = path.parent_path();
    return !above.empty() && std::ranges::find(state.folders, above) == state.folders.end();
  };
  while (std::erase_if(state.folders, is_gone) > 0) {
  }
  for (const auto& [path, file] : names) {
    if (!is_gone(path)) state.files[path] = bytes_on_disk(files.at(file), unsynced);
  }
  return state;
}

std::vector<RecordingDisk::State> RecordingDisk::states_after_power_cut(std::size_t count) const {
  struct Change {
    const Operation* operation;
    bool is_on_disk = false;
  };
  std::vector<Change> changes;
  std::map<int, File> files;
  for (const Operation& operation : std::span(operations_).first(count)) {
    File& file = files[operation.file];
    if (operation.what == What::kWrite) {
      file.cached += operation.bytes;
    } else if (operation.what == What::kSync) {
      file.on_disk = file.cached;
    } else if (operation.what == What::kSyncFolder) {
      for (Change& change : changes) {
        const fs::path folder = change.operation->path.parent_path();
        if ((folder.empty() ? "." : folder) == operation.path) change.is_on_disk = true;
      }
    } else {
      changes.push_back({&operation});
    }
  }
  const auto pending = std::ranges::count(changes, false, &Change::is_on_disk);
  if (pending > 12) throw std::logic_error("too many changes to try every subset of them");
  std::vector<State> states;
  for (std::uint32_t subset = 0; subset < 1U << pending; ++subset) {
    std::vector<const Operation*> kept;
    int bit = 0;
    for (const Change& change : changes) {
      if (change.is_on_disk || (subset >> bit++ & 1U) != 0) kept.push_back(change.operation);
    }
    for (const Unsynced unsynced :
         {Unsynced::kNone, Unsynced::kHalf, Unsynced::kZeros, Unsynced::kHoles, Unsynced::kAll}) {
      State state = state_of(kept, files, unsynced);
      if (std::ranges::find(states, state) == states.end()) states.push_back(std::move(state));
    }
  }
  return states;
}

}  // namespace barestep
