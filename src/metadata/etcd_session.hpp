// SPDX-License-Identifier: Apache-2.0
// What all stores of a process in one namespace of etcd share: connections, leases and the watch.
#pragma once

#include "base/log.hpp"
#include "metadata/etcd_client.hpp"
#include "metadata/shared_watch.hpp"
#include "metadata/store.hpp"
#include "metadata/turns.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::metadata {

/// Entries have leases, one for each time to live, which a thread keeps alive; without it they expire. If a
/// lease is lost all the same (etcd was unreachable for longer than the lease, or lost its data), its entries
/// are published again, unless another process has published the name meanwhile. An entry has an owner, one
/// of the session's stores; its keys are removed when the owner ends. docs/metadata.md describes the keys.
class EtcdSession {
 public:
  enum class Owner : std::uint64_t { nobody = 0 };

  /// Does not contact etcd yet, which may be started later.
  ///   errors  exhausted (no thread), invalid_argument (namespace)
  [[nodiscard]] static Result<std::shared_ptr<EtcdSession>> open(std::shared_ptr<EtcdClient> client,
                                                                 std::string name_space, Logger& logger);
  /// Ends the leases, if etcd can be reached within two seconds.
  ~EtcdSession();
  EtcdSession(const EtcdSession&) = delete;
  EtcdSession& operator=(const EtcdSession&) = delete;

  [[nodiscard]] Owner add_owner();
  /// Removes the entries of an owner, by the deadline or once etcd can be reached again. Those of the last
  /// owner go with the leases of the session.
  void end_owner(Owner owner, Deadline deadline);

  // As in Store; `stop` cancels this call alone.
  Result<void> publish(Owner owner, std::string_view name, std::string_view label, std::string_view bytes,
                       std::chrono::nanoseconds ttl, Deadline deadline, const std::stop_token& stop);
  Result<void> remove(Owner owner, std::string_view name, std::string_view label, Deadline deadline,
                      const std::stop_token& stop);
  Result<std::string> fetch(std::string_view name, std::string_view label, Deadline deadline,
                            const std::stop_token& stop);
  Result<std::vector<std::string>> list(Deadline deadline, const std::stop_token& stop);
  Result<std::unique_ptr<Store::Watch>> watch(Store::OnEvent on_event);

  /// A forked child has a copy of the session and none of its threads.
  [[nodiscard]] bool is_of_the_parent_process() const;

 private:
  using Key = std::pair<std::string, std::string>;  // name, label
  struct Publication {
    Owner owner = Owner::nobody;  // nobody: to be removed
    std::shared_ptr<const std::string> bytes;
    std::chrono::seconds ttl{0};
    EtcdLease lease =
        0;  // what it hangs on; if that is no longer the lease of its ttl, it is to be written again
  };
  struct Lease {
    EtcdLease id = 0;             // 0: to be requested
    std::chrono::seconds ttl{0};  // as granted by etcd
    Deadline due = Deadline::never();
  };

  EtcdSession(std::shared_ptr<EtcdClient> client, std::string name_space, Logger& logger);

  enum class Unless { never, taken };  // the condition that keeps a publication from being written
  Result<void> write(const Key& key, const Publication& publication, Unless unless, Deadline deadline,
                     const std::stop_token& stop);
  void record_unfinished(const Key& key, Publication publication);
  Result<bool> write_head_and_end_others(const Key& key, EtcdLease lease, std::string_view head,
                                         const std::string& generation, Unless unless, Deadline deadline,
                                         const std::stop_token& stop);
  Result<bool> delete_entry(const Key& key, EtcdLease lease, Deadline deadline, const std::stop_token& stop);
  Result<void> delete_if_left(const Key& key, Deadline deadline, const std::stop_token& stop);
  Result<EtcdLease> lease_for(std::chrono::seconds ttl, Deadline deadline, const std::stop_token& stop);
  void forget_lease(std::chrono::seconds ttl, EtcdLease id);

  void keep_leases_alive(const std::stop_token& stop);
  [[nodiscard]] Deadline first_due() const;
  void renew(std::chrono::seconds ttl, EtcdLease id, const std::stop_token& stop);
  [[nodiscard]] std::vector<Key> lost_entries(std::chrono::seconds ttl);
  void publish_again(std::chrono::seconds ttl, const std::stop_token& stop);
  void delete_left_entries(const std::stop_token& stop);

  const std::shared_ptr<EtcdClient> client_;
  const std::string namespace_;
  const pid_t made_in_;
  const Log log_;

  Turns<Key> writers_;  // one for each entry, so that an older publish cannot overwrite a newer one
  Turns<std::chrono::seconds> grants_;

  mutable std::mutex mutex_;
  std::condition_variable_any leases_changed_;
  // Guarded by mutex_:
  std::uint64_t last_owner_ = 0;
  std::size_t owners_ = 0;
  std::map<std::chrono::seconds, Lease> leases_;
  std::map<Key, Publication> publications_;

  SharedWatch watch_;
  std::jthread keeper_;
};

}  // namespace headrace::metadata
