// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/lanes/lane_server.hpp"

#include "base/clock.hpp"
#include "memory/page_copy.hpp"

#include <algorithm>
#include <cstring>

#if defined(HEADRACE_THREAD_SANITIZER)
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);  // of the sanitizer's own library
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace headrace::shm {
namespace {

constexpr std::uint64_t linger_ns = 50'000;   // for the next runs of a request
constexpr std::uint64_t turn_ns = 5'000'000;  // then the pool's other tasks get the thread
constexpr std::uint64_t longest_turn_ns = 1'000'000'000;
constexpr std::uint64_t check_ns = 1'000'000;

/// Copies what a peer asked for, and fetches `next` meanwhile. Our threads change that memory when the peer
/// has told them, by way of its own process, that it has its bytes. The thread sanitizer does not see that
/// order, as it does not see what attach reads. (A fault ends its ignoring as well.)
void copy_for_peer(std::byte* to, const std::byte* from, std::size_t bytes,
                   std::span<const std::byte> next) noexcept {
#if defined(HEADRACE_THREAD_SANITIZER)
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  copy_and_fetch(to, from, bytes, next);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#else
  copy_and_fetch(to, from, bytes, next);
#endif
}

}  // namespace

bool LaneServer::begin() {
  LaneWords& words = lane_.words();
  LaneState called = LaneState::called;
  if (!words.state.compare_exchange_strong(called, LaneState::served)) return false;
  taken_ = words.taken_runs.load(std::memory_order_acquire);
  given_ = published_ = words.given.load(std::memory_order_acquire);
  consumed_ = words.consumed.load(std::memory_order_acquire);
  if (given_ - consumed_ > lane_ring_bytes)
    consumed_ = given_ - lane_ring_bytes;  // a lie: refused when the ring has no room
  asked_ = taken_;
  begun_ns_ = checked_ns_ = now_ns();
  return true;
}

/// Copies chunks until one side has to wait, or it is time for a look.
LaneServer::Step LaneServer::move() {
  const bool whole = guard_.run([](void* self) { static_cast<LaneServer*>(self)->move_chunks(); }, this);
  return whole ? last_ : lost();
}

/// For the guard: no object of this function or of those that it calls has a destructor while bytes are
/// copied.
void LaneServer::move_chunks() {
  do last_ = step();
  while (last_ == Step::moved && ++moved_ % chunks_a_look != 0);
}

/// A copy has faulted: the program has unmapped memory of the region. No reader gets at it through a lane any
/// more; attach tells the reader the page.
LaneServer::Step LaneServer::lost() {
  regions_.withdraw(at_.region_id);
  lane_.words().refused_region.store(at_.region_id, std::memory_order_release);
  return Step::refused;
}

/// Copies one chunk.
LaneServer::Step LaneServer::step() {
  if (at_.bytes == 0)
    if (const Step next = next_run(); next != Step::moved) return next;
  const std::uint64_t bytes = std::min(at_.bytes, lane_chunk_bytes);
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
  if (given_ - published_ >= lane_publish_bytes) publish();
  patience_ = {};
  return Step::moved;
}

/// Takes up the next run.
LaneServer::Step LaneServer::next_run() {
  if (next_ == ahead_.end())
    if (const Step read = read_ahead(); read != Step::moved) return read;
  at_ = *next_++;
  const LocalRegion* const region = hold(at_.region_id);
  if (region == nullptr || at_.bytes == 0 || at_.offset > region->length_bytes ||
      at_.bytes > region->length_bytes - at_.offset) {
    return Step::refused;
  }
  guard_.watch({region->base + at_.offset, at_.bytes});
  prefetch_translation(bytes_to_come(1));
  return Step::moved;
}

/// The next run, or one so many after it, if we hold its region, as we mostly do; else none.
std::span<const std::byte> LaneServer::bytes_to_come(std::ptrdiff_t after) const {
  if (ahead_.end() - next_ <= after) return {};
  const LaneRun& run = next_[after];
  const LocalRegion* const region = pinned_[run.region_id % pinned_.size()].pin.get();
  if (region == nullptr || run.offset >= region->length_bytes) return {};
  return {region->base + run.offset, std::min(run.bytes, region->length_bytes - run.offset)};
}

/// Copies the reader's runs: we read each once, because the reader could change it. Many at a time, because
/// each cache line comes from the other core.
LaneServer::Step LaneServer::read_ahead() {
  if (asked_ == taken_) {
    asked_ = lane_.words().asked.load(std::memory_order_acquire);
    if (asked_ == taken_) return Step::idle;
    if (asked_ - taken_ > lane_runs) return Step::refused;
  }
  const std::uint64_t count = std::min<std::uint64_t>(asked_ - taken_, ahead_.size());
  next_ = ahead_.end() - static_cast<std::ptrdiff_t>(count);
  for (std::uint64_t i = 0; i < count; ++i)
    std::memcpy(&next_[static_cast<std::ptrdiff_t>(i)], &lane_.run(taken_ + i), sizeof(LaneRun));
  taken_ += count;
  return Step::moved;
}

/// The region, pinned; null: it is not served.
const LocalRegion* LaneServer::hold(std::uint32_t region_id) {
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

/// A thread that deregisters a region does not wait for this one any longer.
void LaneServer::let_go() {
  for (Pinned& held : pinned_) held.pin.drop();
}

void LaneServer::publish() {
  if (published_ == given_) return;
  lane_.words().given.store(given_, std::memory_order_release);
  published_ = given_;
}

/// For room in the ring. False: the reader is given up.
bool LaneServer::wait() {
  publish();
  patience_.wait();
  if (!patience_.is_long()) return true;
  let_go();
  return patience_.waited_ns() < give_up_ns_;
}

/// For the next run. False: it is time to leave.
bool LaneServer::linger() {
  publish();
  const std::uint64_t since = now_ns();
  if (since - begun_ns_ > turn_ns) return false;
  for (Patience patience; now_ns() - since < linger_ns; patience.wait())
    if (lane_.words().asked.load(std::memory_order_acquire) != taken_) return true;
  return false;
}

/// Makes the lane idle. From then on its words are the reader's. A reader that asks for runs at this moment
/// finds the lane idle, and calls.
void LaneServer::leave() {
  let_go();
  lane_.words().taken_runs.store(taken_, std::memory_order_release);
  LaneState served = LaneState::served;
  (void)lane_.words().state.compare_exchange_strong(served, LaneState::idle);
}

/// False: the reader asks without end, or the program has replaced our handlers.
bool LaneServer::may_go_on() {
  const std::uint64_t now = now_ns();
  if (now - begun_ns_ > longest_turn_ns) return false;  // no request takes so long
  if (now - checked_ns_ < check_ns) return true;
  checked_ns_ = now;
  return FaultGuard::in_place();
}

void LaneServer::refuse() {
  let_go();
  lane_.words().state.store(LaneState::refused);
}

}  // namespace headrace::shm
