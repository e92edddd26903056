// SPDX-License-Identifier: Apache-2.0
// A lock for each key of an open set of keys, with a deadline and a stop.
#pragma once

#include "base/clock.hpp"

#include <condition_variable>
#include <mutex>
#include <set>
#include <stop_token>

namespace headrace::metadata {

template <class Key>
class Turns {
 public:
  /// The right to act on a key, until its end. False: the deadline passed or `stop` was requested first.
  class Turn {
   public:
    Turn(Turns& turns, const Key& key, Deadline deadline, const std::stop_token& stop)
        : turns_(turns), key_(key) {
      std::unique_lock lock(turns_.mutex_);
      has_ = turns_.ended_.wait_until(lock, stop, deadline.time_point(),
                                      [&] { return !turns_.taken_.contains(key_); });
      if (has_) turns_.taken_.insert(key_);
    }
    ~Turn() {
      if (!has_) return;
      {
        const std::scoped_lock lock(turns_.mutex_);
        turns_.taken_.erase(key_);
      }
      turns_.ended_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const noexcept { return has_; }

   private:
    Turns& turns_;
    const Key key_;
    bool has_ = false;
  };

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::set<Key> taken_;
};

}  // namespace headrace::metadata
