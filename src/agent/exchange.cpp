// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange.hpp"

#include "agent/agent_impl.hpp"

namespace headrace {
namespace {

Deadline until(Timeout timeout) { return timeout ? Deadline::after(*timeout) : Deadline::never(); }

}  // namespace

Result<std::unique_ptr<Exchange>> Exchange::open(engine::Engine&, const std::string&, const std::string&, const std::map<std::string, std::string>&) {
  return std::unique_ptr<Exchange>();
}

std::string Agent::listen_address() const { return impl_->exchange->listen_address(); }
Result<ImportReport> Agent::fetch_metadata(const std::string& address, Timeout timeout, const std::string& label) { return impl_->exchange->fetch(address, until(timeout), label); }
Result<void> Agent::send_metadata(const std::string& address, const ExportOptions& options, Timeout timeout) { return impl_->exchange->send(address, options, until(timeout)); }
Result<void> Agent::publish(const ExportOptions& options, const std::string& label) { return impl_->exchange->publish(options, label); }
Result<void> Agent::unpublish() { return impl_->exchange->unpublish(); }
Result<ImportReport> Agent::find(const std::string& peer, Timeout timeout, const std::string& label) { return impl_->exchange->find(peer, until(timeout), label); }
Result<std::vector<std::string>> Agent::list_namespace(Timeout timeout) { return impl_->exchange->list(until(timeout)); }
Result<void> Agent::watch_namespace(std::function<void(const PeerEvent&)> event) { return impl_->exchange->watch(std::move(event)); }
Result<std::vector<PeerInfo>> list_namespace(const std::string&, Timeout) { return Error{Code::not_supported, "no store is open"}; }

}  // namespace headrace
