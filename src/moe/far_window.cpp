// SPDX-License-Identifier: Apache-2.0
#include "moe/far_window.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

namespace headrace::moe {
namespace {

/// A post carries at least so many bytes of slots, if there are as many.
constexpr std::uint64_t least_post_bytes = 256 << 10;
/// An operation has about so many posts to a rank at most. So what all ranks may have on their way to one,
/// which has taken none of it, is less than a fabric keeps: 16384.
constexpr std::uint64_t most_posts = 32;

std::uint64_t slots_of_post(std::uint64_t slots, std::uint64_t bytes) {
  return round_up(std::max((least_post_bytes + bytes - 1) / bytes, (slots + most_posts - 1) / most_posts),
                  chunk_slots);
}

}  // namespace

FarWindow::FarWindow(Fabric& fabric, const Place& place) : fabric_(fabric), place_(place) {
  const WindowLayout& layout = place_.layout;
  for (std::uint64_t half = 0; half < halves; ++half) {
    parts_[half] = {layout.card_at(half, place_.by), layout.dispatch_part_bytes(), 0};
    parts_[halves + half] = {layout.partial_flag_at(half, place_.by, 0), layout.combine_part_bytes(), 0};
    parts_[2 * halves + half] = {place_.relay.card_at(half, place_.node), place_.relay.part_bytes(), 0};
  }
  std::uint64_t mirrored = 0;
  for (Part& part : parts_) part.mirrored = std::exchange(mirrored, mirrored + part.bytes);
}

Result<std::unique_ptr<FarWindow>> FarWindow::make(Fabric& fabric, const Place& place) {
  std::unique_ptr<FarWindow> made(new FarWindow(fabric, place));
  made->messages_at_ = made->parts_.back().mirrored + made->parts_.back().bytes;
  const std::size_t bytes = made->messages_at_ + messages * sizeof(MeetingMessage);
  made->mirror_.reset(static_cast<std::byte*>(std::calloc(bytes, 1)));
  if (made->mirror_ == nullptr)
    return make_error(Code::exhausted, "no memory for {} bytes that travel to another node", bytes);
  HEADRACE_TRY(memory, fabric.register_memory({.address = made->mirror_.get(), .length_bytes = bytes}));
  made->memory_ = std::move(memory);
  return made;
}

std::uint64_t FarWindow::mirrored(std::uint64_t offset) const {
  for (const Part& part : parts_)
    if (offset - part.offset < part.bytes) return part.mirrored + (offset - part.offset);
  std::abort();  // no part of this rank
}

void FarWindow::tell_card(std::uint64_t epoch) {
  const WindowLayout& layout = place_.layout;
  const std::uint64_t at = layout.card_at(epoch, place_.by) + offsetof(CardHead, records);
  const std::uint64_t end = layout.counts_at(epoch, place_.by) + layout.experts * sizeof(std::uint32_t);
  post({epoch, 0, 0}, Signal::Kind::card, at, end - at);
}

void FarWindow::tell_records(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) {
  tell({Signal::Kind::records, epoch, begin, end});
}

void FarWindow::tell_relay_records(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) {
  tell({Signal::Kind::relay_records, epoch, begin, end});
}

void FarWindow::tell_partials(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) {
  tell({Signal::Kind::partials, epoch, begin, end});
}

void FarWindow::tell_missing(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint64_t most = (std::uint64_t{1} << Chunks::count_bits) - 1;
  for (std::uint64_t first = chunk_of(begin); first < chunks_of(end); first += most)
    signal(Signal::Kind::missing, Chunks{epoch, first, std::min(most, chunks_of(end) - first)}.payload());
}

FarWindow::Slots FarWindow::slots_of(Signal::Kind kind, std::uint64_t epoch) const {
  const WindowLayout& layout = place_.layout;
  switch (kind) {
    case Signal::Kind::partials:
      return {layout.partial_at(epoch, place_.by, 0), layout.partial_bytes, layout.group_slots()};
    case Signal::Kind::relay_records:
      return {place_.relay.slot_at(epoch, place_.node, 0), place_.relay.record_bytes(), layout.slots};
    default:
      return {layout.slot_at(epoch, place_.by, 0), layout.record.bytes(), layout.slots};
  }
}

void FarWindow::tell(const Waiting& slots) {
  const bool follows = waiting_.begin != waiting_.end && waiting_.end == slots.begin &&
                       waiting_.epoch == slots.epoch && waiting_.kind == slots.kind;
  if (follows) {
    waiting_.end = slots.end;
  } else {
    flush();
    waiting_ = slots;
  }
  const Slots all = slots_of(slots.kind, slots.epoch);
  if (waiting_.end - waiting_.begin >= slots_of_post(all.count, all.bytes_each)) flush();
}

void FarWindow::flush() {
  const Waiting slots = std::exchange(waiting_, {});
  if (slots.begin == slots.end) return;
  const Slots all = slots_of(slots.kind, slots.epoch);
  const std::uint64_t first = chunk_of(slots.begin);
  post({slots.epoch, first, chunks_of(slots.end) - first}, slots.kind, all.at + slots.begin * all.bytes_each,
       (slots.end - slots.begin) * all.bytes_each);
}

void FarWindow::post(const Chunks& chunks, Signal::Kind kind, std::uint64_t offset, std::uint64_t bytes) {
  const Operation operation = kind == Signal::Kind::partials ? Operation::combine : Operation::dispatch;
  if (auto work = write(offset, bytes, {kind, place_.by, chunks.payload()}))
    works(operation, chunks.epoch).push_back(std::move(work));
}

void FarWindow::signal(Signal::Kind kind, std::uint64_t payload) {
  auto work = write(parts_.front().offset, 0, {kind, place_.by, payload});
  const std::scoped_lock lock(mutex_);
  while (!signals_.empty() && signals_.front().state() != RequestState::posted) signals_.pop_front();
  if (work) signals_.push_back(std::move(work));
}

FabricWork FarWindow::write(std::uint64_t offset, std::uint64_t bytes, const Signal& signal) {
  constexpr auto pause = std::chrono::microseconds(100);
  const FabricPost post{.immediate = signal.packed(), .timeout = place_.limit};
  const Deadline deadline = Deadline::after(place_.limit);
  while (true) {
    auto work = fabric_.write(memory_, mirrored(offset), place_.window, offset, bytes, post);
    if (work) {
      watch(*work);
      return std::move(*work);
    }
    if (work.code() != Code::would_block || deadline.expired()) break;
    std::this_thread::sleep_for(pause);
  }
  *broken_ = true;
  return {};
}

void FarWindow::watch(const FabricWork& work) const {
  work.on_done([broken = broken_](Status status) {
    if (!status.ok()) *broken = true;
  });
}

void FarWindow::tell_meeting(const Meeting& meeting) {
  const std::size_t slot = next_message_++ % messages;
  if (sent_[slot]) static_cast<void>(sent_[slot].wait(place_.limit));
  if (broken()) return;
  const MeetingMessage message{place_.by, meeting};
  const std::uint64_t at = messages_at_ + slot * sizeof message;
  std::memcpy(mirror_.get() + at, &message, sizeof message);
  auto sent = fabric_.send(place_.peer, memory_, at, sizeof message, {.timeout = place_.limit});
  if (!sent) {
    *broken_ = true;
    return;
  }
  watch(*sent);
  sent_[slot] = std::move(*sent);
}

bool FarWindow::settle(Operation operation, std::uint64_t epoch, Deadline deadline) {
  std::vector<FabricWork>& posted = works(operation, epoch);
  for (const FabricWork& work : posted)
    if (!work.wait(std::chrono::nanoseconds(deadline.remaining_ns())).ok()) return false;
  posted.clear();
  return true;
}

void FarWindow::drain(Deadline deadline) {
  const auto wait = [&](const FabricWork& work) {
    if (!broken()) static_cast<void>(work.wait(std::chrono::nanoseconds(deadline.remaining_ns())));
  };
  for (const auto& of_operation : works_)
    for (const auto& posted : of_operation) std::ranges::for_each(posted, wait);
  std::deque<FabricWork> signals;
  {
    const std::scoped_lock lock(mutex_);
    signals.swap(signals_);
  }
  std::ranges::for_each(signals, wait);
}

bool FarWindow::clear(Deadline deadline) {
  drain(deadline);
  const auto has_ended = [](const FabricWork& work) { return work.state() == RequestState::done; };
  bool all = !broken();
  for (auto& of_operation : works_)
    for (auto& posted : of_operation) {
      all = all && std::ranges::all_of(posted, has_ended);
      posted.clear();
    }
  waiting_ = {};
  return all;
}

Result<void> FarWindow::reach(Deadline deadline, const std::function<bool()>& interrupted) {
  constexpr std::uint64_t bytes = 8;
  constexpr auto look = std::chrono::milliseconds(100);
  HEADRACE_TRY(work, fabric_.read(memory_, 0, place_.window, WindowLayout::config_at, bytes,
                                  {.timeout = std::chrono::nanoseconds(deadline.remaining_ns())}));
  while (work.wait(look).code == Code::timed_out && work.state() == RequestState::posted) {
    if (!interrupted || !interrupted()) continue;
    work.cancel();
    static_cast<void>(work.wait());
    return make_error(Code::canceled, "it was interrupted by its caller");
  }
  const Status done = work.wait();
  if (done.ok()) return {};
  return work.error();
}

}  // namespace headrace::moe
