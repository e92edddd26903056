// SPDX-License-Identifier: Apache-2.0
// Posts: what is checked before a byte leaves.
#include "fabric/core.hpp"
#include "fabric/peer_group.hpp"
#include "telemetry/nvtx.hpp"

#include <algorithm>
#include <utility>

namespace headrace::fabric {
namespace {

constexpr const char* verb(headrace_op_v1 op) { return op == HEADRACE_WRITE ? "write" : "read"; }

Result<void> check_peer(const FabricDescriptor& there, headrace_op_v1 op) {
  if (!there)
    return make_error(Code::invalid_argument, "the descriptor is empty: take that of a peer's memory");
  if (op == HEADRACE_WRITE && there.access() != FabricAccess::writable)
    return make_error(Code::invalid_argument,
                      "the peer's memory is not writable: its owner has to register it as writable");
  return {};
}

Result<void> check_range(std::uint64_t offset, std::uint64_t bytes, std::uint64_t memory_bytes,
                         std::string_view side) {
  if (offset <= memory_bytes && bytes <= memory_bytes - offset) return {};
  return make_error(Code::invalid_argument, "{} bytes from byte {} on of the {}, whose memory has {}", bytes,
                    offset, side, memory_bytes);
}

Result<void> check_immediate(const FabricPost& post) {
  if (!post.immediate || post.immediate->scope < Expectations::barrier_scope) return {};
  return make_error(Code::invalid_argument, "scope {} of the immediate is above {}", post.immediate->scope,
                    Expectations::barrier_scope - 1);
}

/// Which side the pages of the memory here are on, and there.
std::pair<const char*, const char*> sides(headrace_op_v1 op) {
  return op == HEADRACE_WRITE ? std::pair{"source", "target"} : std::pair{"target", "source"};
}

/// The places of the cards to other hosts; without one, of all that are used.
std::vector<std::uint32_t> cards_of(const FabricGroup& group) {
  std::vector<std::uint32_t> cards, all;
  for (std::uint32_t nic = 0; nic < group.nics.size(); ++nic) {
    if (group.nics[nic].provider.empty()) continue;
    all.push_back(nic);
    if (group.nics[nic].name != this_host) cards.push_back(nic);
  }
  return cards.empty() ? all : cards;
}

}  // namespace

// ------------------------------------------------------------------ common steps

Result<rail::PostPlan> Core::plan_of(const FabricPost& post, std::size_t group, std::uint64_t pages,
                                     std::optional<std::size_t> target) const {
  HEADRACE_TRY_VOID(check_immediate(post));
  const auto nics = static_cast<std::uint32_t>(
      std::ranges::count_if(groups_[group].nics, [](const FabricNic& nic) { return !nic.provider.empty(); }));
  rail::PostPlan plan;
  if (post.spread == FabricSpread::in_turn) plan.spread = rail::Spread::in_turn;
  if (post.spread == FabricSpread::pinned) {
    if (post.nic >= nics)
      return make_error(Code::invalid_argument, "there is no network card {}: the group has {}", post.nic,
                        nics);
    plan.spread = rail::Spread::pinned;
    plan.pinned_nic = post.nic;
    plan.near_first = target.has_value();
  }
  if (post.spread == FabricSpread::by_peer && target) {
    plan.spread = rail::Spread::pinned;
    const auto cards = cards_of(groups_[group]);
    plan.pinned_nic = cards[*target % cards.size()];
    plan.near_first = true;
  }
  if (!post.immediate) return plan;
  std::uint64_t amount = 1;
  if (post.count_by == FabricCountBy::page) amount = pages;
  if (post.count_by == FabricCountBy::shard) amount = cards_of(groups_[group]).size();
  if (amount == 0) return plan;
  if (amount > UINT32_MAX)
    return make_error(Code::invalid_argument, "{} pages are counted: at most {} of one post are", amount,
                      UINT32_MAX);
  plan.counted = {post.immediate->scope, post.immediate->value, static_cast<std::uint32_t>(amount)};
  return plan;
}

std::shared_ptr<Work> Core::make_work(std::string what, std::uint64_t bytes, std::size_t group,
                                      const FabricPost& post) const {
  Work::Setup setup{std::move(what), bytes, UINT64_MAX, workers_[group], callbacks_, fork_};
  if (post.timeout) setup.deadline_ns = Deadline::after(*post.timeout, *clock_).point_ns();
  return std::make_shared<Work>(std::move(setup));
}

Result<FabricWork> Core::submit(const std::shared_ptr<Work>& work) {
  if (work->setup.worker->take_room()) return push(work);
  work->run.parts.clear();  // they keep the work
  return make_error(Code::would_block,
                    "too many posts of the group have not ended: wait for some, then retry");
}

/// There is room for it.
Result<FabricWork> Core::push(const std::shared_ptr<Work>& work) {
  Worker& worker = *work->setup.worker;
  work->run.range = nvtx::start_range(work->setup.what);
  if (worker.push([work](Carrier& carrier) { carrier.post(work); })) return FabricWork(work);
  work->run.parts.clear();
  nvtx::end_range(work->run.range);
  worker.give_back();
  return make_error(Code::canceled, "the fabric was closed meanwhile");
}

// ------------------------------------------------------------------ ranges and pages

Result<Part::Setup> Core::range_part(const Ranges& ranges) const {
  HEADRACE_TRY(here, own(ranges.here));
  HEADRACE_TRY_VOID(check_peer(ranges.there, ranges.op));
  if (ranges.op == HEADRACE_READ && !here->writable)
    return make_error(Code::invalid_argument,
                      "a read fills the memory, which was registered as not writable");
  const auto [here_side, there_side] = sides(ranges.op);
  HEADRACE_TRY_VOID(check_range(ranges.here_offset, ranges.bytes, here->region.memory.bytes, here_side));
  HEADRACE_TRY_VOID(check_range(ranges.there_offset, ranges.bytes, ranges.there.length_bytes(), there_side));
  return Part::Setup{Part::Kind::move,
                     ranges.op,
                     std::move(here),
                     ranges.there.parts_,
                     ranges.there.parts_->owner,
                     {{}, ranges.here_offset, ranges.bytes},
                     {{}, ranges.there_offset, ranges.bytes},
                     ranges.bytes,
                     1,
                     {}};
}

Result<FabricWork> Core::move(const Ranges& ranges, const FabricPost& post) {
  HEADRACE_TRY(part, range_part(ranges));
  HEADRACE_TRY(plan, plan_of(post, part.here->group, 1));
  part.plan = plan;
  auto work = make_work(fmt::format("{} of {} bytes", verb(ranges.op), ranges.bytes), ranges.bytes,
                        part.here->group, post);
  work->run.parts.push_back(std::make_shared<Part>(work, std::move(part)));
  return submit(work);
}

Result<FabricWork> Core::move_pages(const Pages& pages, const FabricPost& post) {
  HEADRACE_TRY(part, range_part({pages.op, pages.here, 0, pages.there, 0, 0}));
  const auto [here_side, there_side] = sides(pages.op);
  HEADRACE_TRY(here_rows, read_rows(pages.here_pages, pages.page_bytes, pages.count,
                                    part.here->region.memory.bytes, here_side));
  HEADRACE_TRY(there_rows, read_rows(pages.there_pages, pages.page_bytes, pages.count,
                                     pages.there.length_bytes(), there_side));
  if (pages.page_bytes != 0 && pages.count > UINT64_MAX / pages.page_bytes)
    return make_error(Code::invalid_argument, "{} pages of {} bytes are more than 2^64 bytes", pages.count,
                      pages.page_bytes);
  HEADRACE_TRY(plan, plan_of(post, part.here->group, pages.count));
  part.here_rows = std::move(here_rows);
  part.there_rows = std::move(there_rows);
  part.page_bytes = pages.page_bytes;
  part.count = pages.count;
  part.plan = plan;
  auto work =
      make_work(fmt::format("{} of {} pages of {} bytes", verb(pages.op), pages.count, pages.page_bytes),
                pages.count * pages.page_bytes, part.here->group, post);
  work->run.parts.push_back(std::make_shared<Part>(work, std::move(part)));
  return submit(work);
}

Result<FabricWork> Core::scatter(const FabricMemory& from, std::span<const FabricTarget> targets,
                                 const FabricPost& post) {
  HEADRACE_TRY(here, own(from));
  if (targets.empty()) return make_error(Code::invalid_argument, "a scatter has at least one target");
  std::vector<Part::Setup> parts;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const FabricTarget& target = targets[i];
    auto part =
        range_part({HEADRACE_WRITE, from, target.from_offset, target.to, target.to_offset, target.bytes});
    if (!part) return std::move(part.error()).within(fmt::format("target {}", i));
    HEADRACE_TRY(plan, plan_of(post, here->group, 1, i));
    part->plan = plan;
    bytes += target.bytes;
    parts.push_back(std::move(*part));
  }
  auto work = make_work(fmt::format("scatter of {} bytes to {} targets", bytes, targets.size()), bytes,
                        here->group, post);
  for (Part::Setup& part : parts) work->run.parts.push_back(std::make_shared<Part>(work, std::move(part)));
  return submit(work);
}

