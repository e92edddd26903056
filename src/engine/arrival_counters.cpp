// SPDX-License-Identifier: Apache-2.0
#include "engine/arrival_counters.hpp"

#include "base/errors.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace headrace::engine {
std::shared_ptr<ArrivalCount> ArrivalCounters::find(Immediate key) {
  const std::shared_lock lock(mutex_);
  const auto found = entries_.find(packed(key));
  return found != entries_.end() ? found->second.count : nullptr;
}

/// Null: this peer has too many that nobody has opened.
std::shared_ptr<ArrivalCount> ArrivalCounters::find_or_make(Immediate key, std::string_view peer) {
  const std::unique_lock lock(mutex_);
  if (const auto found = entries_.find(packed(key)); found != entries_.end()) return found->second.count;
  std::size_t& unopened = unopened_[std::string(peer)];
  if (unopened == most_unopened) return nullptr;
  ++unopened;
  Entry& entry = entries_[packed(key)];
  entry.peer = peer;
  return entry.count;
}

bool ArrivalCounters::add_known(Immediate key, std::uint64_t amount) {
  const auto count = find(key);
  if (count != nullptr) raise(*count, amount);
  return count != nullptr;
}

void ArrivalCounters::add(Immediate key, std::uint64_t amount, std::string_view peer) {
  if (add_known(key, amount)) return;
  const auto count = find_or_make(key, peer);
  if (count == nullptr) return drop(key, amount, peer);
  raise(*count, amount);
}

void ArrivalCounters::raise(ArrivalCount& count, std::uint64_t amount) {
  // Sequentially consistent, as the store and the load in `watch`: the later of the two sees the other.
  const std::uint64_t value = count.value_.fetch_add(amount) + amount;
  if (value >= count.next_watch_.load()) tell(count, value);
  progress_.event();
}

void ArrivalCounters::drop(Immediate key, std::uint64_t amount, std::string_view peer) {
  dropped_.add(amount);
  if (!drops_.due(progress_.clock().now_ns())) return;
  log_.warn(
      "dropped a count of immediate {} in scope {} from {}: {} immediates that no counter was opened for "
      "have "
      "come from there already",
      key.value, key.scope, peer.empty() ? "this agent" : peer, most_unopened);
}

/// A caller has opened it. `mutex_` is held.
void ArrivalCounters::opened(Entry& entry) {
  const auto at = unopened_.find(entry.peer);
  if (at != unopened_.end() && --at->second == 0) unopened_.erase(at);
  entry.peer.clear();
}

void ArrivalCounters::forget(std::string_view peer) {
  const std::unique_lock lock(mutex_);
  const auto at = unopened_.find(peer);
  if (at == unopened_.end()) return;
  unopened_.erase(at);
  std::erase_if(entries_,
                [&](const auto& entry) { return !entry.second.opened && entry.second.peer == peer; });
}

Result<std::shared_ptr<ArrivalCount>> ArrivalCounters::open(Immediate key) {
  HEADRACE_TRY_VOID(calls_.usable());
  const std::unique_lock lock(mutex_);
  const auto [at, is_new] = entries_.try_emplace(packed(key));
  if (!std::exchange(at->second.opened, true) && !is_new) opened(at->second);
  return at->second.count;
}

Status ArrivalCounters::wait(const ArrivalCount& count, std::uint64_t at_least, Timeout timeout) {
  const auto reached = [&] { return count.value() >= at_least; };
  if (reached()) return {};
  const Call call(calls_);
  if (!call.admitted()) return {calls_.forked() ? Code::invalid_argument : Code::canceled};
  const bool came =
      progress_.wait([&] { return reached() || calls_.closed(); }, progress_.deadline_in(timeout));
  if (reached()) return {};
  return {came ? Code::canceled : Code::timed_out};
}

void ArrivalCounters::on_reached(ArrivalCount& count, std::uint64_t at_least, std::function<void()> reached) {
  ArrivalCount::Watch one;
  one.at_least = at_least;
  one.reached = std::move(reached);
  watch(count, std::move(one));
}

Result<UniqueFd> CounterDescriptor::open() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) < 0)
    return os_error(errno, "make a descriptor for a counter");
  ours_ = UniqueFd(ends[0]);
  return UniqueFd(ends[1]);
}

/// Not by a close alone: a forked child has a copy of our end.
void CounterDescriptor::signal() const noexcept { (void)::shutdown(ours_.get(), SHUT_RDWR); }

