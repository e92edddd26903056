// SPDX-License-Identifier: Apache-2.0
// The public classes: they pass on.
#include <headrace/fabric.hpp>

#include "base/errors.hpp"
#include "fabric/buffer_pool.hpp"
#include "fabric/command_queue.hpp"
#include "fabric/core.hpp"
#include "fabric/peer_group.hpp"
#include "fabric/receiver.hpp"
#include "fabric/watchers.hpp"

#include <array>
#include <utility>

namespace headrace {

using fabric::Core;

// ------------------------------------------------------------------ addresses and memory

namespace {

constexpr std::string_view hex_digits = "0123456789abcdef";

const std::string& no_bytes() {
  static const std::string none;
  return none;
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += hex_digits[static_cast<unsigned char>(byte) >> 4];
    text += hex_digits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

Result<std::string> from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    const auto high = hex_digits.find(hex[i]);
    const auto low = hex_digits.find(hex[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) break;
    bytes += static_cast<char>(high << 4 | low);
  }
  if (bytes.size() * 2 == hex.size()) return bytes;
  return make_error(Code::corrupt,
                    "the text of an address is an even number of digits 0-9 and a-f; this one of {} is wrong "
                    "at {}",
                    hex.size(), bytes.size() * 2);
}

}  // namespace

Result<FabricAddress> FabricAddress::from_bytes(std::string_view bytes) {
  HEADRACE_TRY(parts, fabric::read_address(bytes));
  return FabricAddress(std::move(parts));
}

Result<FabricAddress> FabricAddress::from_text(std::string_view hex) {
  HEADRACE_TRY(bytes, from_hex(hex));
  return from_bytes(bytes);
}

const std::string& FabricAddress::bytes() const { return parts_ == nullptr ? no_bytes() : parts_->bytes; }
std::string FabricAddress::to_text() const { return to_hex(bytes()); }

Result<FabricDescriptor> FabricDescriptor::from_bytes(std::string_view bytes) {
  HEADRACE_TRY(parts, fabric::read_descriptor(bytes));
  return FabricDescriptor(std::move(parts));
}

const std::string& FabricDescriptor::bytes() const { return parts_ == nullptr ? no_bytes() : parts_->bytes; }
std::uint64_t FabricDescriptor::length_bytes() const { return parts_ == nullptr ? 0 : parts_->length_bytes; }
FabricAccess FabricDescriptor::access() const {
  return parts_ == nullptr ? FabricAccess::local : parts_->access;
}
std::string FabricDescriptor::to_text() const {
  if (parts_ == nullptr) return "no memory";
  return fmt::format("{} {} bytes at {}", length_bytes(),
                     access() == FabricAccess::writable ? "writable" : "readable",
                     fabric::name_of(parts_->owner));
}

std::uintptr_t FabricMemory::address() const { return memory_->region.memory.address; }
std::uint64_t FabricMemory::length_bytes() const { return memory_->region.memory.bytes; }
FabricAccess FabricMemory::access() const { return memory_->access; }
std::optional<int> FabricMemory::device() const { return memory_->region.memory.device; }
std::size_t FabricMemory::group() const { return memory_->group; }
FabricDescriptor FabricMemory::descriptor() const { return FabricDescriptor(memory_->descriptor); }

FabricBuffer::~FabricBuffer() {
  if (pool_ != nullptr) pool_->give_back(index_);
}
FabricBuffer& FabricBuffer::operator=(FabricBuffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(index_, other.index_);
  return *this;
}
std::span<std::byte> FabricBuffer::bytes() const { return pool_->bytes_of(index_); }
const FabricMemory& FabricBuffer::memory() const { return pool_->memory(); }
std::uint64_t FabricBuffer::offset_bytes() const { return pool_->offset_of(index_); }

Result<FabricBuffer> FabricBuffers::take() {
  const auto index = pool_->take();
  if (!index) return make_error(Code::would_block, "all buffers are taken: give one back, then retry");
  return FabricBuffer(pool_, *index);
}
std::size_t FabricBuffers::free() const { return pool_->free(); }
std::uint64_t FabricBuffers::bytes_each() const { return pool_->bytes_each; }

// ------------------------------------------------------------------ work and expectations

RequestState FabricWork::state() const { return work_->state(); }
Status FabricWork::wait(Timeout timeout) const { return work_->wait(timeout); }
void FabricWork::cancel() const { work_->cancel(); }
void FabricWork::on_done(std::function<void(Status)> done) const { work_->on_done(std::move(done)); }
Result<int> FabricWork::event_fd() const { return work_->event_fd(); }
Error FabricWork::error() const { return work_->error(); }
std::uint64_t FabricWork::bytes() const { return work_->bytes(); }

Immediate FabricExpectation::immediate() const { return expectation_->immediate; }
std::uint64_t FabricExpectation::arrivals_each() const { return expectation_->each; }
Status FabricExpectation::wait(Timeout timeout) const { return expectation_->wait(timeout); }
void FabricExpectation::on_reached(std::function<bool()> reached) const {
  expectation_->on_reached(std::move(reached));
}
Result<int> FabricExpectation::event_fd() const { return expectation_->event_fd(); }
const std::atomic<std::uint64_t>& FabricExpectation::rounds() const { return expectation_->rounds(); }
std::uint64_t FabricExpectation::remove() const {
  const auto remover = expectation_->take_remover();
  return remover ? remover() : 0;
}

Result<FabricFlag> FabricExpectation::flag(const FabricFlagPlace& place) const {
  HEADRACE_TRY(made, expectation_->flag(place));
  return FabricFlag(std::move(made));
}

std::uintptr_t FabricFlag::address() const { return flag_->flag().address(); }
std::optional<int> FabricFlag::device() const { return flag_->flag().device(); }
bool FabricFlag::in_gpu_memory() const { return flag_->flag().in_gpu_memory(); }
std::uint64_t FabricFlag::value() const { return flag_->flag().value(); }

std::uintptr_t FabricWatcher::address() const { return watcher_->address(); }
std::uint64_t FabricWatcher::value() const { return watcher_->word().load(std::memory_order_acquire); }
void FabricWatcher::store(std::uint64_t value) const {
  watcher_->word().store(value, std::memory_order_release);
}
void FabricWatcher::stop() const { watcher_->stop(); }

std::uintptr_t FabricCommandQueue::address() const { return queue_->queue().address(); }
std::optional<int> FabricCommandQueue::device() const { return queue_->queue().setup.device; }
std::uint32_t FabricCommandQueue::capacity() const { return queue_->queue().setup.capacity; }
std::uint64_t FabricCommandQueue::ended() const { return queue_->queue().ended(); }
std::uint64_t FabricCommandQueue::failed() const { return queue_->queue().failed(); }
std::optional<FabricQueueStatus> FabricCommandQueue::status() const { return queue_->queue().status(); }
void FabricCommandQueue::close() const { queue_->queue().close(); }

void FabricReceiver::stop() const { receiver_->stop(); }

// ------------------------------------------------------------------ peers

std::uint32_t FabricPeers::scope() const { return group_->scope; }
std::vector<FabricPeer> FabricPeers::members() const { return group_->members(); }
void FabricPeers::join(const FabricPeer& peer) const {
  if (!peer || !group_->add(peer)) return;
  if (const auto core = group_->core.lock()) static_cast<void>(core->connect(peer.address()));
}
Result<void> FabricPeers::leave(const FabricPeer& peer) const {
  if (group_->remove(peer)) return {};
  return make_error(Code::not_found, "the peer is no member of the group");
}

// ------------------------------------------------------------------ the fabric

Result<Fabric> Fabric::open(const FabricOptions& options) { return Core::open(options); }
Fabric::~Fabric() {
  if (core_ == nullptr) return;
  if (core_->forked()) {
    Core::leak(std::move(core_));
  } else {
    core_->close();
  }
}
Fabric::Fabric(Fabric&&) noexcept = default;
Fabric& Fabric::operator=(Fabric&& other) noexcept {
  Fabric ending(std::move(*this));
  core_ = std::move(other.core_);
  return *this;
}

void Fabric::close() { core_->close(); }
FabricAddress Fabric::address() const { return core_->address(); }
std::vector<FabricGroup> Fabric::groups() const { return core_->groups(); }
std::uint64_t Fabric::bits_per_second() const { return core_->bits_per_second(); }
FabricCounters Fabric::counters() const { return core_->counters(); }
TelemetrySnapshot Fabric::telemetry() const { return core_->telemetry(); }

Result<FabricMemory> Fabric::register_memory(const MemoryRange& range, FabricAccess access,
                                             std::optional<std::size_t> group) {
  return core_->register_memory(range, access, group);
}
Result<void> Fabric::deregister(const FabricMemory& memory) { return core_->deregister(memory); }
Result<FabricBuffers> Fabric::host_buffers(std::size_t count, std::uint64_t bytes) {
  return core_->host_buffers(count, bytes);
}

Result<FabricPeer> Fabric::connect(const FabricAddress& address) { return core_->connect(address); }
Result<void> Fabric::forget(const FabricPeer& peer) { return core_->forget(peer); }
Result<FabricPeers> Fabric::peer_group(std::uint32_t scope, std::span<const FabricAddress> addresses) {
  return core_->peer_group(scope, addresses);
}

Result<FabricWork> Fabric::write(const FabricMemory& from, std::uint64_t from_offset,
                                 const FabricDescriptor& to, std::uint64_t to_offset, std::uint64_t bytes,
                                 const FabricPost& post) {
  return core_->move({HEADRACE_WRITE, from, from_offset, to, to_offset, bytes}, post);
}
Result<FabricWork> Fabric::write_pages(const FabricMemory& from, const FabricPages& from_pages,
                                       const FabricDescriptor& to, const FabricPages& to_pages,
                                       std::uint64_t page_bytes, std::uint64_t count,
                                       const FabricPost& post) {
  return core_->move_pages({HEADRACE_WRITE, from, from_pages, to, to_pages, page_bytes, count}, post);
}
Result<FabricWork> Fabric::scatter(const FabricMemory& from, std::span<const FabricTarget> targets,
                                   const FabricPost& post) {
  return core_->scatter(from, targets, post);
}
Result<FabricWork> Fabric::read(const FabricMemory& to, std::uint64_t to_offset, const FabricDescriptor& from,
                                std::uint64_t from_offset, std::uint64_t bytes, const FabricPost& post) {
  return core_->move({HEADRACE_READ, to, to_offset, from, from_offset, bytes}, post);
}
Result<FabricWork> Fabric::read_pages(const FabricMemory& to, const FabricPages& to_pages,
                                      const FabricDescriptor& from, const FabricPages& from_pages,
                                      std::uint64_t page_bytes, std::uint64_t count, const FabricPost& post) {
  return core_->move_pages({HEADRACE_READ, to, to_pages, from, from_pages, page_bytes, count}, post);
}
Result<FabricWork> Fabric::post_immediate(const FabricPeer& peer, Immediate immediate,
                                          const FabricPost& post) {
  return core_->post_immediate(peer, immediate, post);
}
Result<FabricWork> Fabric::barrier(const FabricPeers& peers, std::uint32_t value, const FabricPost& post) {
  return core_->barrier(peers, value, post);
}

Result<FabricCommandQueue> Fabric::command_queue(std::span<const FabricQueueWrite> writes,
                                                 const FabricQueueOptions& options) {
  return core_->command_queue(writes, options);
}

Result<FabricWork> Fabric::send(const FabricPeer& peer, const FabricMemory& from, std::uint64_t from_offset,
                                std::uint64_t bytes, const FabricPost& post) {
  return core_->send(peer, {from, from_offset, bytes}, post);
}
Result<FabricWork> Fabric::receive(const FabricMemory& to, std::uint64_t to_offset, std::uint64_t bytes,
                                   const FabricPost& post) {
  return core_->receive({to, to_offset, bytes}, post);
}
Result<FabricReceiver> Fabric::receive_all(std::size_t count, std::uint64_t bytes,
                                           std::function<void(std::span<const std::byte>)> received) {
  return core_->receive_all(count, bytes, std::move(received));
}

Result<FabricExpectation> Fabric::expect(Immediate immediate, std::uint64_t arrivals) {
  return core_->expect(immediate, arrivals);
}
void Fabric::on_unexpected(std::function<void(Immediate, std::uint64_t)> arrived) {
  core_->on_unexpected(std::move(arrived));
}
Result<FabricWatcher> Fabric::watch(std::function<bool(std::uint64_t before, std::uint64_t now)> changed,
                                    std::optional<int> device) {
  return core_->watch(std::move(changed), device);
}
void Fabric::on_error(std::function<void(const Error&)> failed) { core_->on_error(std::move(failed)); }

}  // namespace headrace
