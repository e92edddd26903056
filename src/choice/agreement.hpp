// SPDX-License-Identifier: Apache-2.0
// How the ranks of a communicator of `auto` agree on what they open: rank 0 collects what all ranks bring to
// a step, and gives it to all. So all of them know the same, and go the same way.
#pragma once

#include "base/clock.hpp"
#include "base/comm_border.hpp"

#include <optional>
#include <string>
#include <vector>

namespace headrace::choice {

///   threads  the one that opens the communicator
class Agreement {
 public:
  /// `host` outlives it.
  Agreement(const comm_border::Host& host, int rank, int size, Deadline deadline)
      : host_(host), rank_(rank), size_(size), deadline_(deadline) {}

  [[nodiscard]] const Deadline& deadline() const { return deadline_; }
  /// What all ranks bring to a step. All ranks call the same steps, each once.
  ///   errors  the same on all ranks: that of the first rank that brings one. Those that break it: timed_out
  ///           (which rank has not come), those of the host
  [[nodiscard]] Result<std::vector<std::string>> exchange(const std::string& step,
                                                          const Result<std::string>& mine);
  /// The same where only success matters.
  [[nodiscard]] Result<void> all(const std::string& step, const Result<void>& mine);
  /// Why no step can follow, if a step did not come to its end.
  [[nodiscard]] const std::optional<Error>& broken() const { return broken_; }
  /// The last step, also after one that failed. Rank 0's keys may go with it, and so it stays until all have
  /// read them; but it waits a while at most.
  void end();

 private:
  [[nodiscard]] Result<std::string> collect(const std::string& step) const;
  [[nodiscard]] Result<std::string> step_text(const std::string& step, const Result<std::string>& mine) const;

  const comm_border::Host& host_;
  const int rank_, size_;
  const Deadline deadline_;
  std::string last_step_;
  std::optional<Error> broken_;
};

}  // namespace headrace::choice
