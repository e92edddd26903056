// SPDX-License-Identifier: Apache-2.0
#include "runner/package_cache.hpp"

#include "base/hash.hpp"
#include "base/options.hpp"
#include "base/random.hpp"
#include "runner/crc32.hpp"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = "lock";
constexpr std::size_t piece_bytes = 1 << 20;
constexpr int rename_attempts = 3;

Result<void> make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return os_error(error.value(), "make the folder {}", folder.string());
  return {};
}

/// A folder that is being filled. The destructor removes it with its content unless it has its final name.
class Workplace {
 public:
  [[nodiscard]] static Result<Workplace> make(const fs::path& folder, const std::string& key) {
    Workplace place;
    // Another process's sweep may remove the folder before it is locked; then another one is made.
    for (int attempt = 0; attempt < rename_attempts; ++attempt) {
      place.folder_ = folder / fmt::format("{}.{:016x}", key, random_u64());
      if (::mkdir(place.folder_.c_str(), 0700) != 0)
        return os_error(errno, "make the folder {}", place.folder_.string());
      place.lock_ = UniqueFd(::open((place.folder_ / lock_name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
      struct stat status {};
      if (place.lock_ && ::flock(place.lock_.get(), LOCK_EX | LOCK_NB) == 0 &&
          ::fstat(place.lock_.get(), &status) == 0 && status.st_nlink > 0)
        return place;
    }
    return os_error(errno, "lock the folder {}", place.folder_.string());
  }
  Workplace(Workplace&& other) noexcept
      : folder_(std::exchange(other.folder_, {})), lock_(std::move(other.lock_)) {}
  Workplace& operator=(Workplace&&) = delete;
  ~Workplace() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  [[nodiscard]] const fs::path& folder() const { return folder_; }

  /// Renames it to its final name. The first process wins; the content of another one is the same.
  [[nodiscard]] Result<void> finish(const fs::path& name) {
    if (::unlink((folder_ / lock_name).c_str()) != 0)
      return os_error(errno, "remove the lock in {}", folder_.string());
    if (::rename(folder_.c_str(), name.c_str()) == 0) {
      folder_.clear();
      return {};
    }
    if (errno == ENOTEMPTY || errno == EEXIST) return {};
    return os_error(errno, "rename {} to {}", folder_.string(), name.string());
  }

 private:
  Workplace() = default;
  fs::path folder_;
  UniqueFd lock_;
};

Result<void> write_all(int file, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return os_error(errno, "write {}", path.string());
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

/// Copies one member to its place in the folder.
Result<void> unpack_member(const Package& package, const formats::ZipMember& member, const fs::path& folder) {
  if (member.name.ends_with('/')) return {};
  const fs::path path = folder / member.name;
  HEADRACE_TRY_VOID(make_folders(path.parent_path()));
  const UniqueFd file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) return os_error(errno, "make {}", path.string());
  const auto reader = [&](std::uint64_t offset, std::span<std::byte> into) {
    return package.archive().read(offset, into);
  };
  HEADRACE_TRY(offset, package.directory().data_offset(member, reader));
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(piece_bytes, member.bytes)));
  std::uint32_t sum = 0;
  for (std::uint64_t done = 0; done < member.bytes;) {
    const std::span part(
        piece.data(), static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), member.bytes - done)));
    HEADRACE_TRY_VOID(reader(offset + done, part));
    HEADRACE_TRY_VOID(write_all(file.get(), part, path));
    sum = crc32(part, sum);
    done += part.size();
  }
  if (sum != member.crc)
    return make_error(Code::corrupt, "the checksum of its member {} is wrong: copy it again", member.name);
  return {};
}

/// Adds what to do if the folder does not accept the package.
Error at_cache(Error error, const Package& package, const fs::path& folder) {
  error = std::move(error).within(fmt::format("unpack {}", package.path()));
  if (error.code != Code::corrupt)
    error.message += fmt::format(
        ". The cache folder {} must be writable and have room for {} bytes; "
        "HEADRACE_CACHE_DIR names another",
        folder.string(), package.bytes());
  return error;
}

/// Whether every member is there with its length. Damage by a crash of the machine, or by a user, would else
/// show only when the code is loaded or runs.
bool is_whole(const Package& package, const fs::path& place) {
  struct stat status {};
  return std::ranges::all_of(package.directory().members, [&](const formats::ZipMember& member) {
    return member.name.ends_with('/') ||
           (::stat((place / member.name).c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
            static_cast<std::uint64_t>(status.st_size) == member.bytes);
  });
}

/// Code will be loaded from this folder, so no other user may have made it or be able to change it.
Result<void> check_owner(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || status.st_uid == ::geteuid() || status.st_uid == 0) return {};
  return make_error(Code::invalid_argument,
                    "{} belongs to another user: choose a cache folder of your own (HEADRACE_CACHE_DIR)",
                    path.string());
}

/// Whether the name is a key, a dot and 16 hexadecimal digits.
bool is_workplace_name(const std::string& name) { return name.size() > 17 && name[name.size() - 17] == '.'; }

}  // namespace

fs::path default_cache_folder(const std::string& chosen) {
  if (!chosen.empty()) return chosen;
  if (const auto xdg = environment_variable("XDG_CACHE_HOME"); xdg && xdg->starts_with('/'))
    return fs::path(*xdg) / "headrace";
  if (const auto home = environment_variable("HOME"); home && home->starts_with('/'))
    return fs::path(*home) / ".cache" / "headrace";
  return fs::path("/tmp") / fmt::format("headrace-cache-{}", ::getuid());
}

std::string PackageCache::key(const Package& package) {
  const std::array<std::uint64_t, 3> facts{package.directory().file_bytes,
                                           static_cast<std::uint64_t>(package.archive().changed_ns()),
                                           package.directory().hash};
  return fmt::format("{:016x}{:016x}", package.directory().hash, hash64(std::as_bytes(std::span(facts))));
}

Result<UnpackedPackage> PackageCache::unpacked(const Package& package) const {
  if (package.is_folder()) return UnpackedPackage{package.path(), false};
  const std::string name = key(package);
  const fs::path place = folder_ / name;
  HEADRACE_TRY_VOID(check_owner(folder_));
  if (std::error_code none; fs::exists(place, none)) {
    HEADRACE_TRY_VOID(check_owner(place));
    if (is_whole(package, place)) return UnpackedPackage{place, false};
    fs::remove_all(place, none);
  }
  if (auto unpacked = unpack(package, place); !unpacked)
    return at_cache(std::move(unpacked).error(), package, folder_);
  return UnpackedPackage{place, true};
}

Result<void> PackageCache::unpack(const Package& package, const fs::path& place) const {
  HEADRACE_TRY_VOID(make_folders(folder_));
  sweep();
  HEADRACE_TRY(workplace, Workplace::make(folder_, place.filename().string()));
  for (const formats::ZipMember& member : package.directory().members)
    HEADRACE_TRY_VOID(unpack_member(package, member, workplace.folder()));
  return workplace.finish(place);
}

void PackageCache::sweep() const {
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    if (!is_workplace_name(entry->path().filename().string())) continue;
    const UniqueFd lock(::open((entry->path() / lock_name).c_str(), O_RDWR | O_CLOEXEC));
    // Without a lock file it is about to be renamed, or its process died at that point; a later sweep finds
    // the latter by its age.
    struct stat status {};
    constexpr std::time_t long_ago_seconds = 600;
    if (!lock && ::stat(entry->path().c_str(), &status) == 0 &&
        ::time(nullptr) - status.st_ctime < long_ago_seconds)
      continue;
    if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace headrace
