// SPDX-License-Identifier: Apache-2.0
// The public class: checks arguments, and throws what torchcomms throws.
#include <headrace/compat/rdma_transport.hpp>

#include "base/errors.hpp"
#include "compat/transport_state.hpp"

#include <utility>

namespace headrace::compat {
namespace {

/// Where a post goes in the peer's memory.
struct Place {
  AccessKey key;
  std::uint64_t offset = 0;
};

Url peer_of(const std::optional<Url>& peer) {
  if (!peer)
    throw std::runtime_error("the transport is not connected: call connect with the URL of the peer first");
  return *peer;
}

Place place_of(const RdmaRemoteBuffer& remote, std::size_t length, const Url& peer) {
  if (length > remote.len)
    throw std::runtime_error(
        fmt::format("the view has {} bytes, and the remote buffer only {}", length, remote.len));
  auto key = read_key(remote.accessKey);
  if (!key) throw std::invalid_argument(key.error().message);
  if (key->process != peer.process)
    throw std::invalid_argument(
        "the remote buffer is not of the peer: use a transport that is connected to its owner");
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(remote.ptr) - key->address;
  const std::uint64_t whole = key->descriptor.length_bytes();
  if (offset > whole || length > whole - offset)  // an address before the memory is a large offset
    throw std::invalid_argument(fmt::format("{} bytes at {} are outside of the peer's memory: {} bytes at {}",
                                            length, remote.ptr, whole,
                                            reinterpret_cast<const void*>(key->address)));
  return {*std::move(key), offset};
}

Timeout timeout_of(const std::optional<std::chrono::milliseconds>& timeout) {
  return timeout ? Timeout(*timeout) : forever;
}

}  // namespace

RdmaTransport::RdmaTransport(int cuda_dev, void* evb, std::optional<int> max_num_cqe,
                             std::optional<int> max_num_nic)
    : max_cqe_(max_num_cqe.value_or(0)) {
  (void)cuda_dev, (void)evb, (void)max_num_nic;
  auto state = State::open();
  if (!state) throw std::runtime_error(state.error().message);
  state_ = *std::move(state);
}

RdmaTransport::~RdmaTransport() { state_->close(); }

bool RdmaTransport::supported() { return Endpoint::shared().ok(); }

std::string RdmaTransport::bind() { return write_url(state_->endpoint(), state_->scope()); }

commResult_t RdmaTransport::connect(const std::string& peer_url) {
  auto url = read_url(peer_url);
  if (!url) throw std::invalid_argument(url.error().message);
  const auto done = state_->connect(*std::move(url));
  if (!done) throw std::runtime_error(done.error().message);
  return commSuccess;
}

bool RdmaTransport::connected() const { return state_->peer().has_value(); }

int RdmaTransport::getNumNics() const {
  return static_cast<int>(state_->endpoint().fabric.groups().front().nics.size());
}

CommFuture RdmaTransport::write(RdmaMemory::View local_buffer, const RdmaRemoteBuffer& remote_buffer,
                                bool notify, std::optional<std::chrono::milliseconds> timeout) {
  const auto mock = state_->mock();
  auto& endpoint = state_->endpoint();
  FabricPost options;
  options.timeout = timeout_of(timeout);
  if (mock == MockType::Failure) return commInternalError;
  if (mock == MockType::Timeout) return state_->post([&] { return endpoint.idle(options.timeout); });

  const auto peer = peer_of(state_->peer());
  const auto place = place_of(remote_buffer, local_buffer.size(), peer);
  if (notify) options.immediate = endpoint.immediate(Signal::written, peer.scope);
  const auto& local = *local_buffer.registration_;
  return state_->post([&] {
    return endpoint.fabric.write(local.memory(), local.offset_of(local_buffer.data()), place.key.descriptor,
                                 place.offset, local_buffer.size(), options);
  });
}

CommFuture RdmaTransport::waitForWrite() {
  (void)peer_of(state_->peer());
  return state_->next_write();
}

CommFuture RdmaTransport::read(const RdmaMemory::MutableView& local_buffer,
                               const RdmaRemoteBuffer& remote_buffer,
                               std::optional<std::chrono::milliseconds> timeout) {
  const auto place = place_of(remote_buffer, local_buffer.size(), peer_of(state_->peer()));
  const auto& local = *local_buffer.registration_;
  return state_->post([&] {
    return state_->endpoint().fabric.read(local.memory(), local.offset_of(local_buffer.data()),
                                          place.key.descriptor, place.offset, local_buffer.size(),
                                          {.timeout = timeout_of(timeout)});
  });
}

std::string RdmaTransport::lastError() const { return state_->last_error(); }
void RdmaTransport::setMockForTest(MockContext config) { state_->set_mock(config); }
void RdmaTransport::markBrokenForTest() { state_->break_off("marked as broken by a test"); }

}  // namespace headrace::compat
