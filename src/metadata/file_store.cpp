// SPDX-License-Identifier: Apache-2.0
#include "metadata/file_store.hpp"

#include "base/hash.hpp"
#include "base/own_folder.hpp"
#include "base/random.hpp"
#include "metadata/shared_by_key.hpp"
#include "wire/bounded_reader.hpp"
#include "wire/byte_writer.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <condition_variable>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <tuple>

namespace headrace::metadata {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view magic = "HRSE";
constexpr std::size_t digits = 16;                              // of each number in a file's name
constexpr std::size_t key_size = 2 * digits + 1;                // "<name>-<label>"
constexpr std::size_t entry_name_size = key_size + 1 + digits;  // "<name>-<label>.<publisher>"

std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0) {
  return hash64(std::as_bytes(std::span(text)), seed);
}

std::string entries_folder(const std::string& folder) { return folder + "/entries"; }
std::string publishers_folder(const std::string& folder) { return folder + "/publishers"; }
std::string lock_path(const std::string& folder, std::string_view publisher) {
  return fmt::format("{}/{}.lock", publishers_folder(folder), publisher);
}

/// The beginning of the file names of one (name, label). Names can be longer than a file name may be, so they
/// are stored inside the file.
std::string entry_key(std::string_view name, std::string_view label) {
  return fmt::format("{:016x}-{:016x}", hash_text(name), hash_text(label));
}

bool is_number(std::string_view text) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_key(std::string_view text) {
  return text.size() == key_size && is_number(text.substr(0, digits)) && text[digits] == '-' &&
         is_number(text.substr(digits + 1));
}

/// "<key>.<publisher>"
bool is_entry_name(std::string_view name) {
  return name.size() == entry_name_size && is_key(name.substr(0, key_size)) && name[key_size] == '.' &&
         is_number(name.substr(key_size + 1));
}

/// ".<key>-<number>.<publisher>"
bool is_temporary_name(std::string_view name) {
  constexpr std::size_t number_at = 1 + key_size + 1, dot_at = number_at + digits;
  return name.size() == dot_at + 1 + digits && name[0] == '.' && is_key(name.substr(1, key_size)) &&
         name[number_at - 1] == '-' && is_number(name.substr(number_at, digits)) && name[dot_at] == '.' &&
         is_number(name.substr(dot_at + 1));
}

struct EntryFile {
  std::string file_name;
  std::string_view key() const { return std::string_view(file_name).substr(0, key_size); }
  std::string_view publisher() const { return std::string_view(file_name).substr(key_size + 1); }
};

