// SPDX-License-Identifier: Apache-2.0
// Where a staged transfer waits for the other side: a chunk that has come, or one that was taken.
#pragma once

#include <headrace/compat/comm_future.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace headrace::compat {

///   threads  any
class StagedGate {
 public:
  /// `signals`: that count as come. A server begins with one: the client's staging buffer is free.
  explicit StagedGate(std::uint64_t signals) : signals_(signals) {}

  void signal();
  /// Waits for a signal and takes it. commSuccess, commTimeout, commUserAbort (canceled or stopped),
  /// commInternalError (the peer is lost). A signal that has come counts before a cancel or a loss.
  [[nodiscard]] commResult_t take(std::chrono::milliseconds timeout, std::uint64_t transfer);

  /// The number of a new transfer, from 1.
  [[nodiscard]] std::uint64_t begin();
  /// All transfers that have begun.
  void cancel();
  void stop();
  /// For good. The first reason stays.
  void lose(const std::string& why);

  void note(const std::string& why);
  [[nodiscard]] bool stopped() const;
  [[nodiscard]] bool lost() const;
  [[nodiscard]] std::string last_error() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t signals_;
  std::uint64_t begun_ = 0;
  std::uint64_t canceled_up_to_ = 0;
  bool stopped_ = false;
  bool lost_ = false;
  std::string last_error_;
};

}  // namespace headrace::compat