bool CounterDescriptor::given_up() const noexcept {
  pollfd ours{ours_.get(), 0, 0};
  return ::poll(&ours, 1, 0) == 1 && (ours.revents & POLLHUP) != 0;
}

Result<int> ArrivalCounters::event_fd(const std::shared_ptr<ArrivalCount>& count, std::uint64_t at_least) {
  HEADRACE_TRY_VOID(calls_.usable());
  ArrivalCount::Watch one;
  one.at_least = at_least;
  HEADRACE_TRY(callers, one.descriptor.open());
  watch(*count, std::move(one));
  descriptor_made(count);
  if (calls_.closed()) close();  // it may have come too late for the close of the agent
  return callers.release();
}

/// Each look at all descriptors comes after as many new ones as the last look left. So those that were given
/// up are never many more than the others, and a look costs each new descriptor little.
void ArrivalCounters::descriptor_made(const std::shared_ptr<ArrivalCount>& count) {
  const std::lock_guard lock(with_descriptors_mutex_);
  with_descriptors_.insert(count);
  if (--until_look_ > 0) return;
  std::size_t left = 0;
  std::erase_if(with_descriptors_, [&](const std::shared_ptr<ArrivalCount>& one) {
    const std::size_t of_one = drop_given_up(*one);
    left += of_one;
    return of_one == 0;
  });
  until_look_ = left + least_between_looks;
}

/// Returns how many descriptors are left.
std::size_t ArrivalCounters::drop_given_up(ArrivalCount& count) {
  const std::lock_guard lock(count.mutex_);
  std::erase_if(count.watches_,
                [](const ArrivalCount::Watch& one) { return !one.reached && one.descriptor.given_up(); });
  return static_cast<std::size_t>(
      std::ranges::count_if(count.watches_, [](const ArrivalCount::Watch& one) { return !one.reached; }));
}

void ArrivalCounters::watch(ArrivalCount& count, ArrivalCount::Watch watch) {
  {
    const std::lock_guard lock(count.mutex_);
    count.next_watch_.store(std::min(count.next_watch_.load(), watch.at_least));
    count.watches_.push_back(std::move(watch));
  }
  tell(count, count.value_.load());
}

Result<std::shared_ptr<const gpu::GpuWord>> ArrivalCounters::gpu_word(
    const std::shared_ptr<ArrivalCount>& count, int device) {
  HEADRACE_TRY_VOID(calls_.usable());
  HEADRACE_TRY(driver, gpus_.driver());
  HEADRACE_TRY(opened, gpu::Device::open(driver, device));
  HEADRACE_TRY(made, gpu::GpuWord::make(opened, count->value()));
  std::shared_ptr<const gpu::GpuWord> word(made.get(), [count, made](const gpu::GpuWord*) {
    const std::lock_guard lock(count->mutex_);
    std::erase(count->words_, made.get());
  });
  {
    const std::lock_guard lock(count->mutex_);
    count->words_.push_back(made.get());
    count->next_watch_.store(0);
  }
  tell(*count, count->value_.load());
  return word;
}

void ArrivalCounters::raise_words(ArrivalCount& count, std::uint64_t value) {
  std::erase_if(count.words_, [&](gpu::GpuWord* word) {
    const auto stored = word->raise_to(value);
    if (!stored) log_.error("the word of a counter does not grow any more: {}", stored.error().message);
    return !stored;
  });
}

/// Tells those that wait for no more than `value`.
void ArrivalCounters::tell(ArrivalCount& count, std::uint64_t value) {
  const std::lock_guard lock(count.mutex_);
  std::uint64_t next = UINT64_MAX;
  std::erase_if(count.watches_, [&](ArrivalCount::Watch& one) {
    if (one.at_least > value) {
      next = std::min(next, one.at_least);
      return false;
    }
    if (one.reached)
      callbacks_.push(std::move(one.reached));
    else
      one.descriptor.signal();
    return true;
  });
  raise_words(count, value);
  count.next_watch_.store(count.words_.empty() ? next : 0);
}

void ArrivalCounters::close() {
  const std::shared_lock lock(mutex_);
  for (auto& [key, entry] : entries_) {
    const std::lock_guard watches(entry.count->mutex_);
    for (const ArrivalCount::Watch& one : entry.count->watches_)
      if (!one.reached) one.descriptor.signal();
  }
}

}  // namespace headrace::engine
