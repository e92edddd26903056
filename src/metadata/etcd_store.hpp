// SPDX-License-Identifier: Apache-2.0
// A store in etcd, for clusters.
#pragma once

#include "base/log.hpp"
#include "metadata/etcd_client.hpp"
#include "metadata/store.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace headrace::metadata {

/// Entries have leases, which a thread of the store keeps alive; without it they expire. If a lease is lost
/// all the same (etcd was unreachable for longer than the lease, or lost its data), its entries are published
/// again, unless another agent has published the name meanwhile. docs/metadata.md describes the keys.
class EtcdStore final : public Store {
 public:
  /// Does not contact etcd yet, which may be started later.
  ///   errors  exhausted (no thread), invalid_argument (namespace)
  [[nodiscard]] static Result<std::unique_ptr<Store>> open(std::shared_ptr<EtcdClient> client,
                                                           std::string name_space, Logger& logger);
  ~EtcdStore() override;

  Result<void> publish(std::string_view name, std::string_view label, std::string_view bytes,
                       std::chrono::nanoseconds ttl, Deadline deadline) override;
  Result<void> remove(std::string_view name, std::string_view label, Deadline deadline) override;
  Result<std::string> fetch(std::string_view name, std::string_view label, Deadline deadline) override;
  Result<std::vector<std::string>> list(Deadline deadline) override;
  Result<std::unique_ptr<Watch>> watch(OnEvent on_event) override;

 private:
  using Key = std::pair<std::string, std::string>;  // name, label
  struct Publication {
    std::shared_ptr<const std::string> bytes;
    std::chrono::seconds ttl{0};
    EtcdLease lease =
        0;  // what it hangs on; if that is no longer the lease of its ttl, it is to be written again
  };
  /// One lease for each time to live.
  struct Lease {
    EtcdLease id = 0;             // 0: to be requested
    std::chrono::seconds ttl{0};  // as granted by etcd
    Deadline due = Deadline::never();
  };

  EtcdStore(std::shared_ptr<EtcdClient> client, std::string name_space, Logger& logger);

  /// The right to write: one writer at a time, so that an older publish cannot overwrite a newer one.
  class Turn;
  friend class Turn;

  enum class Unless { never, taken };  // the condition that keeps a publication from being written
  Result<void> write(const Key& key, const Publication& publication, Unless unless, Deadline deadline,
                     const std::stop_token& stop);
  Result<bool> write_head_and_end_others(const Key& key, EtcdLease lease, std::string_view head,
                                         const std::string& generation, Unless unless, Deadline deadline,
                                         const std::stop_token& stop);
  Result<EtcdLease> lease_for(std::chrono::seconds ttl, Deadline deadline, const std::stop_token& stop);
  void forget_lease(std::chrono::seconds ttl, EtcdLease id);

  void keep_leases_alive(const std::stop_token& stop);
  [[nodiscard]] Deadline first_due() const;
  void renew(std::chrono::seconds ttl, EtcdLease id, const std::stop_token& stop);
  void publish_again(std::chrono::seconds ttl, const std::stop_token& stop);

  const std::shared_ptr<EtcdClient> client_;
  const std::string namespace_;
  const pid_t made_in_;
  const Log log_;

  mutable std::mutex mutex_;
  std::condition_variable turn_ended_;
  std::condition_variable_any leases_changed_;
  // Guarded by mutex_:
  bool writing_ = false;
  std::map<std::chrono::seconds, Lease> leases_;
  std::map<Key, Publication> publications_;

  std::jthread keeper_;
};

}  // namespace headrace::metadata
