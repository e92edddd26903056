// SPDX-License-Identifier: Apache-2.0
// What the kernel of this folder does, on the CPU.
#pragma once

#include "kernels/common/reference.hpp"

#include <headrace/plugin/kernels/courier_v1.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

namespace headrace::kernels::courier {

extern const reference::Family reference_family;

/// One launch of the courier.
class ReferenceStay {
 public:
  explicit ReferenceStay(const headrace_courier_launch_v1& args) : args_(args), next_(args.first) {}

  /// Moves the jobs that are in the ring, until it leaves or finds none.
  [[nodiscard]] reference::Progress poll(const reference::Memory& memory);
  /// Reports that this launch has left.
  void tell_left() const { __atomic_store_n(&told().left, args_.launch, __ATOMIC_RELEASE); }

 private:
  using Clock = std::chrono::steady_clock;
  using Job = std::array<std::uint64_t, HEADRACE_COURIER_WORDS>;

  /// Whether it has stayed, or waited, long enough. For its first job it looks once at least.
  [[nodiscard]] bool must_leave() const;
  /// The next job's words without its number, if it is there.
  [[nodiscard]] std::optional<Job> look();
  /// Whether the word is of the next job.
  [[nodiscard]] bool take(const std::uint64_t& from, std::uint64_t& value) const;
  /// False: memory of the job is not reachable.
  [[nodiscard]] bool move(const Job& job, const reference::Memory& memory);
  [[nodiscard]] headrace_courier_told_v1& told() const {
    return *reference::at<headrace_courier_told_v1>(args_.told);
  }

  const headrace_courier_launch_v1 args_;
  std::uint64_t next_;
  bool has_looked_ = false;
  Clock::time_point began_ = Clock::now(), since_ = began_;
};

}  // namespace headrace::kernels::courier
