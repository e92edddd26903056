// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/relay_server.hpp"

#include "backends/shm/copy.hpp"
#include "base/clock.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace headrace::shm {
namespace {

constexpr std::uint64_t linger_ns = 50'000;   // for the next part of a request
constexpr std::uint64_t turn_ns = 5'000'000;  // then others may have the thread
constexpr std::uint64_t longest_turn_ns = 1'000'000'000;
constexpr std::uint64_t give_up_ns = 100'000'000;  // a reader that does not read: stopped, or dead

std::uintptr_t page_begin(const std::byte* address) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return reinterpret_cast<std::uintptr_t>(address) & ~(page - 1);
}

}  // namespace

// ------------------------------------------------------------------ regions

void ServedRegions::add(LocalRegion& region) {
  const std::lock_guard lock(mutex_);
  by_id_.emplace(region.region_id, &region);
}

void ServedRegions::remove(LocalRegion& region) {
  {
    const std::lock_guard lock(mutex_);
    by_id_.erase(region.region_id);
  }
  region.gone.store(true, std::memory_order_release);
  while (region.copied_out_of.load(std::memory_order_acquire) != 0) ::sched_yield();
}

ServedRegions::Pin ServedRegions::pin(std::uint32_t region_id) {
  using Readable = LocalRegion::Readable;
  std::unique_lock lock(mutex_);
  const auto at = by_id_.find(region_id);
  if (at == by_id_.end()) return {};
  LocalRegion& region = *at->second;
  region.copied_out_of.fetch_add(1, std::memory_order_relaxed);
  Pin pin(&region);  // `remove` waits for it: what follows may take its time without the lock
  Readable readable = region.readable;
  lock.unlock();
  if (readable == Readable::unknown) {
    const std::optional<bool> found = can_be_read(region.base, region.length_bytes);
    if (!found) return {};
    readable = *found ? Readable::yes : Readable::no;
    lock.lock();
    region.readable = readable;
    lock.unlock();
  }
  if (readable == Readable::no || !is_mapped(region.base, region.length_bytes)) return {};
  return pin;
}

std::optional<bool> can_be_read(const std::byte* begin, std::uint64_t length_bytes) {
  auto at = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t end = at + length_bytes;
  std::ifstream maps("/proc/self/maps");
  if (!maps) return std::nullopt;
  for (std::string line; at < end && std::getline(maps, line);) {
    unsigned long from = 0;
    unsigned long to = 0;
    unsigned long inode = 0;
    char access[5] = {};
    // address range, access, offset, device, inode: proc(5)
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*x %*x:%*x %lu", &from, &to, access, &inode) != 4)
      return false;
    if (to <= at) continue;
    if (from > at || access[0] != 'r' || inode != 0) return false;
    at = to;
  }
  return at >= end;
}

bool is_mapped(const std::byte* begin, std::uint64_t length_bytes) {
  const std::uintptr_t from = page_begin(begin);
  const std::uintptr_t length = reinterpret_cast<std::uintptr_t>(begin) + length_bytes - from;
  // Has nothing to write back in memory without a file, and fails where a part is not mapped.
  return ::msync(reinterpret_cast<void*>(from), length, MS_ASYNC) == 0;
}

// ------------------------------------------------------------------ serving

bool RelayServer::begin() {
  LaneWords& words = lane_.words();
  LaneState called = LaneState::called;
  if (!words.state.compare_exchange_strong(called, LaneState::served)) return false;
  taken_ = words.taken_stretches.load(std::memory_order_acquire);
  given_ = published_ = words.given.load(std::memory_order_acquire);
  consumed_ = words.consumed.load(std::memory_order_acquire);
  if (given_ - consumed_ > lane_ring_bytes)
    consumed_ = given_ - lane_ring_bytes;  // it lies: it is refused when there is no room
  asked_ = taken_;
  begun_ns_ = now_ns();
  return true;
}

/// Copies one piece.
RelayServer::Step RelayServer::step() {
  if (at_.bytes == 0)
    if (const Step next = next_stretch(); next != Step::moved) return next;
  const std::uint64_t bytes = std::min(at_.bytes, lane_piece_bytes);
  if (lane_ring_bytes - (given_ - consumed_) < bytes) {
    consumed_ = lane_.words().consumed.load(std::memory_order_acquire);
    if (given_ - consumed_ > lane_ring_bytes) return Step::refused;
    if (lane_ring_bytes - (given_ - consumed_) < bytes) return Step::waits;
  }
  const LocalRegion* const region = hold(at_.region_id);
  if (region == nullptr) return Step::refused;
  copy_for_peer(lane_.ring(given_), region->base + at_.offset, bytes,
                bytes == at_.bytes ? bytes_to_come(0) : std::span<const std::byte>());
  at_.offset += bytes;
  at_.bytes -= bytes;
  given_ += bytes;
  if (given_ - published_ >= lane_told_bytes) publish();
  patience_ = {};
  return Step::moved;
}

