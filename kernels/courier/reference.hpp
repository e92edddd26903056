// SPDX-License-Identifier: Apache-2.0
// What the kernel of this folder does, on the CPU, look by look: what the fake driver runs.
#pragma once

#include "kernels/gather_scatter/reference.hpp"

#include <array>
#include <chrono>
#include <optional>

namespace headrace::kernels::reference {

/// One launch of the courier. Whoever runs it calls `must_leave` and `look` in turn until one of them ends
/// it.
class Courier {
 public:
  using Job = std::array<std::uint64_t, HEADRACE_COURIER_WORDS>;

  explicit Courier(const headrace_courier_v1& args) : args_(args), next_(args.first) {}

  /// Whether it has stayed, or waited, long enough. For its first job it looks once at least.
  [[nodiscard]] bool must_leave() const {
    if (!has_looked_) return false;
    const auto now = Clock::now();
    return now - began_ >= std::chrono::nanoseconds(args_.stay_ns) ||
           now - since_ > std::chrono::nanoseconds(args_.idle_ns);
  }
  /// The next job's words without its number, if it is there.
  [[nodiscard]] std::optional<Job> look() {
    has_looked_ = true;
    const auto& ring = at<const headrace_courier_job_v1>(args_.jobs)[next_ % HEADRACE_COURIER_SLOTS];
    Job job{};
    for (std::size_t i = 0; i < HEADRACE_COURIER_HEAD_WORDS; ++i)
      if (!take(ring.words[i], job[i])) return {};
    // Written before word 0: what is missing now is the writer's fault, and the job never comes.
    for (std::size_t i = HEADRACE_COURIER_HEAD_WORDS; i < 1 + 3 * job[0]; ++i)
      if (!take(ring.words[i], job[i])) return {};
    return job;
  }
  /// The job has been moved.
  void tell_finished() {
    __atomic_store_n(&told().finished, next_++, __ATOMIC_RELEASE);
    since_ = Clock::now();
  }
  void tell_left() const { __atomic_store_n(&told().left, args_.launch, __ATOMIC_RELEASE); }

 private:
  using Clock = std::chrono::steady_clock;
  /// Whether the word is of the next job.
  [[nodiscard]] bool take(const std::uint64_t& from, std::uint64_t& value) const {
    const std::uint64_t word = __atomic_load_n(&from, __ATOMIC_ACQUIRE);
    value = word & ((std::uint64_t{1} << HEADRACE_COURIER_NUMBER_SHIFT) - 1);
    return word >> HEADRACE_COURIER_NUMBER_SHIFT == (next_ & 0xffff);
  }
  [[nodiscard]] headrace_courier_told_v1& told() const { return *at<headrace_courier_told_v1>(args_.told); }

  const headrace_courier_v1 args_;
  std::uint64_t next_;
  bool has_looked_ = false;
  Clock::time_point began_ = Clock::now(), since_ = began_;
};

/// Tells `part(source, target, bytes)` of each part of a job.
template <class Part>
void each_part(const Courier::Job& job, Part part) {
  for (std::uint64_t i = 0; i < job[0]; ++i) part(job[1 + 3 * i], job[2 + 3 * i], job[3 + 3 * i]);
}

}  // namespace headrace::kernels::reference
