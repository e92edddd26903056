// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange.hpp"

#include "agent/agent_impl.hpp"
#include "agent/core_options.hpp"

namespace headrace {
namespace {

constexpr auto store_patience = std::chrono::seconds(10);  // if the caller gave no deadline

PeerEvent peer_event(const metadata::StoreEvent& event) {
  switch (event.kind) {
    case metadata::StoreEvent::Kind::joined:
      return {PeerEvent::Kind::joined, event.name};
    case metadata::StoreEvent::Kind::updated:
      return {PeerEvent::Kind::updated, event.name};
    case metadata::StoreEvent::Kind::left:
      break;
  }
  return {PeerEvent::Kind::left, event.name};
}

}  // namespace

Result<std::unique_ptr<Exchange>> Exchange::open(engine::Engine& engine, const std::string& listen,
                                                 std::unique_ptr<metadata::Store> store, const Options& core,
                                                 const Secret& secret) {
  HEADRACE_TRY(ttl, core.duration("store_ttl"));
  if (!listen.empty())
    HEADRACE_TRY_VOID(
        secret.check_port("the metadata socket (listen)", listen, metadata_port(listen).setting));
  HEADRACE_TRY(closing, EventFd::create());
  std::unique_ptr<Exchange> exchange(
      new Exchange(engine, {engine.name(), engine.incarnation(), secret.token, {}}, ttl, std::move(closing)));
  exchange->store_ = std::move(store);
  if (!listen.empty()) HEADRACE_TRY_VOID(exchange->serve(listen, core));
  return exchange;
}

Result<void> Exchange::serve(const std::string& listen, const Options& core) {
  HEADRACE_TRY(handshake, core.duration("handshake_timeout"));
  HEADRACE_TRY(bytes, core.bytes("metadata_bytes"));
  metadata::MetadataHandlers handlers;
  handlers.fetch = [this](const std::string& label, std::uint64_t since) -> Result<std::string> {
    if (!label.empty())
      return make_error(Code::not_found,
                        "this agent has no metadata with label {}: only stores have labels, ask without one",
                        label);
    ExportOptions update;
    update.since_version = since;
    return export_bytes(update);
  };
  handlers.send = [this](const wire::Hello& sender, std::string_view sent) {
    return take_sent(sender, sent);
  };
  handlers.refused = [this] { engine_.count("metadata.refused", 1); };
  metadata::MetadataServerOptions options{listen, identity_, handshake};
  options.most_buffered_bytes = bytes;
  HEADRACE_TRY(reserved, core.integer("reserved_descriptors"));
  options.reserved_descriptors = static_cast<std::uint64_t>(reserved);
  HEADRACE_TRY(server, metadata::MetadataServer::open(std::move(options), std::move(handlers),
                                                      Logger::process_default()));
  listen_address_ = server->address();
  server_ = std::move(server);
  return {};
}

Exchange::~Exchange() { close(); }

void Exchange::close() {
  if (!engine_.calls().forked()) {  // the calls that wait are the parent's
    closing_.signal();
    if (store_) store_->cancel_calls();
  }
  engine_.regions().on_changed({});
  // They end outside the lock, which their threads take.
  std::unique_ptr<metadata::Store::Watch> watch;
  std::unique_ptr<metadata::MetadataServer> server;
  const std::lock_guard lock(mutex_);
  watch.swap(watch_);
  server.swap(server_);
}

Result<std::string> Exchange::export_bytes(const ExportOptions& options) const {
  HEADRACE_TRY(metadata, engine_.regions().exported(options));
  return wire::encode(metadata);
}

/// Metadata that was asked for: it must be that agent's own.
Result<ImportReport> Exchange::import_bytes_of(std::string_view agent, std::string_view bytes) {
  HEADRACE_TRY(metadata, wire::decode(bytes));
  if (metadata.name != agent)
    return make_error(Code::corrupt, "metadata of agent {} was asked for, and that of agent {} came", agent,
                      metadata.name);
  return engine_.peers().import(std::move(metadata));
}

/// Anybody may say anything about others: an agent is believed about itself alone.
Result<void> Exchange::take_sent(const wire::Hello& sender, std::string_view bytes) {
  HEADRACE_TRY(metadata, wire::decode(bytes));
  if (metadata.name != sender.name || metadata.incarnation != sender.incarnation)
    return make_error(
        Code::invalid_argument,
        "agent {} of incarnation {:016x} sends metadata of agent {} of incarnation {:016x}: an agent "
        "sends its own alone",
        sender.name, sender.incarnation, metadata.name, metadata.incarnation);
  HEADRACE_TRY_VOID(engine_.peers().import(std::move(metadata), engine::Origin::sender));
  return {};
}

Result<ImportReport> Exchange::fetch(const std::string& address, Deadline deadline,
                                     const std::string& label) {
  HEADRACE_TRY_VOID(engine_.usable());
  wire::Hello server;
  auto bytes = metadata::fetch_from(address, identity_, label, 0, {deadline, closing_.fd()}, &server);
  if (!bytes) return std::move(bytes).error().within("fetch metadata from " + address);
  return import_bytes_of(server.name, *bytes);
}

Result<void> Exchange::send(const std::string& address, const ExportOptions& options, Deadline deadline) {
  HEADRACE_TRY_VOID(engine_.usable());
  HEADRACE_TRY(bytes, export_bytes(options));
  auto sent = metadata::send_to(address, identity_, bytes, {deadline, closing_.fd()});
  if (!sent) return std::move(sent).error().within("send metadata to " + address);
  return {};
}

Result<void> Exchange::need_store() const {
  HEADRACE_TRY_VOID(engine_.usable());
  if (store_) return {};
  return make_error(Code::invalid_argument,
                    "agent {} has no store: open it with one (etcd://host:port/namespace, file:///folder, "
                    "memory:NAME) or set HEADRACE_STORE",
                    engine_.name());
}

/// What the store returned. A call that the close has ended says so.
template <class T>
Result<T> Exchange::from_store(Result<T> answer) const {
  if (answer.code() == Code::canceled) return engine_.calls().closed_meanwhile();
  return answer;
}

Result<void> Exchange::publish(const ExportOptions& options, const std::string& label) {
  HEADRACE_TRY_VOID(need_store());
  HEADRACE_TRY(bytes, export_bytes(options));
  HEADRACE_TRY_VOID(
      from_store(store_->publish(engine_.name(), label, bytes, ttl_, Deadline::after(store_patience))));
  {
    const std::lock_guard lock(mutex_);
    published_[label] = options;
  }
  engine_.regions().on_changed([this] { publish_again(); });
  return {};
}

/// Renews every whole export in the store, after a change of this agent's regions.
void Exchange::publish_again() {
  std::map<std::string, ExportOptions> published;
  {
    const std::lock_guard lock(mutex_);
    published = published_;
  }
  for (const auto& [label, options] : published) {
    auto bytes = export_bytes(options);
    if (!bytes)
      continue;  // it named regions that are gone: the entry stays, and peers learn it by the revocation
    if (auto done = store_->publish(engine_.name(), label, *bytes, ttl_, Deadline::after(store_patience));
        !done && done.code() != Code::canceled) {
      engine_.log_room().warn("could not renew what {} published: {}", engine_.name(), done.error().message);
    }
  }
}

Result<void> Exchange::unpublish() {
  HEADRACE_TRY_VOID(need_store());
  std::map<std::string, ExportOptions> published;
  {
    const std::lock_guard lock(mutex_);
    published.swap(published_);
  }
  if (published.empty())
    return make_error(Code::not_found, "agent {} has published nothing: there is nothing to remove",
                      engine_.name());
  for (const auto& [label, options] : published)
    HEADRACE_TRY_VOID(from_store(store_->remove(engine_.name(), label, Deadline::after(store_patience))));
  return {};
}

Result<ImportReport> Exchange::find(const std::string& peer, Deadline deadline, const std::string& label) {
  HEADRACE_TRY_VOID(need_store());
  HEADRACE_TRY(bytes, from_store(store_->fetch(peer, label, deadline)));
  HEADRACE_TRY(report, import_bytes_of(peer, bytes));
  {
    const std::lock_guard lock(mutex_);
    found_[peer] = label;
  }
  HEADRACE_TRY_VOID(keep_watching());
  return report;
}

Result<std::vector<std::string>> Exchange::list(Deadline deadline) {
  HEADRACE_TRY_VOID(need_store());
  return from_store(store_->list(deadline));
}

Result<void> Exchange::keep_watching() {
  const std::lock_guard lock(mutex_);
  if (watch_) return {};
  HEADRACE_TRY(watch, store_->watch([this](const metadata::StoreEvent& event) { on_event(event); }));
  watch_ = std::move(watch);
  return {};
}

/// On the thread that all watches of the process share: what may wait is left to the callback thread.
void Exchange::on_event(const metadata::StoreEvent& event) {
  std::optional<std::string> label;
  std::function<void(const PeerEvent&)> tell;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = found_.find(event.name); at != found_.end()) label = at->second;
    tell = on_event_;
  }
  if (!label && !tell) return;
  engine_.callbacks().push([this, event, label = std::move(label), tell = std::move(tell)] {
    if (label) keep_up_to_date(event, *label);
    if (tell) tell(peer_event(event));
  });
}

