// SPDX-License-Identifier: Apache-2.0
// A store in etcd, for clusters.
#pragma once

#include "metadata/etcd_session.hpp"
#include "metadata/store.hpp"

#include <memory>
#include <stop_token>

namespace headrace::metadata {

/// One of the owners of entries in a session.
class EtcdStore final : public Store {
 public:
  explicit EtcdStore(std::shared_ptr<EtcdSession> session);
  ~EtcdStore() override;

  void cancel_calls() noexcept override { canceled_.request_stop(); }
  Result<void> publish(std::string_view name, std::string_view label, std::string_view bytes,
                       std::chrono::nanoseconds ttl, Deadline deadline) override;
  Result<void> remove(std::string_view name, std::string_view label, Deadline deadline) override;
  Result<std::string> fetch(std::string_view name, std::string_view label, Deadline deadline) override;
  Result<std::vector<std::string>> list(Deadline deadline) override;
  Result<std::unique_ptr<Watch>> watch(OnEvent on_event) override;

 private:
  const std::shared_ptr<EtcdSession> session_;
  const EtcdSession::Owner owner_;
  std::stop_source canceled_;  // of this store: the session has other owners
};

}  // namespace headrace::metadata
