// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/backend.hpp"

#include "backends/tcp/connector.hpp"
#include "base/errors.hpp"
#include "base/random.hpp"
#include "vendor/openssl/openssl.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace headrace::tcp {
namespace {

Result<wire::Hmac> load_hmac() {
  HEADRACE_TRY(loaded, OpenSsl::load());
  return wire::Hmac([ssl = loaded](std::string_view key, std::string_view message) -> Result<wire::Proof> {
    HEADRACE_TRY(digest, ssl.hmac_sha256(std::as_bytes(std::span(key)), std::as_bytes(std::span(message))));
    wire::Proof proof;
    std::memcpy(proof.data(), digest.data(), proof.size());
    return proof;
  });
}

Result<void> check_kind(std::int32_t kind) {
  if (kind == HEADRACE_DRAM || kind == HEADRACE_VRAM) return {};
  return make_error(Code::not_supported, "tcp moves memory of the host and of GPUs, not kind {}", kind);
}

}  // namespace

Result<std::unique_ptr<TcpBackend>> TcpBackend::open(plugin::Host host, const plugin::CreateArgs& args) {
  return open(host, args, {});
}

Result<std::unique_ptr<TcpBackend>> TcpBackend::open(plugin::Host host, const plugin::CreateArgs& args,
                                                     Parts parts) {
  HEADRACE_TRY(settings, Settings::read(args));
  std::unique_ptr<TcpBackend> backend(new TcpBackend(host, std::move(settings), std::move(parts)));
  HEADRACE_TRY_VOID(backend->start());
  return backend;
}

TcpBackend::TcpBackend(plugin::Host host, Settings settings, Parts parts)
    : context_(host, std::move(settings), std::move(parts.calls),
               parts.gpus ? *std::move(parts.gpus) : gpu::GpuSource::installed(),
               parts.gpus.has_value() || gpu::is_in_sight()) {}

Result<void> TcpBackend::start() {
  if (!context_.settings.token.empty()) {
    HEADRACE_TRY(hmac, load_hmac());
    context_.hmac = std::move(hmac);
  }
  for (unsigned i = 0; i < context_.settings.threads; ++i) {
    HEADRACE_TRY(thread, IoThread::open(
                             i, [host = context_.host] { return host.now_ns(); }, context_.settings.spin));
    context_.threads.push_back(std::move(thread));
  }
  HEADRACE_TRY(listener, Listener::open(context_, *this));
  listener_ = std::move(listener);
  ports_ = listener_->ports();
  for (const char* const counter : {"handshakes_dropped", "handshakes_refused", "links_lost"})
    context_.host.count(counter, 0);  // a reader finds them from the start
  return {};
}

TcpBackend::~TcpBackend() {
  for (const auto& link : links()) link->disconnect();
  context_.farewells.wait();  // it is the threads that say them
  for (const auto& thread : context_.threads) thread->stop();
  // One that came in meanwhile.
  for (const auto& link : links()) link->disconnect();
}

headrace_info_v1 TcpBackend::info() {
  headrace_info_v1 info{};
  info.struct_size = sizeof info;
  info.abilities = HEADRACE_REMOTE | HEADRACE_NOTIFY | HEADRACE_REVOKE_SAFE | HEADRACE_GRID | HEADRACE_COUNT;
  // A peer's GPU memory needs no GPU here.
  info.local_kinds = context_.gpus_in_sight ? memory_kinds : HEADRACE_KIND_BIT(HEADRACE_DRAM);
  info.remote_kinds = memory_kinds;
  info.max_message_bytes = max_message_bytes;
  info.ports = ports_.c_str();
  return info;
}

Result<std::string> TcpBackend::connection_info() { return listener_->info().text(); }

Result<Link*> TcpBackend::connect(const headrace_connect_v1& args) {
  HEADRACE_TRY(info, ConnectionInfo::parse(
                         {static_cast<const char*>(args.connection_info.data), args.connection_info.length}));
  std::vector<TcpAddress> addresses = info.for_host(listener_->info().host);
  if (addresses.empty())
    return make_error(Code::not_supported, "peer {} gives no address to connect to", args.peer_name);
  auto link = std::make_shared<Link>(context_, args.peer_name, args.peer_incarnation, random_u64(),
                                     args.link_token, context_.settings.sockets);
  {
    const std::scoped_lock lock(mutex_);
    links_.emplace(link.get(), link);
  }
  if (auto started = Connector::start(context_, resolver_, link, std::move(addresses)); !started) {
    take(link.get());
    return std::move(started).error();
  }
  return link.get();
}

