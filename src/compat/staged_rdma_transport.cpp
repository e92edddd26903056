// SPDX-License-Identifier: Apache-2.0
// The public classes: they check, and throw what torchcomms throws.
#include <headrace/compat/staged_rdma_transport.hpp>

#include "base/errors.hpp"
#include "compat/staged_state.hpp"

#include <stdexcept>
#include <utility>

namespace headrace::compat {

StagedRdmaTransportBase::StagedRdmaTransportBase(Role role, const StagedTransferConfig& config)
    : state_(std::make_unique<State>(role, config)) {}

StagedRdmaTransportBase::~StagedRdmaTransportBase() = default;

std::size_t StagedRdmaTransportBase::stagingBufSize() const { return state_->config().stagingBufSize; }
std::string StagedRdmaTransportBase::lastError() const { return state_->gate().last_error(); }

std::string StagedRdmaTransportBase::setupLocalTransport() {
  if (state_->config().stagingMode != StagedTransferConfig::StagingMode::CPU)
    throw std::invalid_argument("there is no staging buffer on a GPU: set stagingMode to StagingMode::CPU");
  if (stagingBufSize() == 0) throw std::invalid_argument("stagingBufSize is 0: give the bytes of a chunk");
  if (state_->is_set_up()) throw std::runtime_error("the transport is set up already");
  auto info = state_->set_up();
  if (!info) throw std::runtime_error(info.error().message);
  return *std::move(info);
}

void StagedRdmaTransportBase::connectRemoteTransport(const std::string& peer_conn_info) {
  if (!state_->is_set_up()) throw std::runtime_error("call setupLocalTransport first");
  if (state_->connected())
    throw std::runtime_error("the transport is connected already: make another one for another peer");
  const auto done = state_->connect(peer_conn_info);
  if (!done) throw std::invalid_argument(done.error().message);
}

StagedRdmaServerTransport::StagedRdmaServerTransport(int cuda_dev, void* evb, StagedTransferConfig config)
    : StagedRdmaTransportBase(Role::server, config) {
  (void)cuda_dev, (void)evb;
}

CommFuture StagedRdmaServerTransport::send(const ScatterGatherDescriptor& src) {
  if (!state_->connected()) throw std::runtime_error("call connectRemoteTransport first");
  const auto number = state_->gate().begin();
  return state_->begin([state = state_.get(), src, number] { return state->send(src, number); });
}

StagedRdmaClientTransport::StagedRdmaClientTransport(int cuda_dev, void* evb, StagedTransferConfig config)
    : StagedRdmaTransportBase(Role::client, config) {
  (void)cuda_dev, (void)evb;
}

CommFuture StagedRdmaClientTransport::recv(const ScatterGatherDescriptor& dst) {
  if (!state_->connected()) throw std::runtime_error("call connectRemoteTransport first");
  const auto number = state_->gate().begin();
  return state_->begin([state = state_.get(), dst, number] { return state->receive(dst, number); });
}

void StagedRdmaClientTransport::cancelPendingRecv() { state_->gate().cancel(); }

}  // namespace headrace::compat