/// Takes up what was asked for next.
RelayServer::Step RelayServer::next_stretch() {
  if (next_ == ahead_.end())
    if (const Step read = read_ahead(); read != Step::moved) return read;
  at_ = *next_++;
  const LocalRegion* const region = hold(at_.region_id);
  if (region == nullptr || at_.bytes == 0 || at_.offset > region->length_bytes ||
      at_.bytes > region->length_bytes - at_.offset) {
    return Step::refused;
  }
  prefetch_translation(bytes_to_come(1));
  return Step::moved;
}

/// The stretch that comes next, or so many after it, if it is of a region that we hold, as what came before
/// it probably was; else none.
std::span<const std::byte> RelayServer::bytes_to_come(std::ptrdiff_t after) const {
  if (ahead_.end() - next_ <= after) return {};
  const LaneStretch& stretch = next_[after];
  const LocalRegion* const region = pinned_[stretch.region_id % pinned_.size()].pin.get();
  if (region == nullptr || stretch.offset >= region->length_bytes) return {};
  return {region->base + stretch.offset, std::min(stretch.bytes, region->length_bytes - stretch.offset)};
}

/// Reads what the reader wrote: once, then it is ours. Many at a time, since each line comes out of the other
/// core's cache.
RelayServer::Step RelayServer::read_ahead() {
  if (asked_ == taken_) {
    asked_ = lane_.words().asked.load(std::memory_order_acquire);
    if (asked_ == taken_) return Step::idle;
    if (asked_ - taken_ > lane_stretches) return Step::refused;
  }
  const std::uint64_t count = std::min<std::uint64_t>(asked_ - taken_, ahead_.size());
  next_ = ahead_.end() - static_cast<std::ptrdiff_t>(count);
  for (std::uint64_t i = 0; i < count; ++i)
    std::memcpy(&next_[static_cast<std::ptrdiff_t>(i)], &lane_.stretch(taken_ + i), sizeof(LaneStretch));
  taken_ += count;
  return Step::moved;
}

/// The region, pinned; null: it may not be read.
const LocalRegion* RelayServer::hold(std::uint32_t region_id) {
  Pinned& held = pinned_[region_id % pinned_.size()];
  const LocalRegion* const region = held.pin.get();
  if (region != nullptr && held.region_id == region_id && !region->gone.load(std::memory_order_acquire))
    return region;
  held.pin.drop();
  held.pin = regions_.pin(region_id);
  held.region_id = region_id;
  if (held.pin.get() == nullptr) lane_.words().refused_region.store(region_id, std::memory_order_release);
  return held.pin.get();
}

/// Whoever deregisters need not wait for us.
void RelayServer::let_go() {
  for (Pinned& held : pinned_) held.pin.drop();
}

void RelayServer::publish() {
  if (published_ == given_) return;
  lane_.words().given.store(given_, std::memory_order_release);
  published_ = given_;
}

/// For room in the ring. False: the reader has been given up.
bool RelayServer::wait() {
  publish();
  patience_.wait();
  if (!patience_.is_long()) return true;
  let_go();
  return patience_.waited_ns() < give_up_ns;
}

/// For the next stretch. False: it is time to leave.
bool RelayServer::linger() {
  publish();
  const std::uint64_t since = now_ns();
  if (since - begun_ns_ > turn_ns) return false;
  for (Patience patience; now_ns() - since < linger_ns; patience.wait())
    if (lane_.words().asked.load(std::memory_order_acquire) != taken_) return true;
  return false;
}

/// Lets the lane be idle, and touches none of its words any more: they are the reader's. If it asks for
/// something in this very moment it finds nobody there, and calls.
void RelayServer::leave() {
  let_go();
  lane_.words().taken_stretches.store(taken_, std::memory_order_release);
  LaneState served = LaneState::served;
  (void)lane_.words().state.compare_exchange_strong(served, LaneState::idle);
}

/// More than any part of a request: somebody asks without end.
bool RelayServer::takes_too_long() const { return now_ns() - begun_ns_ > longest_turn_ns; }

void RelayServer::refuse() {
  let_go();
  lane_.words().state.store(LaneState::refused);
}

}  // namespace headrace::shm
