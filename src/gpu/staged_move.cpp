// SPDX-License-Identifier: Apache-2.0
#include "gpu/staged_move.hpp"

#include "memory/faultless_copy.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

namespace headrace::gpu {
namespace {

// A slot takes the GPU some 40 us. A sleep of the system takes longer than that, so a thread looks for a
// while before it sleeps, and asks the driver for a fault only then.
constexpr int looks_before_sleep = 20'000;
constexpr auto sleep_between_looks = std::chrono::microseconds(50);
constexpr int sleeps_before_asking = 100;

Error gone() {
  return make_error(Code::backend_failed,
                    "registered host memory is read-only, or was unmapped: deregister memory before it goes");
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

StagedMove::StagedMove(Staging& staging, const WorkingGpu& gpu, const headrace_prepare_v1& args,
                       HostAddressOf local, AddressOf remote)
    : staging_(staging), gpu_(gpu), args_(args), local_(std::move(local)), remote_(std::move(remote)) {
  for (std::uint32_t i = 0; i < args.remote->region_count; ++i)
    remote_numbers_.emplace(args.remote->regions[i], i);
  for (PagePosition at; at.page < args.count; at = position_at_byte(args_, staging.slot_bytes(), at))
    cuts_.push_back(at);
  cuts_.push_back({args.count, 0});
}

Result<void> StagedMove::post() {
  next_.store(0);
  failed_.store(false);
  {
    const std::scoped_lock lock(mutex_);
    why_.reset();
  }
  const std::size_t threads = std::min(cuts_.size() - 1, staging_.width());
  at_work_.store(threads);
  std::size_t begun = 0;
  while (begun < threads && staging_.submit(shared_from_this())) ++begun;
  if (begun < threads) at_work_.fetch_sub(threads - begun, std::memory_order_acq_rel);
  if (begun > 0 || threads == 0) return {};
  return make_error(Code::exhausted,
                    "the pool for large host copies takes no more work: wait for other posts");
}

Result<void> StagedMove::outcome() const {
  const std::scoped_lock lock(mutex_);
  if (why_) return *why_;
  return {};
}

void StagedMove::note(Error why) {
  const std::scoped_lock lock(mutex_);
  if (!why_) why_ = std::move(why);
  failed_.store(true);
}

void StagedMove::refused(Error why) {
  note(std::move(why));
  leave();
}

void StagedMove::run(const Staging::Lane& lane) {
  std::array<Piece, Staging::slots_a_lane> pieces;
  const ContextGuard current(*gpu_.device);
  for (std::size_t turn = 0; !failed_.load(); turn = 1 - turn) {
    if (auto ended = end(pieces[turn], lane.slot(turn)); !ended) note(std::move(ended).error());
    const std::size_t number = next_.fetch_add(1);
    if (number >= cuts_.size() - 1 || failed_.load()) break;
    if (auto begun = begin(pieces[turn], number, lane, turn); !begun) note(std::move(begun).error());
  }
  // Also after a failure: what a GPU has begun is not left behind.
  for (std::size_t slot = 0; slot < pieces.size(); ++slot)
    if (auto ended = end(pieces[slot], lane.slot(slot)); !ended) note(std::move(ended).error());
  leave();
}

void StagedMove::list(Piece& piece, std::size_t number) const {
  piece.hosts.clear();
  piece.slots.clear();
  piece.remotes.clear();
  piece.lengths.clear();
  piece.remote_of.clear();
  std::uint64_t at = 0;
  PageCursor cursor(args_, cuts_[number], cuts_[number + 1]);
  for (PageRun run; cursor.next(run); at += run.bytes) {
    piece.hosts.push_back({local_(run.local_region) + run.local_offset, run.bytes});
    piece.slots.push_back(at);
    piece.remotes.push_back(run.remote_offset);
    piece.lengths.push_back(run.bytes);
    piece.remote_of.push_back(remote_numbers_.at(run.remote_region));
  }
}

Result<void> StagedMove::begin(Piece& piece, std::size_t number, const Staging::Lane& lane,
                               std::size_t slot) {
  list(piece, number);
  const std::uint64_t count = piece.lengths.size();
  if (args_.op == HEADRACE_WRITE && !gather_unless_it_faults(lane.slot(slot), piece.hosts)) return gone();
  void* the_slot = lane.slot(slot);
  headrace_side_v1 here{}, there{};
  here.struct_size = there.struct_size = sizeof here;
  here.regions = &the_slot;
  here.region_count = 1;
  here.columns.offsets = piece.slots.data();
  there.regions = args_.remote->regions;
  there.region_count = args_.remote->region_count;
  there.columns.region_of = piece.remote_of.data();
  there.columns.offsets = piece.remotes.data();
  here.columns.lengths = there.columns.lengths = piece.lengths.data();
  headrace_prepare_v1 args{};
  args.struct_size = sizeof args;
  args.op = args_.op;
  args.count = count;
  args.bytes = piece.slots.back() + piece.lengths.back();
  args.local = &here;
  args.remote = &there;
  HEADRACE_TRY(move,
               PreparedMove::prepare(
                   gpu_.mover, args, [&](void*) { return lane.address(slot); }, remote_, Touches::host));
  piece.move.emplace(std::move(move));
  if (auto begun = piece.move->post(gpu_.stream.handle()); !begun) {
    piece.move.reset();
    return begun;
  }
  return {};
}

Result<void> StagedMove::end(Piece& piece, std::byte* slot) const {
  if (!piece.move) return {};
  auto done = await(*piece.move);
  piece.move.reset();
  if (!done) return done;
  if (args_.op == HEADRACE_READ && !scatter_unless_it_faults(piece.hosts, slot)) return gone();
  return {};
}

Result<void> StagedMove::await(const PreparedMove& move) const {
  for (int look = 0; look < looks_before_sleep; ++look) {
    if (move.poll_done()) return {};
    relax();
  }
  for (int sleeps = 1; !move.poll_done(); ++sleeps) {
    std::this_thread::sleep_for(sleep_between_looks);
    if (sleeps % sleeps_before_asking != 0) continue;
    if (const auto idle = gpu_.stream.poll_idle(); !idle && !move.poll_done()) return idle.error();
  }
  return {};
}

}  // namespace headrace::gpu
