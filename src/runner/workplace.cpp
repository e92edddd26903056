// SPDX-License-Identifier: Apache-2.0
#include "runner/workplace.hpp"

#include "base/own_folder.hpp"
#include "base/random.hpp"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <string_view>

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* lock_name = "lock";
constexpr std::size_t key_digits = 32, random_digits = 16;

fs::path beside(const fs::path& place) { return fmt::format("{}.{:016x}", place.string(), random_u64()); }

bool are_digits(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// Whether it is a folder of ours with a name that only `make` gives.
bool is_workplace(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.size() == key_digits + 1 + random_digits && name[key_digits] == '.' &&
         are_digits(std::string_view(name).substr(0, key_digits)) &&
         are_digits(std::string_view(name).substr(key_digits + 1)) && is_own(path.string(), S_IFDIR);
}

/// Whether its process has ended. Without a lock it is new, or about to be renamed, or its process died at
/// that point: then its age tells.
bool is_dead(const fs::path& workplace) {
  const UniqueFd lock(::open((workplace / lock_name).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (lock) return ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  struct stat status {};
  constexpr std::time_t long_ago_seconds = 600;
  return ::stat(workplace.c_str(), &status) != 0 || std::time(nullptr) - status.st_ctime >= long_ago_seconds;
}

}  // namespace

/// The lock gets its name once it is held: nobody finds one that is free while its process lives.
Result<Workplace> Workplace::make(const fs::path& place) {
  Workplace made;
  const fs::path folder = beside(place);
  if (::mkdir(folder.c_str(), 0700) != 0) return os_error(errno, "make the folder {}", folder.string());
  made.folder_ = folder;
  const fs::path unnamed = folder / "new_lock";
  made.lock_.reset(::open(unnamed.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!made.lock_ || ::flock(made.lock_.get(), LOCK_EX | LOCK_NB) != 0 ||
      ::rename(unnamed.c_str(), (folder / lock_name).c_str()) != 0)
    return os_error(errno, "lock the folder {}", folder.string());
  return made;
}

Workplace::~Workplace() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

Result<void> Workplace::finish(const fs::path& place) {
  if (::unlink((folder_ / lock_name).c_str()) != 0)
    return os_error(errno, "remove the lock in {}", folder_.string());
  if (::rename(folder_.c_str(), place.c_str()) == 0) {
    folder_.clear();
    return {};
  }
  if (errno == ENOTEMPTY || errno == EEXIST) return {};
  return os_error(errno, "rename {} to {}", folder_.string(), place.string());
}

void Workplace::sweep(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (is_workplace(entry->path()) && is_dead(entry->path())) fs::remove_all(entry->path(), ignored);
  }
}

Result<void> Workplace::remove_entry(const fs::path& place) {
  const fs::path aside = beside(place);
  if (::rename(place.c_str(), aside.c_str()) != 0)
    return errno == ENOENT ? Result<void>()
                           : os_error(errno, "rename {} to {}", place.string(), aside.string());
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  return {};
}

}  // namespace headrace
