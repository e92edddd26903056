// SPDX-License-Identifier: Apache-2.0
#include "compat/staged_state.hpp"

#include "base/errors.hpp"
#include "base/start_thread.hpp"
#include "compat/scatter_gather.hpp"
#include "compat/staged_info.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace headrace::compat {
namespace {

constexpr std::size_t head_bytes = sizeof(ChunkHead);

}  // namespace

StagedRdmaTransportBase::State::State(Role role, const StagedTransferConfig& config)
    : role_(role), config_(config), gate_(std::make_shared<StagedGate>(role == Role::server ? 1 : 0)) {}

StagedRdmaTransportBase::State::~State() {
  gate_->stop();
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
    if (current_) current_.cancel();
    work_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  for (const auto& transfer : transfers_) transfer.future->end(commUserAbort);
  if (watch_) watch_.cancel();
  if (signals_) signals_.remove();
  if (staging_memory_) (void)endpoint_->fabric.deregister(staging_memory_);  // fails in a forked child alone
}

bool StagedRdmaTransportBase::State::connected() const {
  const std::scoped_lock lock(mutex_);
  return peer_.has_value();
}

// --- the two sides find each other

Result<std::string> StagedRdmaTransportBase::State::set_up() {
  HEADRACE_TRY(endpoint, Endpoint::shared());
  staging_.resize(head_bytes + config_.stagingBufSize);
  HEADRACE_TRY(memory,
               endpoint->fabric.register_memory({.address = staging_.data(), .length_bytes = staging_.size()},
                                                FabricAccess::writable));
  scope_ = Endpoint::new_scope();
  endpoint_ = std::move(endpoint);
  staging_memory_ = memory;
  HEADRACE_TRY(signals, endpoint_->fabric.expect(endpoint_->immediate(own_signal(), scope_), 1));
  signals_ = signals;
  signals_.on_reached([gate = gate_] { return gate->signal(), true; });
  HEADRACE_TRY(thread, start_thread("hr-staged", [this] { run(); }));
  thread_ = std::move(thread);

  return encode(StagedInfo{role_ == Role::server, scope_, config_.stagingBufSize, memory.descriptor(),
                           endpoint_->fabric.address()});
}

Result<void> StagedRdmaTransportBase::State::connect(std::string_view bytes) {
  HEADRACE_TRY(info, read_staged_info(bytes));
  if (info.is_server == (role_ == Role::server))
    return make_error(Code::corrupt, "the peer is a {0}, as this side is: connect a server to a client",
                      info.is_server ? "server" : "client");
  Peer peer{info.scope, info.staging_bytes, info.staging, {}};
  HEADRACE_TRY(connected, endpoint_->fabric.connect(info.address));
  peer.address = connected;
  HEADRACE_TRY(watch, endpoint_->watch(info.address));
  watch_ = watch;
  watch.on_done([gate = gate_, watch](Status status) {
    if (!status.ok() && status.code != Code::canceled)
      gate->lose("the peer has ended: " + watch.error().message);
  });
  const std::scoped_lock lock(mutex_);
  peer_ = std::move(peer);
  return {};
}

std::size_t StagedRdmaTransportBase::State::chunk_bytes() const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(config_.stagingBufSize, peer_->staging_bytes));
}

// --- transfers

CommFuture StagedRdmaTransportBase::State::begin(std::function<commResult_t()> transfer) {
  const auto future = std::make_shared<CommFuture::State>();
  const std::scoped_lock lock(mutex_);
  transfers_.push_back({std::move(transfer), future});
  work_.notify_all();
  return CommFuture(future);
}

std::optional<StagedRdmaTransportBase::State::Transfer> StagedRdmaTransportBase::State::next() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [this] { return closing_ || !transfers_.empty(); });
  if (closing_) return std::nullopt;
  auto transfer = std::move(transfers_.front());
  transfers_.pop_front();
  return transfer;
}

void StagedRdmaTransportBase::State::run() {
  while (auto transfer = next()) transfer->future->end(transfer->run());
}

commResult_t StagedRdmaTransportBase::State::send(const ScatterGatherDescriptor& src,
                                                  std::uint64_t transfer) {
  const std::uint64_t total = src.totalBytes();
  ScatterGatherCursor from(src);
  for (std::uint64_t offset = 0; offset < total;) {
    if (gate_->lost()) return commInternalError;
    if (const auto free = gate_->take(config_.chunkTimeout, transfer); free != commSuccess) return free;
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes(), total - offset));
    from.gather(std::span(staging_).subspan(head_bytes, bytes));
    if (const auto sent = write_chunk(total, offset, bytes); sent != commSuccess) return sent;
    offset += bytes;
  }
  return commSuccess;
}

commResult_t StagedRdmaTransportBase::State::write_chunk(std::uint64_t total, std::uint64_t offset,
                                                         std::size_t bytes) {
  const ChunkHead head{total, offset};
  std::memcpy(staging_.data(), &head, head_bytes);
  return end_of(endpoint_->fabric.write(staging_memory_, 0, peer_->staging, 0, head_bytes + bytes,
                                        post_of(Signal::chunk)));
}

commResult_t StagedRdmaTransportBase::State::receive(const ScatterGatherDescriptor& dst,
                                                     std::uint64_t transfer) {
  const std::uint64_t total = dst.totalBytes();
  ScatterGatherCursor to(dst);
  for (std::uint64_t offset = 0; offset < total;) {
    if (const auto come = gate_->take(config_.chunkTimeout, transfer); come != commSuccess) return come;
    if (const auto checked = check_chunk(total, offset); checked != commSuccess) return checked;
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes(), total - offset));
    to.scatter(std::span(staging_).subspan(head_bytes, bytes));
    if (const auto told = free_peers_buffer(); told != commSuccess) return told;
    offset += bytes;
  }
  return commSuccess;
}

commResult_t StagedRdmaTransportBase::State::check_chunk(std::uint64_t total, std::uint64_t offset) {
  ChunkHead head;
  std::memcpy(&head, staging_.data(), head_bytes);
  if (head.total == total && head.offset == offset) return commSuccess;
  gate_->lose(fmt::format("byte {} of {} was expected, and the server sends byte {} of {}", offset, total,
                          head.offset, head.total));
  return commInvalidArgument;
}

commResult_t StagedRdmaTransportBase::State::free_peers_buffer() {
  const auto told = endpoint_->fabric.post_immediate(
      peer_->address, endpoint_->immediate(Signal::taken, peer_->scope), {.timeout = config_.chunkTimeout});
  return end_of(told);
}

FabricPost StagedRdmaTransportBase::State::post_of(Signal signal) const {
  FabricPost post;
  post.immediate = endpoint_->immediate(signal, peer_->scope);
  post.timeout = config_.chunkTimeout;
  return post;
}

commResult_t StagedRdmaTransportBase::State::end_of(const Result<FabricWork>& work) {
  if (!work) {
    gate_->lose(work.error().message);
    return commInternalError;
  }
  {
    const std::scoped_lock lock(mutex_);
    current_ = *work;
    if (closing_) current_.cancel();
  }
  const auto status = work->wait();
  if (status.ok()) return commSuccess;
  if (status.code == Code::canceled) return commUserAbort;
  if (status.code == Code::timed_out) {
    gate_->note(work->error().message);
    return commTimeout;
  }
  gate_->lose(work->error().message);
  return commInternalError;
}

}  // namespace headrace::compat
