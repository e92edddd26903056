// SPDX-License-Identifier: Apache-2.0
// A barrier that names the ranks that have not come: every rank tells rank 0, which answers all. Its words
// are those of gloo, which torch's users look for. Comm::monitored_barrier ends the communicator when a rank
// is late, and this one does not.
#include "bindings/torch/c10d/backend.hpp"

#include <c10/util/StringUtil.h>

#include <chrono>
#include <string>

namespace headrace::torch_group {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Tags of these messages, one for each barrier, so that a late rank meets no later barrier.
constexpr std::uint32_t first_tag = 0xF000'0000;
constexpr std::uint64_t tags = 1 << 16;

constexpr std::uint8_t passed = 1, failed = 0;

using Ranks = std::vector<int>;

class MonitoredBarrier {
 public:
  MonitoredBarrier(Comm& comm, std::uint64_t number, milliseconds timeout)
      : comm_(comm), tag_(first_tag + static_cast<std::uint32_t>(number % tags)), timeout_(timeout) {}

  /// Of rank 0.
  void meet(bool wait_all_ranks) {
    Ranks come, late;
    const auto deadline = Clock::now() + timeout_;
    for (int rank = 1; rank < comm_.size() && (late.empty() || wait_all_ranks); ++rank) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      TORCH_CHECK(left.count() > 0 || wait_all_ranks, "Rank 0 timed out in monitoredBarrier after ",
                  timeout_.count(), " ms, before it asked rank ", rank, ": give it more time");
      (has_come(rank, left) ? come : late).push_back(rank);
    }
    const std::vector<std::uint8_t> answer{late.empty() ? passed : failed};
    for (const int rank : come)
      take(comm_.send(answer, rank, limited(std::max(timeout_, milliseconds(1000)))));
    TORCH_CHECK(late.empty(), "[Rank 0]: ", wait_all_ranks ? "Ranks " : "Rank ", c10::Join(", ", late),
                " failed to pass monitoredBarrier in ", timeout_.count(), " ms");
  }

  /// Of the other ranks.
  void report() {
    std::vector<std::uint8_t> message{passed};
    auto sent = comm_.send(message, 0, limited(timeout_));
    TORCH_CHECK(sent.ok(), reached(), ": ", sent.error().message);
    auto received = comm_.recv(message, 0, limited(timeout_));
    TORCH_CHECK(received.ok(), reached(), ": ", received.error().message);
    TORCH_CHECK(message.front() == passed, reached(), ": it misses other ranks, and its error names them");
  }

 private:
  bool has_come(int rank, milliseconds left) {
    std::vector<std::uint8_t> message(1);
    return comm_.recv(message, rank, limited(std::max(left, milliseconds(1)))).ok();
  }

  [[nodiscard]] MessageOptions limited(milliseconds timeout) const {
    MessageOptions options;
    options.timeout = timeout;
    options.tag = tag_;
    return options;
  }

  [[nodiscard]] std::string reached() const {
    return c10::str("Rank ", comm_.rank(),
                    " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                    "from rank 0");
  }

  Comm& comm_;
  const std::uint32_t tag_;
  const milliseconds timeout_;
};

}  // namespace

void GroupBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const milliseconds timeout = opts.timeout == c10d::kUnsetTimeout ? options_->timeout : opts.timeout;
  MonitoredBarrier barrier(*comm_, ++barriers_, timeout);
  if (rank_ == 0) {
    barrier.meet(wait_all_ranks);
  } else {
    barrier.report();
  }
}

}  // namespace headrace::torch_group
