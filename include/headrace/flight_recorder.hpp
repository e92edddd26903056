// SPDX-License-Identifier: Apache-2.0
// The last calls of a rank, to find out afterwards which rank has not come.
#pragma once

#include <headrace/comm.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

namespace headrace {

namespace collectives {
class CallRing;
}  // namespace collectives

/// Keeps the last calls of one rank's communicators: operation, number, sizes, times and state.
///
/// A dump has the layout of torch's flight recorder, version 2.10. torch.distributed.flight_recorder.fr_trace
/// reads a folder with the pickle of each rank and names the first operation that not all ranks have called.
/// A handle, cheap to copy; copies have the same calls.
///   threads  any; a dump may be made while calls are under way
class FlightRecorder {
 public:
  static constexpr std::size_t default_entries = 2000;

  /// Keeps so many calls, at least one; a later call replaces the oldest one.
  HEADRACE_API explicit FlightRecorder(std::size_t entries = default_entries);
  /// That which option `comm.trace` (HEADRACE_COMM_TRACE) has attached to the communicators of a rank of this
  /// process. nullopt: the option is not set, or the rank has opened none. The rank is that in the
  /// communicator that was opened first.
  HEADRACE_API static std::optional<FlightRecorder> of_environment(int rank);

  /// Records the calls of a communicator from now on, until CommHook::remove. One recorder may have several
  /// communicators of one rank.
  HEADRACE_API CommHook attach(Comm& comm);

  /// The calls as JSON.
  [[nodiscard]] HEADRACE_API std::string dump() const;
  /// The same dictionary as a pickle of Python: what fr_trace reads.
  [[nodiscard]] HEADRACE_API std::string dump_pickle() const;
  /// Writes the pickle to the file `prefix` + rank, as fr_trace expects, and returns the file's name.
  ///   errors  invalid_argument (no communicator was attached, so there is no rank), those of the file
  HEADRACE_API Result<std::string> write(const std::string& prefix) const;

 private:
  explicit FlightRecorder(std::shared_ptr<collectives::CallRing> ring) : ring_(std::move(ring)) {}
  std::shared_ptr<collectives::CallRing> ring_;
};

}  // namespace headrace