// ------------------------------------------------------------------ immediates alone

Result<FabricWork> Core::post_immediate(const FabricPeer& peer, Immediate immediate, const FabricPost& post) {
  HEADRACE_TRY_VOID(usable());
  if (!peer) return make_error(Code::invalid_argument, "the peer is empty: connect to one");
  FabricPost counted = post;
  counted.immediate = immediate;
  HEADRACE_TRY(plan, plan_of(counted, 0, 1));
  auto work = make_work(fmt::format("immediate {}", immediate.value), 0, 0, post);
  Part::Setup part;
  part.owner = peer.address().parts_->groups.front();
  part.plan = plan;
  work->run.parts.push_back(std::make_shared<Part>(work, std::move(part)));
  return submit(work);
}

Result<FabricWork> Core::barrier(const FabricPeers& peers, std::uint32_t value, const FabricPost& post) {
  HEADRACE_TRY_VOID(usable());
  if (!peers) return make_error(Code::invalid_argument, "the group is empty: make one by peer_group");
  if (peers.group_->core.lock().get() != this)
    return make_error(Code::invalid_argument,
                      "the group of peers is of another fabric: make one by peer_group of this one");
  if (post.immediate)
    return make_error(Code::invalid_argument, "a barrier has its value and takes no other immediate");
  const Immediate told{value, peers.scope() | Expectations::barrier_scope};
  const auto members = peers.members();
  FabricPost unplanned = post;
  unplanned.immediate.reset();
  HEADRACE_TRY(plan, plan_of(unplanned, 0, 0));
  plan.counted = {told.scope, told.value, 1};
  auto work = make_work(fmt::format("barrier {} of {} peers", value, members.size()), 0, 0, post);
  for (const FabricPeer& peer : members) {
    Part::Setup part;
    part.owner = peer.address().parts_->groups.front();
    part.plan = plan;
    work->run.parts.push_back(std::make_shared<Part>(work, std::move(part)));
  }
  work->run.waits_for_peers = !members.empty();
  HEADRACE_TRY(take, expectations_->take(told, members.size(), [weak = std::weak_ptr(work)] {
    const auto waiting = weak.lock();
    if (waiting == nullptr) return;
    static_cast<void>(
        waiting->setup.worker->push([waiting](Carrier& carrier) { carrier.peers_have_told(*waiting); }));
  }));
  work->run.when_over = [expectations = expectations_, take] { expectations->give_up(take); };
  auto submitted = submit(work);
  if (!submitted) expectations_->give_up(take);
  return submitted;
}

