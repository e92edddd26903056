// SPDX-License-Identifier: Apache-2.0
// A store in a folder that all agents can reach: on one host's disk, or on a shared file system.
#pragma once

#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "metadata/shared_watch.hpp"
#include "metadata/store.hpp"

#include <memory>
#include <mutex>
#include <set>

namespace headrace::metadata {

struct FileStoreOptions {
  std::string folder;  ///< created if missing (mode 0700); its parent is not created
  std::chrono::nanoseconds poll_interval = std::chrono::milliseconds(250);  ///< of a watch
};

/// Entries are files. Each store object holds a lock on its own lock file, which the kernel drops when the
/// process ends. Entries of a publisher without a lock count as gone, and the first reader that notices
/// removes them. So `ttl` has no meaning here, a killed agent counts as left at the next reading, and a
/// stopped process counts as alive. A folder that is removed comes back with the next entry that is
/// published. docs/metadata.md describes the layout.
class FileStore final : public Store {
 public:
  ///   errors  not_supported (the file system has no locks), invalid_argument (no parent folder), and the
  ///           system's
  [[nodiscard]] static Result<std::unique_ptr<Store>> open(FileStoreOptions options, Logger& logger);
  ~FileStore() override;

  void cancel_calls() noexcept override {}  // none waits but for the file system, which cannot be told
  Result<void> publish(std::string_view name, std::string_view label, std::string_view bytes,
                       std::chrono::nanoseconds ttl, Deadline deadline) override;
  Result<void> remove(std::string_view name, std::string_view label, Deadline deadline) override;
  Result<std::string> fetch(std::string_view name, std::string_view label, Deadline deadline) override;
  Result<std::vector<std::string>> list(Deadline deadline) override;
  Result<std::unique_ptr<Watch>> watch(OnEvent on_event) override;

 private:
  FileStore(FileStoreOptions options, std::string publisher, UniqueFd lock,
            std::shared_ptr<SharedWatch> watch, Logger& logger);
  Result<void> make_again_if_removed();

  const FileStoreOptions options_;
  const std::string publisher_;               // 16 hexadecimal digits
  const std::shared_ptr<SharedWatch> watch_;  // of all stores of this folder in the process
  const pid_t made_in_;
  Log log_;
  std::mutex mutex_;
  UniqueFd lock_;                // guarded by mutex_
  std::set<std::string> mine_;   // paths of entries; guarded by mutex_
  std::uint64_t temporary_ = 0;  // guarded by mutex_
};

}  // namespace headrace::metadata
