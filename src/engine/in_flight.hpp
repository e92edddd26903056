// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::engine {

class RequestCore;

/// The posts that are running over a link (or, for transfers to oneself, over an instance). Posting takes
/// this lock and no other, so that one peer's traffic cannot hold up another's.
class InFlight {
 public:
  /// `slot` is the core's own: its place here while it is in flight.
  void insert(std::shared_ptr<RequestCore> core, std::size_t& slot) {
    const std::lock_guard lock(mutex_);
    slot = flights_.size();
    flights_.push_back({std::move(core), &slot});
  }
  /// Takes it out again; empty if it is out already.
  std::shared_ptr<RequestCore> take(std::size_t& slot) {
    const std::lock_guard lock(mutex_);
    if (slot == landed) return nullptr;
    const std::size_t at = std::exchange(slot, landed);
    std::shared_ptr<RequestCore> core = std::move(flights_[at].core);
    if (at + 1 != flights_.size()) {
      flights_[at] = std::move(flights_.back());
      *flights_[at].slot = at;
    }
    flights_.pop_back();
    return core;
  }
  [[nodiscard]] std::vector<std::shared_ptr<RequestCore>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<RequestCore>> cores;
    cores.reserve(flights_.size());
    for (const Flight& flight : flights_) cores.push_back(flight.core);
    return cores;
  }

  static constexpr std::size_t landed = ~std::size_t{0};

 private:
  struct Flight {
    std::shared_ptr<RequestCore> core;
    std::size_t* slot;
  };
  mutable std::mutex mutex_;
  std::vector<Flight> flights_;
};

}  // namespace headrace::engine