// ------------------------------------------------------------------ messages

Result<std::shared_ptr<Work>> Core::make_message(Part::Setup part, const Room& room, const FabricPost& post) {
  HEADRACE_TRY(here, own(room.memory));
  const bool sends = part.kind == Part::Kind::send;
  if (post.immediate)
    return make_error(Code::invalid_argument, "a message has no immediate: it is received, not counted");
  if (here->group != 0)
    return make_error(Code::invalid_argument, "messages use memory of the first group, this is of group {}",
                      here->group);
  if (!sends && !here->writable)
    return make_error(Code::invalid_argument,
                      "a receive fills the memory, which was registered as not writable");
  HEADRACE_TRY_VOID(
      check_range(room.offset, room.bytes, here->region.memory.bytes, sends ? "source" : "target"));
  if (here->region.memory.device && (room.bytes > 0 || !sends)) {
    using enum StagedMessage::Way;
    HEADRACE_TRY(staged, stage(*here, room, sends ? out_of_gpu : into_gpu));
    part.staged = std::move(staged);
  }
  part.here = std::move(here);
  part.here_rows.base = room.offset;
  part.page_bytes = room.bytes;
  auto work = make_work(fmt::format("{} {} bytes", sends ? "message of" : "receive of up to", room.bytes),
                        room.bytes, 0, post);
  work->run.parts.push_back(std::make_shared<Part>(work, std::move(part)));
  return work;
}

