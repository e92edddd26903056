// SPDX-License-Identifier: Apache-2.0
#include "metadata/etcd_store.hpp"

namespace headrace::metadata {

EtcdStore::EtcdStore(std::shared_ptr<EtcdSession> session)
    : session_(std::move(session)), owner_(session_->add_owner()) {}

EtcdStore::~EtcdStore() {
  if (!session_->is_of_the_parent_process())
    session_->end_owner(owner_, Deadline::after(std::chrono::seconds(2)));
}

Result<void> EtcdStore::publish(std::string_view name, std::string_view label, std::string_view bytes,
                                std::chrono::nanoseconds ttl, Deadline deadline) {
  return session_->publish(owner_, name, label, bytes, ttl, deadline, canceled_.get_token());
}

Result<void> EtcdStore::remove(std::string_view name, std::string_view label, Deadline deadline) {
  return session_->remove(owner_, name, label, deadline, canceled_.get_token());
}

Result<std::string> EtcdStore::fetch(std::string_view name, std::string_view label, Deadline deadline) {
  return session_->fetch(name, label, deadline, canceled_.get_token());
}

Result<std::vector<std::string>> EtcdStore::list(Deadline deadline) {
  return session_->list(deadline, canceled_.get_token());
}

Result<std::unique_ptr<Store::Watch>> EtcdStore::watch(OnEvent on_event) {
  return session_->watch(std::move(on_event));
}

}  // namespace headrace::metadata
