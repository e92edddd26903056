// SPDX-License-Identifier: Apache-2.0
// A store inside one process: for tests, and for agents of one process.
#pragma once

#include "metadata/shared_watch.hpp"
#include "metadata/store.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace headrace::metadata {

/// The entries that all stores of one name share. Each store receives it from its owner.
class MemoryNamespace {
 public:
  using Publisher = std::uint64_t;

  [[nodiscard]] Publisher add_publisher();
  void publish(Publisher publisher, std::string_view name, std::string_view label, std::string_view bytes);
  /// False: the publisher does not own such an entry.
  bool remove(Publisher publisher, std::string_view name, std::string_view label);
  void remove_all(Publisher publisher);
  [[nodiscard]] std::shared_ptr<const std::string> fetch(std::string_view name, std::string_view label) const;
  [[nodiscard]] Snapshot snapshot() const;
  /// Waits until the entries differ from version `seen` of `snapshot`; false when stopped.
  bool wait_change(std::uint64_t& seen, const std::stop_token& stop);
  [[nodiscard]] SharedWatch& shared_watch() { return watch_; }

 private:
  struct Entry {
    Publisher publisher = 0;
    std::shared_ptr<const std::string> bytes;
  };
  struct Agent {
    std::uint64_t revision = 0;
    std::map<std::string, Entry, std::less<>> entries;
  };

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::uint64_t version_ = 0;
  Publisher last_publisher_ = 0;
  std::map<std::string, Agent, std::less<>> agents_;
  SharedWatch watch_;
};

/// Entries live as long as their publisher's store object. `ttl` has no meaning: all agents end with the
/// process.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::shared_ptr<MemoryNamespace> shared);
  ~MemoryStore() override;

  void cancel_calls() noexcept override {}  // none waits
  Result<void> publish(std::string_view name, std::string_view label, std::string_view bytes,
                       std::chrono::nanoseconds ttl, Deadline deadline) override;
  Result<void> remove(std::string_view name, std::string_view label, Deadline deadline) override;
  Result<std::string> fetch(std::string_view name, std::string_view label, Deadline deadline) override;
  Result<std::vector<std::string>> list(Deadline deadline) override;
  Result<std::unique_ptr<Watch>> watch(OnEvent on_event) override;

 private:
  std::shared_ptr<MemoryNamespace> shared_;
  MemoryNamespace::Publisher publisher_;
};

}  // namespace headrace::metadata
