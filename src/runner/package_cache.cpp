// SPDX-License-Identifier: Apache-2.0
#include "runner/package_cache.hpp"

#include "base/hash.hpp"
#include "base/options.hpp"
#include "base/own_folder.hpp"
#include "runner/crc32.hpp"
#include "runner/workplace.hpp"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t piece_bytes = 1 << 20;

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
  HEADRACE_TRY_VOID(make_folders(path.parent_path().string()));
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

/// Whether the folders from `place` down to that of the member are ours. `known` are those that were looked
/// at.
bool folders_are_own(const fs::path& place, const fs::path& member, std::set<fs::path>& known) {
  for (fs::path folder = (place / member).parent_path(); known.insert(folder).second;
       folder = folder.parent_path()) {
    if (!is_own(folder.string(), S_IFDIR)) return false;
    if (folder == place) break;
  }
  return true;
}

/// Whether every member is there with its length, and nobody else can change it. Damage by a crash of the
/// machine, or by a user, would else show only when the code is loaded or runs.
bool is_whole(const Package& package, const fs::path& place) {
  std::set<fs::path> folders;
  return std::ranges::all_of(package.directory().members, [&](const formats::ZipMember& member) {
    if (member.name.ends_with('/')) return true;
    struct stat status {};
    return folders_are_own(place, member.name, folders) &&
           ::lstat((place / member.name).c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
           is_own(status) && static_cast<std::uint64_t>(status.st_size) == member.bytes;
  });
}

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
  const fs::path place = folder_ / key(package);
  auto folder = open_own_folder_within(folder_.string());
  if (!folder) return at_cache(std::move(folder).error(), package, folder_);
  if (is_whole(package, place)) return UnpackedPackage{place, false};
  if (auto unpacked = unpack(package, place, *folder); !unpacked)
    return at_cache(std::move(unpacked).error(), package, folder_);
  return UnpackedPackage{place, true};
}

Result<void> PackageCache::unpack(const Package& package, const fs::path& place,
                                  const UniqueFd& folder) const {
  sweep();
  HEADRACE_TRY(workplace, Workplace::make(place));
  for (const formats::ZipMember& member : package.directory().members)
    HEADRACE_TRY_VOID(unpack_member(package, member, workplace.folder()));
  // One process at a time, until `folder` is closed: of two that find one damaged entry, the second would
  // remove what the first has put in its place. NFS has no lock for folders; there a loader may find the
  // place empty for a moment.
  static_cast<void>(::flock(folder.get(), LOCK_EX));
  if (is_whole(package, place)) return {};
  HEADRACE_TRY_VOID(Workplace::remove_entry(place));
  return workplace.finish(place);
}

void PackageCache::sweep() const { Workplace::sweep(folder_); }

}  // namespace headrace
