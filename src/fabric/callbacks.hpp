// SPDX-License-Identifier: Apache-2.0
// The thread that runs the callbacks of a fabric's user. None is dropped: every end is told.
#pragma once

#include <headrace/result.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace headrace::fabric {

/// Thread-safe. No lock is held while a callback runs or is destroyed.
class Callbacks {
 public:
  Callbacks();
  ~Callbacks() { close(); }
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;

  /// Runs `call` on the callback thread, which starts with the first one; after `close`, on this thread. What
  /// it throws goes to `on_error`.
  void push(std::function<void()> call);
  /// Runs `call` now and catches what it throws. Returns whether it threw.
  bool run(const std::function<void()>& call);
  /// Tells `on_error` of what is no callback's error, on the callback thread.
  void tell(Error error);
  /// {}: they are only counted.
  void on_error(std::function<void(const Error&)> failed);
  [[nodiscard]] std::uint64_t failed() const;

  /// Runs what is queued and ends the thread. On the callback thread it returns at once, and the thread does
  /// the same after its present call.
  void close();

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread outlives this object if a callback ends it
};

}  // namespace headrace::fabric