Result<std::shared_ptr<Link>> TcpBackend::admit(const wire::Hello& peer) {
  if (peer.channel != 0) {
    for (const auto& link : links())
      if (link->id() == peer.link_id && link->peer_incarnation() == peer.incarnation &&
          link->peer_name() == peer.name)
        return link;
    return make_error(Code::not_found, "socket {} of \"{}\" is for a link that is not there (any more)",
                      peer.channel, peer.name);
  }
  for (const auto& old : links())
    if (old->peer_incarnation() == peer.incarnation && old->peer_name() == peer.name) old->lose_if_closed();
  // How many sockets a link has is the connecting side's choice; here they are taken as they come.
  constexpr unsigned most_sockets = 64;
  auto link = std::make_shared<Link>(context_, peer.name, peer.incarnation, peer.link_id, 0, most_sockets);
  {
    const std::scoped_lock lock(mutex_);
    links_.emplace(link.get(), link);
  }
  const std::uint64_t token = context_.host.accepted(link.get(), peer.name, peer.incarnation);
  if (token == 0) {
    link->disconnect();
    take(link.get());
    return make_error(Code::peer_lost, "agent \"{}\" takes no connection from \"{}\" now",
                      context_.host.agent_name(), peer.name);
  }
  link->accepted(token);
  return link;
}

std::vector<std::shared_ptr<Link>> TcpBackend::links() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<Link>> all;
  all.reserve(links_.size());
  for (const auto& [raw, link] : links_) all.push_back(link);
  return all;
}

std::shared_ptr<Link> TcpBackend::take(const Link* link) {
  const std::scoped_lock lock(mutex_);
  auto node = links_.extract(link);
  return node.empty() ? nullptr : std::move(node.mapped());
}

void TcpBackend::disconnect(Link& link) {
  // It stays in the list until it is quiet: deregister_region must find it. Requests and regions that were
  // prepared for it hold it until they are given back.
  link.disconnect();
  take(&link);
}

Result<Region*> TcpBackend::register_region(const headrace_region_v1& region) {
  HEADRACE_TRY_VOID(check_kind(region.kind));
  if (region.length == 0 || region.address == 0 || region.address + region.length < region.address)
    return make_error(Code::invalid_argument, "region {} of {} bytes at {:#x} is no memory", region.region_id,
                      region.length, region.address);
  Region made{{region.region_id, reinterpret_cast<std::byte*>(region.address), region.length,
               (region.flags & HEADRACE_REGION_READ_ONLY) == 0}};
  if (region.kind == HEADRACE_VRAM) {
    HEADRACE_TRY(memory,
                 gpu::RegisteredMemory::find(context_.gpus, region.device, region.address, region.length));
    made.gpu = std::make_shared<const gpu::RegisteredMemory>(std::move(memory));
  }
  HEADRACE_TRY(added, context_.regions.add(made));
  return added;
}

void TcpBackend::deregister_region(Region& region) {
  // First no frame finds it any more, then those that found it before let go. The object lives until then:
  // they compare.
  const Regions::Removed removed = context_.regions.remove(&region);
  if (removed.empty()) return;
  for (const auto& link : links()) link->detach(removed.mapped());
}

Result<RemoteRegion*> TcpBackend::load_remote(Link& link, const headrace_remote_region_v1& region) {
  HEADRACE_TRY_VOID(check_kind(region.kind));
  return new RemoteRegion{link.shared_from_this(), region.region_id};
}

void TcpBackend::unload(RemoteRegion& remote) { delete &remote; }

Result<RemoteRequest*> TcpBackend::prepare(Link* link, const headrace_prepare_v1& args) {
  if (args.op != HEADRACE_READ && args.op != HEADRACE_WRITE)
    return make_error(Code::not_supported, "operation {}: tcp reads and writes", args.op);
  for (std::uint64_t i = 0; i < args.remote->region_count; ++i) {
    const RemoteRegion& remote = Handles::remote(args.remote->regions[i]);
    if (remote.link.get() != link)
      return make_error(Code::invalid_argument,
                        "remote region {} (id {}) was not loaded for the link of the request", i, remote.id);
  }
  for (std::uint64_t i = 0; i < args.local->region_count; ++i) {
    const Region& region = Handles::region(args.local->regions[i]);
    if (region.of_gpu()) HEADRACE_TRY_VOID(region.gpu->check_unchanged(region.id));
  }
  return new RemoteRequest(args, link->shared_from_this());
}

Status TcpBackend::post(RemoteRequest& request, const headrace_post_v1& args) {
  return request.link->post(request, args);
}
bool TcpBackend::poll(RemoteRequest& request) { return request.link->poll(request); }
void TcpBackend::cancel(RemoteRequest& request) { request.link->cancel(request); }
void TcpBackend::release(RemoteRequest& request) { delete &request; }

Status TcpBackend::notify(Link& link, std::uint32_t channel, std::string_view bytes) {
  return link.notify(channel, bytes);
}

headrace_cost_v1 TcpBackend::cost(const headrace_prepare_v1& /*args*/) {
  return {.struct_size = sizeof(headrace_cost_v1),
          .fixed_ns = 20'000,
          .ns_per_page = 100,
          .bytes_per_second = 3e9,
          .margin = 0.5,
          .method = "constant"};
}

}  // namespace headrace::tcp
