// SPDX-License-Identifier: Apache-2.0
#include "kernels/windows/reference.hpp"

#include "kernels/windows/condition.cuh"

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>

namespace headrace::kernels::windows {
namespace {

using reference::Memory;
using reference::Progress;
using Word = headrace_windows_word_v1;

std::uint64_t* word_of(const Word& args) { return reference::at<std::uint64_t>(args.word); }

void report(const Word& args, std::uint64_t reason, std::uint64_t seen) {
  auto& status = *reference::at<headrace_windows_status_v1>(args.status);
  status.rank = args.rank;
  status.peer = args.peer;
  status.expected = args.value;
  status.seen = seen;
  __atomic_store_n(&status.reason, reason, __ATOMIC_RELEASE);
}

Progress send_signal(const Word& args) {
  if (args.kind == HEADRACE_COMM_SIGNAL_SET)
    __atomic_store_n(word_of(args), args.value, __ATOMIC_RELEASE);
  else
    __atomic_fetch_add(word_of(args), args.value, __ATOMIC_RELEASE);
  return Progress::ended;
}

Progress add_to_element(const Word& args) {
  const std::uint64_t before =
      args.kind == 4 ? __atomic_fetch_add(reference::at<std::uint32_t>(args.word),
                                          static_cast<std::uint32_t>(args.value), __ATOMIC_ACQ_REL)
                     : __atomic_fetch_add(word_of(args), args.value, __ATOMIC_ACQ_REL);
  report(args, HEADRACE_WINDOWS_DONE, before);
  return Progress::ended;
}

class Wait {
 public:
  using Clock = std::chrono::steady_clock;

  Progress look(const Word& args) const {
    std::uint64_t seen = __atomic_load_n(word_of(args), __ATOMIC_ACQUIRE);
    if (holds(args.kind, seen, args.value) && (args.kind != HEADRACE_COMM_TAKE || take(args, seen)))
      return leave(args, HEADRACE_WINDOWS_DONE, seen);
    if (args.abort != 0 && __atomic_load_n(reference::at<std::uint64_t>(args.abort), __ATOMIC_ACQUIRE) != 0)
      return leave(args, HEADRACE_WINDOWS_ABORTED, seen);
    if (args.timeout_ns >= 0 && Clock::now() - began_ >= std::chrono::nanoseconds(args.timeout_ns))
      return leave(args, HEADRACE_WINDOWS_TIMED_OUT, seen);
    return Progress::stays;
  }

 private:
  static bool take(const Word& args, std::uint64_t seen) {
    return __atomic_compare_exchange_n(word_of(args), &seen, seen - 1, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
  }
  static Progress leave(const Word& args, std::uint64_t reason, std::uint64_t seen) {
    report(args, reason, seen);
    return Progress::ended;
  }
  const Clock::time_point began_ = Clock::now();
};

bool is_reachable(const Word& args, const Memory& memory) {
  const bool is_add_of_four = args.kind == 4 && args.word % sizeof(std::uint64_t) != 0;
  return memory.reachable(args.word, is_add_of_four ? sizeof(std::uint32_t) : sizeof(std::uint64_t)) &&
         (args.abort == 0 || memory.reachable(args.abort, sizeof(std::uint64_t))) &&
         (args.status == 0 || memory.reachable(args.status, sizeof(headrace_windows_status_v1)));
}

/// A kernel that ends at its first look.
template <Progress (*Step)(const Word&)>
reference::Launch launch(const void* argument, const Memory& memory) {
  return [args = static_cast<const Word*>(argument), memory] {
    return is_reachable(*args, memory) ? Step(*args) : Progress::fault;
  };
}

/// A captured launch begins anew at each replay.
reference::Launch launch_wait(const void* argument, const Memory& memory) {
  return [args = static_cast<const Word*>(argument), memory,
          wait = std::make_shared<std::optional<Wait>>()]() -> Progress {
    if (!is_reachable(*args, memory)) return Progress::fault;
    if (!*wait) wait->emplace();
    const Progress progress = (*wait)->look(*args);
    if (progress != Progress::stays) wait->reset();
    return progress;
  };
}

constexpr reference::Kernel references[] = {
    {"headrace_window_signal", sizeof(Word), launch<send_signal>},
    {"headrace_window_wait_signal", sizeof(Word), launch_wait},
    {"headrace_window_atomic_add", sizeof(Word), launch<add_to_element>},
};

}  // namespace

constinit const reference::Family reference_family{HEADRACE_WINDOWS_FAMILY, references};

}  // namespace headrace::kernels::windows
