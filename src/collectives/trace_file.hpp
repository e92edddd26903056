// SPDX-License-Identifier: Apache-2.0
// The file that a flight recorder leaves when a communicator ends by an error.
#pragma once

#include "base/fork_guard.hpp"
#include "collectives/core.hpp"

#include <headrace/flight_recorder.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace headrace::collectives {

/// A thread of its own writes: the hook that hears of the end may hold locks of the communicator. The thread
/// also looks ten times a second whether a communicator has ended: a rank that calls nothing hears of no end,
/// and it is the one that the others miss.
///   threads  any
class TraceFile {
 public:
  static Result<std::shared_ptr<TraceFile>> open(FlightRecorder recorder, std::string prefix);
  TraceFile(FlightRecorder recorder, std::string prefix);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void watch(std::weak_ptr<Comm::Core> comm);
  /// Has the dump written soon. For hooks.
  void ask();
  /// Waits until what was asked for is written.
  void flush();
  /// The same, and ends the thread.
  void close();

 private:
  void work();
  void write() const;

  const FlightRecorder recorder_;
  const std::string prefix_;
  const ForkGuard fork_guard_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<Comm::Core>> added_;  // since the thread looked
  bool asked_ = false, writing_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace headrace::collectives
