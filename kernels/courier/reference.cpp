// SPDX-License-Identifier: Apache-2.0
#include "kernels/courier/reference.hpp"

#include <memory>

namespace headrace::kernels::courier {
namespace {

using reference::Progress;

reference::Launch launch(const void* argument, const reference::Memory& memory) {
  const auto& args = *static_cast<const headrace_courier_launch_v1*>(argument);
  const bool good = memory.reachable(args.told, sizeof(headrace_courier_told_v1)) &&
                    memory.reachable(args.jobs, HEADRACE_COURIER_SLOTS * sizeof(headrace_courier_job_v1));
  if (!good) return [] { return Progress::fault; };
  return [stay = std::make_shared<ReferenceStay>(args), memory] { return stay->poll(memory); };
}

constexpr reference::Kernel references[] = {{"headrace_courier", sizeof(headrace_courier_launch_v1), launch}};

}  // namespace

constinit const reference::Family reference_family{HEADRACE_COURIER_FAMILY, references};

Progress ReferenceStay::poll(const reference::Memory& memory) {
  for (;;) {
    const bool leaves = must_leave();
    const std::optional<Job> job = leaves ? std::nullopt : look();
    if (!leaves && !job) return Progress::stays;
    if (leaves || (*job)[0] == 0) {
      tell_left();
      return Progress::ended;
    }
    if (!move(*job, memory)) return Progress::fault;
    __atomic_store_n(&told().finished, next_++, __ATOMIC_RELEASE);
    since_ = Clock::now();
  }
}

bool ReferenceStay::must_leave() const {
  if (!has_looked_) return false;
  const auto now = Clock::now();
  return now - began_ >= std::chrono::nanoseconds(args_.stay_ns) ||
         now - since_ > std::chrono::nanoseconds(args_.idle_ns);
}

std::optional<ReferenceStay::Job> ReferenceStay::look() {
  has_looked_ = true;
  const auto& ring = reference::at<const headrace_courier_job_v1>(args_.jobs)[next_ % HEADRACE_COURIER_SLOTS];
  Job job{};
  for (std::size_t i = 0; i < HEADRACE_COURIER_HEAD_WORDS; ++i)
    if (!take(ring.words[i], job[i])) return {};
  // Written before word 0. A word that is missing now is the writer's fault: the job never comes.
  for (std::size_t i = HEADRACE_COURIER_HEAD_WORDS; i < 1 + 3 * job[0]; ++i)
    if (!take(ring.words[i], job[i])) return {};
  return job;
}

bool ReferenceStay::take(const std::uint64_t& from, std::uint64_t& value) const {
  const std::uint64_t word = __atomic_load_n(&from, __ATOMIC_ACQUIRE);
  value = word & ((std::uint64_t{1} << HEADRACE_COURIER_NUMBER_SHIFT) - 1);
  return word >> HEADRACE_COURIER_NUMBER_SHIFT == (next_ & 0xffff);
}

bool ReferenceStay::move(const Job& job, const reference::Memory& memory) {
  for (std::uint64_t i = 0; i < job[0]; ++i) {
    const std::uint64_t source = job[1 + 3 * i], target = job[2 + 3 * i], bytes = job[3 + 3 * i];
    if (!memory.reaches(source, target, bytes)) return false;
    memory.copy(reference::at<void>(target), reference::at<const void>(source), bytes);
  }
  return true;
}

}  // namespace headrace::kernels::courier
