// SPDX-License-Identifier: Apache-2.0
// How the ranks of a communicator put it together: in each step each rank gives all others what it brings, or
// why it brings nothing.
#pragma once

#include "base/clock.hpp"
#include "base/comm_border.hpp"

#include <string>
#include <vector>

namespace headrace::p2p {

class Meeting {
 public:
  /// `host` outlives it.
  Meeting(const comm_border::Host& host, int rank, int size, Deadline deadline)
      : host_(host), rank_(rank), size_(size), deadline_(deadline) {}

  [[nodiscard]] const Deadline& deadline() const { return deadline_; }
  /// What all ranks bring to a step. All ranks call the same steps, each once.
  ///   errors  that of the first rank that brings nothing, timed_out (which rank has not come), those of the
  ///           host
  [[nodiscard]] Result<std::vector<std::string>> exchange(const std::string& step,
                                                          const Result<std::string>& mine) const;
  /// The last step, also after one that failed. No rank leaves before all have read what they need, because a
  /// place may forget what a rank has brought when it leaves; but it waits a while at most.
  void end() const;

 private:
  [[nodiscard]] Result<std::string> brought_by(int rank, const std::string& step) const;
  void end_all(const Deadline& limit) const;

  const comm_border::Host& host_;
  const int rank_, size_;
  const Deadline deadline_;
};

}  // namespace headrace::p2p
