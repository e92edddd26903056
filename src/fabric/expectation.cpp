// SPDX-License-Identifier: Apache-2.0
#include "fabric/expectation.hpp"

#include "base/clock.hpp"
#include "base/errors.hpp"

#include <unistd.h>

#include <utility>

namespace headrace::fabric {

Status Expectation::wait(Timeout timeout) {
  if (fork_->forked()) return {Code::invalid_argument};
  const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline::never();
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return ended_ || rounds_.load(std::memory_order_relaxed) > taken_; };
  if (deadline.is_never()) {
    changed_.wait(lock, ready);
  } else if (!changed_.wait_until(lock, deadline.time_point(), ready)) {
    return {Code::timed_out};
  }
  if (rounds_.load(std::memory_order_relaxed) <= taken_) return {Code::canceled};
  ++taken_;
  return {};
}

void Expectation::on_reached(std::function<bool()> reached) {
  if (fork_->forked()) return;
  auto next = reached ? std::make_shared<const std::function<bool()>>(std::move(reached)) : nullptr;
  std::unique_lock lock(mutex_);
  reached_.swap(next);
  tell_soon(lock);
}

Result<int> Expectation::event_fd() {
  if (fork_->forked()) return make_error(Code::invalid_argument, "the fabric was opened before a fork");
  const std::lock_guard lock(mutex_);
  if (!bell_) {
    HEADRACE_TRY(made, EventFd::create());
    bell_ = std::move(made);
    const std::uint64_t before = rounds_.load(std::memory_order_relaxed) + (ended_ ? 1 : 0);
    if (before > 0) static_cast<void>(::write(bell_->fd(), &before, sizeof before));
  }
  return bell_->fd();
}

std::function<std::uint64_t()> Expectation::take_remover() {
  if (fork_->forked()) return nullptr;
  const std::lock_guard lock(mutex_);
  return ended_ ? nullptr : std::exchange(remover_, nullptr);
}

bool Expectation::arrived(std::uint64_t amount) {
  std::unique_lock lock(mutex_);
  if (ended_) return false;
  const std::uint64_t sum = rest_ + amount;
  rest_ = sum % each;
  const std::uint64_t full = sum / each;
  if (full == 0) return true;
  rounds_.fetch_add(full, std::memory_order_release);
  raise_flags();
  changed_.notify_all();
  if (bell_) static_cast<void>(::write(bell_->fd(), &full, sizeof full));
  tell_soon(lock);
  return true;
}

std::uint64_t Expectation::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  raise_flags();
  changed_.notify_all();
  if (bell_) bell_->signal();
  return rest_;
}

// ------------------------------------------------------------------ flags

Result<std::shared_ptr<const HeldFlag>> Expectation::flag(const FabricFlagPlace& place) {
  if (fork_->forked()) return make_error(Code::invalid_argument, "the fabric was opened before a fork");
  HEADRACE_TRY(made, flags_made_by_->make(place));
  const std::lock_guard lock(mutex_);
  if (ended_)
    return make_error(Code::invalid_argument,
                      "the expectation was removed, or the fabric is closed: expect the immediate again");
  HEADRACE_TRY_VOID(made->raise_to(rounds_.load(std::memory_order_relaxed)));
  flags_.push_back(made.get());
  return std::make_shared<const HeldFlag>(shared_from_this(), std::move(made));
}

/// With the lock, so that they grow in order. A flag that fails is told once, and grows no more.
void Expectation::raise_flags() {
  const std::uint64_t value =
      rounds_.load(std::memory_order_relaxed) | (ended_ ? FabricFlag::ended : std::uint64_t{0});
  std::erase_if(flags_, [&](Flag* flag) {
    auto raised = flag->raise_to(value);
    if (raised) return false;
    callbacks_->tell(std::move(raised).error().within(
        fmt::format("flag of immediate {}, which grows no more", immediate.value)));
    return true;
  });
}

void Expectation::drop(const Flag& flag) {
  const std::lock_guard lock(mutex_);
  std::erase(flags_, &flag);
}

HeldFlag::~HeldFlag() {
  if (expectation_->fork_->forked()) {
    // NOLINTNEXTLINE(bugprone-unused-return-value): GPUs and their memory are the parent's
    static_cast<void>(flag_.release());
    return;
  }
  expectation_->drop(*flag_);
}

/// Queues one call of the callback, if none is queued and a round is full. Releases the lock.
void Expectation::tell_soon(std::unique_lock<std::mutex>& lock) {
  const bool tells = reached_ != nullptr && told_ < rounds_.load(std::memory_order_relaxed) &&
                     !std::exchange(telling_, true);
  lock.unlock();
  if (tells) callbacks_->push([self = shared_from_this()] { self->tell(); });
}

void Expectation::tell() {
  std::unique_lock lock(mutex_);
  while (reached_ != nullptr && told_ < rounds_.load(std::memory_order_relaxed)) {
    ++told_;
    auto reached = reached_;
    lock.unlock();
    bool again = true;  // also if it throws: that is told to on_error, and all goes on
    callbacks_->run([&] { again = (*reached)(); });
    lock.lock();
    if (!again && reached_ == reached) reached_.reset();
    lock.unlock();
    reached.reset();  // what it holds may end the fabric
    lock.lock();
  }
  telling_ = false;
}

}  // namespace headrace::fabric
