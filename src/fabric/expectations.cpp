// SPDX-License-Identifier: Apache-2.0
#include "fabric/expectations.hpp"

#include <algorithm>

namespace headrace::fabric {
namespace {

bool is_of_barrier(std::uint64_t key) { return (key >> 32 & Expectations::barrier_scope) != 0; }

}  // namespace

/// Barriers have a bound of their own: what nobody expects must not end them.
std::size_t& Expectations::without_expectation(std::uint64_t key) {
  return is_of_barrier(key) ? barriers_ : unexpected_;
}

void Expectations::arrived(Immediate immediate, std::uint64_t amount) {
  arrivals_ += amount;
  for (;;) {
    std::unique_lock lock(mutex_);
    auto at = entries_.find(packed(immediate));
    if (at == entries_.end() || at->second.expectation == nullptr) {
      if (at == entries_.end()) {
        if (without_expectation(packed(immediate)) >= most_unexpected) {
          lost_ += amount;
          return;
        }
        ++without_expectation(packed(immediate));
        at = entries_.emplace(packed(immediate), Entry{}).first;
      }
      at->second.kept += amount;
      const auto served = serve(at);
      tell_soon(lock);
      for (const auto& taken : served) taken();
      return;
    }
    const auto expectation = at->second.expectation;
    lock.unlock();
    if (expectation->arrived(amount)) return;  // else it was removed meanwhile
  }
}

Result<std::shared_ptr<Expectation>> Expectations::expect(Immediate immediate, std::uint64_t each) {
  if (each == 0) return make_error(Code::invalid_argument, "a round has at least one arrival, not 0");
  auto made = std::make_shared<Expectation>(immediate, each, callbacks_, fork_, flags_);
  made->set_remover([table = weak_from_this(), made = std::weak_ptr(made)]() -> std::uint64_t {
    const auto of = table.lock();
    const auto what = made.lock();
    return of != nullptr && what != nullptr ? of->remove(what) : 0;
  });
  std::uint64_t before = 0;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return make_error(Code::invalid_argument, "the fabric is closed: open another");
    Entry& entry = entries_[packed(immediate)];
    if (entry.expectation != nullptr)
      return make_error(Code::invalid_argument,
                        "immediate {} of scope {} is expected already: use that, or remove it first",
                        immediate.value, immediate.scope);
    if (entry.kept > 0) --unexpected_;  // else it was made just now
    before = std::exchange(entry.kept, 0);
    entry.expectation = made;
  }
  if (before > 0) made->arrived(before);
  return made;
}

std::uint64_t Expectations::remove(const std::shared_ptr<Expectation>& expectation) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(packed(expectation->immediate));
    if (at != entries_.end() && at->second.expectation == expectation) entries_.erase(at);
  }
  return expectation->end();
}

// ------------------------------------------------------------------ takes

/// Of an entry without an expectation: those whose turn it is. An entry that is empty goes.
std::vector<std::function<void()>> Expectations::serve(Entries::iterator at) {
  Entry& entry = at->second;
  std::vector<std::function<void()>> served;
  while (!entry.takes.empty() && entry.kept >= entry.takes.front().amount) {
    entry.kept -= entry.takes.front().amount;
    served.push_back(std::move(entry.takes.front().taken));
    entry.takes.pop_front();
  }
  if (entry.empty()) {
    --without_expectation(at->first);
    entries_.erase(at);
  }
  return served;
}

Result<std::uint64_t> Expectations::take(Immediate immediate, std::uint64_t amount,
                                         std::function<void()> taken) {
  std::unique_lock lock(mutex_);
  if (closed_) return make_error(Code::invalid_argument, "the fabric is closed: open another");
  auto [at, added] = entries_.try_emplace(packed(immediate));
  if (added) ++without_expectation(packed(immediate));
  const std::uint64_t id = next_take_++;
  at->second.takes.push_back({id, amount, std::move(taken)});
  const auto served = serve(at);
  lock.unlock();
  for (const auto& each : served) each();
  return id;
}

void Expectations::give_up(std::uint64_t take) {
  std::unique_lock lock(mutex_);
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (std::erase_if(at->second.takes, [take](const Take& each) { return each.id == take; }) == 0) continue;
    const auto served = serve(at);  // those behind it may need less
    lock.unlock();
    for (const auto& taken : served) taken();
    return;
  }
}

// ------------------------------------------------------------------ unexpected ones

void Expectations::on_unexpected(std::function<void(Immediate, std::uint64_t)> told) {
  auto next =
      told ? std::make_shared<const std::function<void(Immediate, std::uint64_t)>>(std::move(told)) : nullptr;
  std::unique_lock lock(mutex_);
  told_.swap(next);
  tell_soon(lock);
}

/// Unlocks.
void Expectations::tell_soon(std::unique_lock<std::mutex>& lock) {
  const bool tells = told_ != nullptr && unexpected_ > 0 && !std::exchange(telling_, true);
  lock.unlock();
  if (tells) callbacks_->push([self = shared_from_this()] { self->tell_unexpected(); });
}

void Expectations::tell_unexpected() {
  std::unique_lock lock(mutex_);
  telling_ = false;
  if (told_ == nullptr) return;
  std::vector<std::pair<Immediate, std::uint64_t>> all;
  for (auto at = entries_.begin(); at != entries_.end();) {
    if (at->second.expectation != nullptr || is_of_barrier(at->first)) {
      ++at;
      continue;
    }
    all.emplace_back(unpacked(at->first), at->second.kept);
    at = entries_.erase(at);
    --unexpected_;
  }
  auto told = told_;
  lock.unlock();
  for (const auto& [immediate, amount] : all)
    callbacks_->run([&, at = immediate, count = amount] { (*told)(at, count); });
}

void Expectations::close() {
  std::vector<std::shared_ptr<Expectation>> all;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& [key, entry] : entries_)
      if (entry.expectation != nullptr) all.push_back(std::move(entry.expectation));
    entries_.clear();
    unexpected_ = barriers_ = 0;
  }
  for (const auto& each : all) each->end();
}

}  // namespace headrace::fabric
