// SPDX-License-Identifier: Apache-2.0
#include "fabric/watchers.hpp"

#include "base/errors.hpp"

#include <utility>

namespace headrace::fabric {

// ------------------------------------------------------------------ one word

void Watcher::set(std::uint64_t now) {
  {
    const std::lock_guard lock(mutex_);
    now_ = now;
    if (changed_ == nullptr || std::exchange(telling_, true)) return;
  }
  callbacks_->push([self = shared_from_this()] { self->tell(); });
}

void Watcher::stop() {
  std::shared_ptr<const Changed> ending;
  {
    const std::lock_guard lock(mutex_);
    ending.swap(changed_);
    active_.store(false, std::memory_order_release);
  }
  // What it holds may end the fabric, so that its end is a call of its own.
  if (ending != nullptr) callbacks_->push([ending = std::move(ending)] {});
}

/// One call, so that a word that changes all the time leaves turns to other callbacks.
void Watcher::tell() {
  std::unique_lock lock(mutex_);
  if (changed_ != nullptr && told_ != now_) {
    const std::uint64_t before = std::exchange(told_, now_);
    const std::uint64_t now = told_;
    auto changed = changed_;
    lock.unlock();
    bool again = true;  // also if it throws: that is told to on_error, and all goes on
    callbacks_->run([&] { again = (*changed)(before, now); });
    if (!again) stop();
    changed.reset();
    lock.lock();
  }
  telling_ = changed_ != nullptr && told_ != now_;
  const bool tells = telling_;
  lock.unlock();
  if (tells) callbacks_->push([self = shared_from_this()] { self->tell(); });
}

// ------------------------------------------------------------------ all of them

Result<std::shared_ptr<Watchers>> Watchers::make(const std::shared_ptr<const gpu::Device>& device,
                                                 std::shared_ptr<Callbacks> callbacks,
                                                 std::shared_ptr<const ForkGuard> fork) {
  HEADRACE_TRY(block, HostBlock::make(device, most * sizeof(std::uint64_t)));
  return std::shared_ptr<Watchers>(new Watchers(std::move(block), std::move(callbacks), std::move(fork)));
}

Result<std::shared_ptr<const HeldWatcher>> Watchers::add(Changed changed) {
  auto made = std::make_shared<Watcher>(callbacks_, std::move(changed));
  const std::lock_guard lock(mutex_);
  if (closed_) return make_error(Code::invalid_argument, "the fabric is closed: open another");
  const std::size_t number = take_slot();
  if (number == most)
    return make_error(Code::exhausted, "all {} words are watched: stop some, and let their handles go", most);
  slots_[number] = {made, true};
  seen_[number] = 0;
  word(number).store(0, std::memory_order_relaxed);
  return std::make_shared<const HeldWatcher>(shared_from_this(), std::move(made), number);
}

/// `most`: there is none.
std::size_t Watchers::take_slot() {
  if (free_.empty() && slots_.size() < most) {
    slots_.emplace_back();
    return slots_.size() - 1;
  }
  if (free_.empty()) free_unused();
  if (free_.empty()) return most;
  const std::size_t number = free_.back();
  free_.pop_back();
  return number;
}

/// Those that have declined after their handles had gone.
void Watchers::free_unused() {
  for (std::size_t number = 0; number < slots_.size(); ++number) {
    Slot& slot = slots_[number];
    if (slot.watcher == nullptr || slot.held || slot.watcher->active()) continue;
    slot.watcher.reset();
    free_.push_back(number);
  }
}

void Watchers::let_go(std::size_t number) {
  const std::lock_guard lock(mutex_);
  slots_[number].held = false;
  if (slots_[number].watcher->active()) return;
  slots_[number].watcher.reset();
  free_.push_back(number);
}

/// Most words are as they were: one load and one comparison each.
bool Watchers::poll() {
  bool any = false;
  const std::lock_guard lock(mutex_);
  for (std::size_t number = 0; number < slots_.size(); ++number) {
    if (word(number).load(std::memory_order_relaxed) == seen_[number]) continue;
    // What the kernel has written before it is read by the function, and by work that the function begins.
    seen_[number] = word(number).load(std::memory_order_acquire);
    const auto& watcher = slots_[number].watcher;
    if (watcher == nullptr || !watcher->active()) continue;
    watcher->set(seen_[number]);
    any = true;
  }
  return any;
}

void Watchers::begin_close() {
  std::vector<std::shared_ptr<Watcher>> all;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const Slot& slot : slots_)
      if (slot.watcher != nullptr) all.push_back(slot.watcher);
  }
  for (const auto& watcher : all) watcher->stop();
}

}  // namespace headrace::fabric