Result<std::shared_ptr<const gpu::Stream>> Core::copy_stream(
    const std::shared_ptr<const gpu::Device>& device) {
  const std::lock_guard lock(copy_streams_mutex_);
  auto& stream = copy_streams_[device->ordinal()];
  if (stream == nullptr) {
    HEADRACE_TRY(made, gpu::Stream::make(device, gpu::Priority::high));
    stream = std::make_shared<const gpu::Stream>(std::move(made));
  }
  return stream;
}

/// A send takes its host memory when its turn comes.
Result<std::shared_ptr<StagedMessage>> Core::stage(const Memory& here, const Room& room,
                                                   StagedMessage::Way way) {
  const rail::Memory& memory = here.region.memory;
  HEADRACE_TRY(device, flags_->open_gpu(*memory.device));
  HEADRACE_TRY(stream, copy_stream(device));
  HEADRACE_TRY(staged, StagedMessage::make(
                           {way, std::move(stream), here.identity, memory.address + room.offset, room.bytes},
                           std::move(device)));
  if (staged->goes_out()) return staged;
  HEADRACE_TRY_VOID(staged->take_memory());
  HEADRACE_TRY(region, workers_[here.group]->carrier().register_memory(staged->region.memory));
  staged->region = std::move(region);
  return staged;
}

Result<FabricWork> Core::send(const FabricPeer& peer, const Room& from, const FabricPost& post) {
  HEADRACE_TRY_VOID(usable());
  if (!peer) return make_error(Code::invalid_argument, "the peer is empty: connect to one");
  Part::Setup part;
  part.kind = Part::Kind::send;
  part.owner = peer.address().parts_->groups.front();
  HEADRACE_TRY(work, make_message(std::move(part), from, post));
  return submit(work);
}

Result<FabricWork> Core::receive(const Room& to, const FabricPost& post) {
  Part::Setup part;
  part.kind = Part::Kind::receive;
  HEADRACE_TRY(work, make_message(std::move(part), to, post));
  const auto staged = work->run.parts.front()->setup.staged;
  auto submitted = submit(work);
  if (!submitted && staged != nullptr) workers_.front()->carrier().deregister(staged->region);
  return submitted;
}

Result<FabricWork> Core::receive_again(const Room& to) {
  Part::Setup part;
  part.kind = Part::Kind::receive;
  HEADRACE_TRY(work, make_message(std::move(part), to, {}));
  work->setup.worker->take_own_room();
  return push(work);
}

}  // namespace headrace::fabric