struct Header {
  std::string name;
  std::string label;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

std::string write_header(std::string_view name, std::string_view label, std::string_view bytes) {
  wire::ByteWriter writer;
  writer.bytes(magic);
  writer.number(static_cast<std::uint16_t>(name.size()));
  writer.number(static_cast<std::uint16_t>(label.size()));
  writer.number(std::uint64_t{bytes.size()});
  writer.number(hash_text(bytes, hash_text(label, hash_text(name))));
  writer.bytes(name);
  writer.bytes(label);
  return std::move(writer).take();
}

Result<Header> read_header(wire::BoundedReader& reader) {
  HEADRACE_TRY(found_magic, reader.bytes(magic.size(), "the magic"));
  if (found_magic != magic) return reader.corrupt("it does not begin with \"{}\"", magic);
  HEADRACE_TRY(name_size, reader.number<std::uint16_t>("the name's length"));
  HEADRACE_TRY(label_size, reader.number<std::uint16_t>("the label's length"));
  HEADRACE_TRY(bytes, reader.number<std::uint64_t>("the length"));
  HEADRACE_TRY(checksum, reader.number<std::uint64_t>("the checksum"));
  HEADRACE_TRY(name, reader.bytes(name_size, "the name"));
  HEADRACE_TRY(label, reader.bytes(label_size, "the label"));
  return Header{std::string(name), std::string(label), bytes, checksum};
}

/// At most `most` bytes from the beginning of a file.
Result<std::string> read_file(const std::string& path, std::size_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return os_error(errno, "open {}", path);
  struct stat status {};
  if (::fstat(fd.get(), &status) < 0) return os_error(errno, "stat {}", path);
  if (!S_ISREG(status.st_mode)) return make_error(Code::corrupt, "{} is no file", path);
  std::string bytes(std::min(most, static_cast<std::size_t>(status.st_size)), '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error(errno, "read {}", path);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

Result<void> write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return os_error(errno, "write {}", path);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return os_error(Code::invalid_argument, errno, "make the folder {}", path);
}

/// A living publisher holds an exclusive lock on its lock file.
bool is_alive(const std::string& folder, std::string_view publisher) {
  const UniqueFd fd(
      ::open(lock_path(folder, publisher).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  // Only a missing file proves that the publisher is gone; a file that may not be opened belongs to another
  // user.
  if (!fd) return errno != ENOENT;
  return ::flock(fd.get(), LOCK_SH | LOCK_NB) < 0;
}

std::uint64_t modified_ns(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(status.st_mtim.tv_nsec);
}

/// One reading of the folder.
class Scan {
 public:
  explicit Scan(const std::string& folder) : folder_(folder) {}

  /// The entries of living publishers, of one key or all keys. Removes entries of dead publishers.
  Result<std::vector<EntryFile>> entries(std::string_view key = {}) {
    std::error_code error;
    fs::directory_iterator files(entries_folder(folder_), error);
    std::vector<EntryFile> found;
    for (; !error && files != fs::directory_iterator(); files.increment(error)) {
      EntryFile file{files->path().filename().string()};
      const bool entry = is_entry_name(file.file_name);
      if (!entry && !is_temporary_name(file.file_name)) continue;  // not ours
      // Temporary files have the publisher at the same place after their last dot.
      const std::string publisher = file.file_name.substr(file.file_name.size() - digits);
      if (!alive(publisher)) {
        ::unlink(files->path().c_str());
        continue;
      }
      if (entry && (key.empty() || file.key() == key)) found.push_back(std::move(file));
    }
    if (error) return os_error(error.value(), "read the folder {}", entries_folder(folder_));
    for (const auto& [publisher, lives] : alive_) {
      if (!lives) ::unlink(lock_path(folder_, publisher).c_str());
    }
    return found;
  }

  [[nodiscard]] std::string path(const EntryFile& file) const {
    return entries_folder(folder_) + "/" + file.file_name;
  }

 private:
  bool alive(const std::string& publisher) {
    const auto known = alive_.find(publisher);
    return known != alive_.end() ? known->second : (alive_[publisher] = is_alive(folder_, publisher));
  }

  const std::string& folder_;
  std::map<std::string, bool> alive_;
};

/// The names in the folder, each with a number that changes with its files. `names` maps files to names.
Result<Snapshot> look(const std::string& folder, std::map<std::string, std::string>& names) {
  Scan scan(folder);
  HEADRACE_TRY(files, scan.entries());
  Snapshot snapshot;
  std::map<std::string, std::string> still_there;
  for (const EntryFile& file : files) {
    struct stat status {};
    if (::stat(scan.path(file).c_str(), &status) < 0) continue;
    auto known = names.extract(file.file_name);
    if (known.empty()) {
      auto bytes = read_file(scan.path(file), 4096);
      if (!bytes) continue;
      wire::BoundedReader reader(*bytes, "an entry of the store");
      auto header = read_header(reader);
      if (!header) continue;
      still_there[file.file_name] = header->name;
    } else {
      still_there.insert(std::move(known));
    }
    // Several files of one name, in any order: a sum.
    snapshot[still_there[file.file_name]] += hash_text(file.file_name, modified_ns(status) ^ status.st_ino);
  }
  names = std::move(still_there);
  return snapshot;
}

/// The newest file of a key.
Result<std::optional<EntryFile>> newest(const std::string& folder, std::string_view key) {
  Scan scan(folder);
  HEADRACE_TRY(files, scan.entries(key));
  std::optional<EntryFile> best;
  std::uint64_t best_time = 0;
  for (EntryFile& file : files) {
    struct stat status {};
    if (::stat(scan.path(file).c_str(), &status) < 0) continue;
    if (best && std::pair(best_time, best->file_name) > std::pair(modified_ns(status), file.file_name))
      continue;
    best_time = modified_ns(status);
    best = std::move(file);
  }
  return best;
}

/// Makes the file at `path` the newest of its key and removes the others, whose owners lose the entry.
void take_over(const std::string& folder, const std::string& path, std::string_view key) {
  Scan scan(folder);
  const auto files = scan.entries(key);
  struct stat mine {};
  if (!files || ::stat(path.c_str(), &mine) < 0) return;
  for (const EntryFile& file : *files) {
    struct stat other {};
    if (scan.path(file) == path || ::stat(scan.path(file).c_str(), &other) < 0) continue;
    if (modified_ns(other) >= modified_ns(mine)) {
      // Written in the same tick of the clock
      const std::uint64_t later = modified_ns(other) + 1;
      const timespec time{static_cast<time_t>(later / 1'000'000'000),
                          static_cast<long>(later % 1'000'000'000)};
      const timespec times[2] = {time, time};
      ::utimensat(AT_FDCWD, path.c_str(), times, 0);
    }
    ::unlink(scan.path(file).c_str());
  }
}

/// Removes the locks of dead publishers; their entries count as gone without a lock.
void remove_dead_publishers(const std::string& folder) {
  std::error_code error;
  fs::directory_iterator files(publishers_folder(folder), error);
  for (; !error && files != fs::directory_iterator(); files.increment(error)) {
    const fs::path& path = files->path();
    if (path.extension() == ".lock" && is_number(path.stem().string()) &&
        !is_alive(folder, path.stem().string()))
      ::unlink(path.c_str());
  }
}

/// The watch of all stores of this process that read the folder in the same way.
Result<std::shared_ptr<SharedWatch>> watch_of(const FileStoreOptions& options, Logger& logger) {
  using Key = std::tuple<std::string, std::chrono::nanoseconds, Logger*>;
  static auto& watches = *new SharedByKey<Key, SharedWatch>;
  return watches.get({options.folder, options.poll_interval, &logger},
                     [] { return Result(std::make_shared<SharedWatch>()); });
}

/// Makes the folders where they are missing.
Result<void> make_folders(const std::string& folder) {
  HEADRACE_TRY_VOID(make_folder(folder));
  // What is there is believed, and what is left there is removed: for this user alone.
  HEADRACE_TRY_VOID(open_own_folder(entries_folder(folder)));
  HEADRACE_TRY_VOID(open_own_folder(publishers_folder(folder)));
  return {};
}

/// Makes the publisher's lock file and locks it.
Result<UniqueFd> make_lock(const std::string& folder, const std::string& publisher) {
  // Locked before it gets its final name: an unlocked file with that name would count as dead.
  const std::string path = lock_path(folder, publisher);
  const std::string unready = path + ".new";
  UniqueFd lock(::open(unready.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock) return os_error(errno, "make {}", unready);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    const Error error =
        os_error(Code::not_supported, errno, "lock {}: a file store needs a file system with locks", unready);
    ::unlink(unready.c_str());
    return error;
  }
  if (::rename(unready.c_str(), path.c_str()) < 0) return os_error(errno, "rename {} to {}", unready, path);
  return lock;
}

}  // namespace

Result<std::unique_ptr<Store>> FileStore::open(FileStoreOptions options, Logger& logger) {
  HEADRACE_TRY_VOID(make_folders(options.folder));
  remove_dead_publishers(options.folder);
  const std::string publisher = fmt::format("{:016x}", random_u64());
  HEADRACE_TRY(lock, make_lock(options.folder, publisher));
  HEADRACE_TRY(watch, watch_of(options, logger));
  return std::unique_ptr<Store>(
      new FileStore(std::move(options), publisher, std::move(lock), std::move(watch), logger));
}

FileStore::FileStore(FileStoreOptions options, std::string publisher, UniqueFd lock,
                     std::shared_ptr<SharedWatch> watch, Logger& logger)
    : options_(std::move(options)),
      publisher_(std::move(publisher)),
      watch_(std::move(watch)),
      made_in_(::getpid()),
      log_(logger, "metadata"),
      lock_(std::move(lock)) {}

FileStore::~FileStore() {
  if (::getpid() != made_in_) return;  // a forked child's copy
  for (const std::string& path : mine_) ::unlink(path.c_str());
  ::unlink(lock_path(options_.folder, publisher_).c_str());
}

Result<void> FileStore::publish(std::string_view name, std::string_view label, std::string_view bytes,
                                std::chrono::nanoseconds ttl, Deadline) {
  HEADRACE_TRY_VOID(check_entry(name, label, bytes.size(), ttl));
  const std::string key = entry_key(name, label);
  const std::string path = fmt::format("{}/{}.{}", entries_folder(options_.folder), key, publisher_);

  const std::scoped_lock lock(mutex_);
  HEADRACE_TRY_VOID(make_again_if_removed());
  const std::string temporary =
      fmt::format("{}/.{}-{:016x}.{}", entries_folder(options_.folder), key, ++temporary_, publisher_);
  {
    const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd) return os_error(errno, "make {}", temporary);
    auto written = write_all(fd.get(), write_header(name, label, bytes), temporary);
    if (written) written = write_all(fd.get(), bytes, temporary);
    if (!written) {
      ::unlink(temporary.c_str());
      return written;
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) < 0) {
    const Error error = os_error(errno, "rename {} to {}", temporary, path);
    ::unlink(temporary.c_str());
    return error;
  }
  mine_.insert(path);
  take_over(options_.folder, path, key);
  return {};
}

/// Somebody may have removed the folder. Without its lock file this publisher would count as dead.
Result<void> FileStore::make_again_if_removed() {
  if (::access(lock_path(options_.folder, publisher_).c_str(), F_OK) == 0 || errno != ENOENT) return {};
  log_.warn("{} has been removed: making it again", options_.folder);
  HEADRACE_TRY_VOID(make_folders(options_.folder));
  HEADRACE_TRY(lock, make_lock(options_.folder, publisher_));
  lock_ = std::move(lock);
  return {};
}

Result<void> FileStore::remove(std::string_view name, std::string_view label, Deadline) {
  const std::string path =
      fmt::format("{}/{}.{}", entries_folder(options_.folder), entry_key(name, label), publisher_);
  const std::scoped_lock lock(mutex_);
  if (mine_.erase(path) == 0) return not_the_owner(name, label, options_.folder);
  if (::unlink(path.c_str()) == 0) return {};
  if (errno == ENOENT) return not_the_owner(name, label, options_.folder);
  return os_error(errno, "remove {}", path);
}

Result<std::string> FileStore::fetch(std::string_view name, std::string_view label, Deadline) {
  // The file may be replaced by another publisher's between the listing and the open: retry, but not without
  // end.
  for (int attempt = 0; attempt < 10; ++attempt) {
    HEADRACE_TRY(file, newest(options_.folder, entry_key(name, label)));
    if (!file) return no_such_entry(name, label, options_.folder);
    const std::string path = entries_folder(options_.folder) + "/" + file->file_name;
    auto content = read_file(path, most_entry_bytes + 4096);
    if (content.code() == Code::not_found) continue;
    if (!content) return content;
    wire::BoundedReader reader(*content, path.c_str());
    HEADRACE_TRY(header, read_header(reader));
    if (header.name != name || header.label != label) return no_such_entry(name, label, options_.folder);
    const std::string_view bytes = std::string_view(*content).substr(reader.offset());
    if (bytes.size() != header.bytes ||
        hash_text(bytes, hash_text(label, hash_text(name))) != header.checksum) {
      return reader.corrupt("{} bytes that do not match the checksum over {}", bytes.size(), header.bytes);
    }
    return std::string(bytes);
  }
  return no_such_entry(name, label, options_.folder);
}

Result<std::vector<std::string>> FileStore::list(Deadline) {
  std::map<std::string, std::string> names;
  HEADRACE_TRY(snapshot, look(options_.folder, names));
  std::vector<std::string> list;
  for (const auto& [name, revision] : snapshot) list.push_back(name);
  return list;
}

Result<std::unique_ptr<Store::Watch>> FileStore::watch(OnEvent on_event) {
  const auto read = [options = options_, log = log_](const std::stop_token& stop, const Tell& tell) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    Snapshot before;
    std::map<std::string, std::string> names;
    while (!stop.stop_requested()) {
      // Polling: the kernel reports neither dropped locks nor changes by another host.
      if (auto now = look(options.folder, names)) {
        tell_difference(before, *now, tell);
        before = std::move(now).value();
      } else {
        log.debug("watch {}: {}", options.folder, now.error().message);
      }
      std::unique_lock lock(mutex);
      stopped.wait_for(lock, stop, options.poll_interval, [] { return false; });
    }
  };
  return watch_->listen(read, std::move(on_event));
}

}  // namespace headrace::metadata
