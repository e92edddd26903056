// SPDX-License-Identifier: Apache-2.0
#include "collectives/far_window.hpp"

#include <algorithm>
#include <cstring>

namespace headrace::collectives {
namespace {

constexpr auto ask_again_after = std::chrono::milliseconds(100);
constexpr auto wait_slice = std::chrono::milliseconds(10);

/// Waits for the turn, as for everything else.
Result<std::unique_lock<std::mutex>> take_turn(std::mutex& mutex, WindowCall& call) {
  std::unique_lock turn(mutex, std::defer_lock);
  HEADRACE_TRY_VOID(call.until([&]() -> Result<bool> { return turn.try_lock(); }));
  return turn;
}

}  // namespace

FarWindow::~FarWindow() {
  for (Slot& slot : slots_) slot.request = {};  // cancels what was given up
  // A rank that is stopped may hold a request; then the region stays until the agent ends.
  if (staging_.length_bytes != 0)
    static_cast<void>(station_->agent().deregister(staging_.id, std::chrono::seconds(1)));
}

Result<void> FarWindow::open_staging() {
  if (staging_.length_bytes != 0) return {};
  HEADRACE_TRY(region, station_->agent().allocate(slot_count * slot_bytes));
  staging_ = std::move(region);
  for (std::size_t i = 0; i < slot_count; ++i) slots_[i].at = i * slot_bytes;
  return {};
}

Result<void> FarWindow::write(const std::byte* from, std::size_t bytes, std::size_t at_bytes,
                              WindowCall& call) {
  return move(Op::write, bytes, at_bytes, call, [&](Slot& slot, std::size_t done) {
    slot.to = nullptr;
    std::memcpy(memory(slot), from + done, slot.bytes);
  });
}

Result<void> FarWindow::read(std::byte* to, std::size_t bytes, std::size_t at_bytes, WindowCall& call) {
  return move(Op::read, bytes, at_bytes, call, [&](Slot& slot, std::size_t done) { slot.to = to + done; });
}

/// Chunk by chunk: while some are on the wire, the next is copied. `fill` prepares a slot for the chunk that
/// begins so many bytes from the start.
template <class Fill>
Result<void> FarWindow::move(Op op, std::size_t bytes, std::size_t at_bytes, WindowCall& call,
                             const Fill& fill) {
  HEADRACE_TRY(turn, take_turn(moving_, call));
  HEADRACE_TRY_VOID(open_staging());
  const auto run = [&]() -> Result<void> {
    std::size_t next = 0;
    for (std::size_t done = 0; done < bytes; done += slot_bytes) {
      Slot& slot = slots_[next++ % slot_count];
      HEADRACE_TRY_VOID(finish(slot, call));
      slot.bytes = std::min(slot_bytes, bytes - done);
      fill(slot, done);
      HEADRACE_TRY_VOID(post(slot, op, at_bytes + done, call));
    }
    for (Slot& slot : slots_) HEADRACE_TRY_VOID(finish(slot, call));
    return {};
  };
  Result<void> result = run();
  if (result) return result;
  for (Slot& slot : slots_) {
    if (slot.request) slot.request.cancel();
    slot.given_up = true;
  }
  return result;
}

Result<void> FarWindow::post(Slot& slot, Op op, std::size_t at_bytes, WindowCall& call) {
  const UniformPages here{staging_.id, slot.at, slot.bytes, slot.bytes, 1};
  const UniformPages there{address_.elements, at_bytes, slot.bytes, slot.bytes, 1};
  return call.until([&]() -> Result<bool> {
    auto request = station_->agent().post(op, address_.agent, here, there);
    if (!request && request.code() == Code::would_block) return false;
    if (!request) return failure(std::move(request).error(), call);
    slot.request = std::move(*request);
    slot.given_up = false;
    return true;
  });
}

/// Waits until the slot is free, and takes what was read.
Result<void> FarWindow::finish(Slot& slot, WindowCall& call) {
  if (!slot.request) return {};
  const auto is_under_way = [&] {
    const RequestState state = slot.request.state();
    return state == RequestState::posted || state == RequestState::canceling;
  };
  while (is_under_way()) {
    static_cast<void>(slot.request.wait(wait_slice));  // the state says how it ended
    if (is_under_way()) HEADRACE_TRY_VOID(call.look());
  }
  const Request ended = std::exchange(slot.request, {});
  if (std::exchange(slot.given_up, false)) return {};
  if (ended.state() != RequestState::done) return failure(ended.error(), call);
  if (slot.to != nullptr) std::memcpy(slot.to, memory(slot), slot.bytes);
  return {};
}

Error FarWindow::failure(Error error, const WindowCall& call) const {
  if (error.code == Code::peer_lost) return call.gone();
  if (error.code == Code::not_found) return call.unreachable();
  return std::move(error).within(fmt::format("reach rank {}", call.rank()));
}

/// The rank's agent answers nobody who asks for a window that is gone.
Result<void> FarWindow::check_window(const WindowCall& call) const {
  auto there = station_->agent().peer_region(address_.agent, address_.signals);
  if (there) return {};
  return failure(std::move(there).error(), call);
}

Result<std::uint64_t> FarWindow::ask(WindowMailKind kind, std::size_t at_bytes, std::uint64_t value,
                                     WindowCall& call) {
  HEADRACE_TRY(turn, take_turn(asking_, call));
  const WindowMail question{kind, static_cast<std::uint32_t>(address_.my_rank), ++asked_, at_bytes, value};
  Deadline again = Deadline::at_ns(0);
  HEADRACE_TRY_VOID(call.until([&]() -> Result<bool> {
    if (answered_.load(std::memory_order_seq_cst) == question.number) return true;
    if (!again.expired()) return false;
    auto sent = send_question(question, call);
    if (!sent) return std::move(sent).error();
    if (*sent) again = Deadline::after(ask_again_after);
    return false;
  }));
  return value_.load(std::memory_order_relaxed);
}

/// False: there is no room for it now.
Result<bool> FarWindow::send_question(const WindowMail& question, const WindowCall& call) {
  HEADRACE_TRY_VOID(check_window(call));
  const auto sent = notify(question);
  if (!sent && sent.code() != Code::would_block) return failure(sent.error(), call);
  return sent.ok();
}

void FarWindow::answered(const WindowMail& answer) {
  if (answer.number != asked_ || answer.number == answered_) return;  // given up, or asked twice
  value_.store(answer.value, std::memory_order_relaxed);
  answered_.store(answer.number, std::memory_order_seq_cst);
}

void FarWindow::answer(std::uint64_t number, std::uint64_t value) {
  static_cast<void>(
      notify({WindowMailKind::answer, static_cast<std::uint32_t>(address_.my_rank), number, 0, value}));
}

Result<void> FarWindow::notify(const WindowMail& mail) {
  std::string bytes(reinterpret_cast<const char*>(&address_.mailbox), sizeof address_.mailbox);
  bytes.append(reinterpret_cast<const char*>(&mail), sizeof mail);
  return station_->agent().notify(address_.agent, bytes);
}

}  // namespace headrace::collectives