/// Of a peer that was found in the store: imports an update or a new incarnation, and forgets a peer that
/// left, unless a link says that it is alive.
void Exchange::keep_up_to_date(const metadata::StoreEvent& event, const std::string& label) {
  if (event.kind != metadata::StoreEvent::Kind::left) {
    if (auto bytes = store_->fetch(event.name, label, Deadline::after(store_patience)))
      (void)import_bytes_of(event.name, *bytes);
    return;
  }
  for (const PeerInfo& peer : engine_.peers().list())
    if (peer.name == event.name && !peer.connected) (void)engine_.peers().forget(event.name);
}

Result<void> Exchange::watch(std::function<void(const PeerEvent&)> event) {
  HEADRACE_TRY_VOID(need_store());
  std::unique_ptr<metadata::Store::Watch> former;  // ends outside the lock, which its callback takes
  {
    const std::lock_guard lock(mutex_);
    on_event_ = std::move(event);
    former = std::move(watch_);
  }
  former.reset();
  // A new watch reports all present peers to the new listener.
  return keep_watching();
}

// --- the agent's methods

namespace {

Deadline until(Timeout timeout) { return timeout ? Deadline::after(*timeout) : Deadline::never(); }

}  // namespace

std::string Agent::listen_address() const { return impl_->exchange->listen_address(); }
Result<ImportReport> Agent::fetch_metadata(const std::string& address, Timeout timeout,
                                           const std::string& label) {
  return impl_->exchange->fetch(address, until(timeout), label);
}
Result<void> Agent::send_metadata(const std::string& address, const ExportOptions& options, Timeout timeout) {
  return impl_->exchange->send(address, options, until(timeout));
}
Result<void> Agent::publish(const ExportOptions& options, const std::string& label) {
  return impl_->exchange->publish(options, label);
}
Result<void> Agent::unpublish() { return impl_->exchange->unpublish(); }
Result<ImportReport> Agent::find(const std::string& peer, Timeout timeout, const std::string& label) {
  return impl_->exchange->find(peer, until(timeout), label);
}
Result<std::vector<std::string>> Agent::list_namespace(Timeout timeout) {
  return impl_->exchange->list(until(timeout));
}
Result<void> Agent::watch_namespace(std::function<void(const PeerEvent&)> event) {
  return impl_->exchange->watch(std::move(event));
}

Result<std::vector<PeerInfo>> list_namespace(const std::string& store, Timeout timeout) {
  OptionSources sources;
  sources.other_tables = {"*"};
  HEADRACE_TRY(core, Options::resolve(core_options, sources));
  HEADRACE_TRY(options, metadata::StoreOptions::read(core));
  HEADRACE_TRY(opened, metadata::open_store(store, options, Logger::process_default()));
  HEADRACE_TRY(names, opened->list(until(timeout)));
  std::vector<PeerInfo> peers;
  for (const std::string& name : names) {
    PeerInfo peer;
    peer.name = name;
    const auto bytes = opened->fetch(name, "", until(timeout));
    const auto metadata = bytes ? wire::decode(*bytes) : Result<wire::Metadata>(bytes.error());
    if (metadata) {
      peer.incarnation = metadata->incarnation;
      peer.version = metadata->version;
      peer.regions = metadata->ids.size();
      for (const auto& backend : metadata->backends) peer.backends.push_back(backend.name);
    } else {
      peer.detail = metadata.error().message;
    }
    peers.push_back(std::move(peer));
  }
  return peers;
}

}  // namespace headrace
