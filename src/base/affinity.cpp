// SPDX-License-Identifier: Apache-2.0
#include "base/affinity.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace headrace {
namespace {

using Mask = std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)>;

Mask make_mask(int bits) {
  return {CPU_ALLOC(bits), [](cpu_set_t* set) { CPU_FREE(set); }};
}

}  // namespace

Result<std::vector<unsigned>> read_affinity() {
  // The kernel refuses a mask smaller than its own; the search ends at 2^20 CPUs.
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    const Mask mask = make_mask(bits);
    if (!mask) return make_error(Code::exhausted, "no memory for a mask of {} CPUs", bits);
    const std::size_t size = CPU_ALLOC_SIZE(bits);
    if (::sched_getaffinity(0, size, mask.get()) == 0) {
      std::vector<unsigned> cpus;
      for (int cpu = 0; cpu < bits; ++cpu) {
        if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, mask.get()))
          cpus.push_back(static_cast<unsigned>(cpu));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return os_error(errno, "read the CPUs that this process may use");
}

Result<void> set_affinity(std::span<const unsigned> cpus) {
  if (cpus.empty()) return make_error(Code::invalid_argument, "a thread needs a CPU to run on");
  const int bits = static_cast<int>(std::ranges::max(cpus)) + 1;
  const Mask mask = make_mask(bits);
  if (!mask) return make_error(Code::exhausted, "no memory for a mask of {} CPUs", bits);
  const std::size_t size = CPU_ALLOC_SIZE(bits);
  CPU_ZERO_S(size, mask.get());
  for (const unsigned cpu : cpus) CPU_SET_S(cpu, size, mask.get());
  if (::sched_setaffinity(0, size, mask.get()) == 0) return {};
  return os_error(errno, "let a thread run on {} CPUs, the first of them {}", cpus.size(), cpus.front());
}

unsigned usable_cores() {
  const auto cpus = read_affinity();
  return cpus ? std::max(1U, static_cast<unsigned>(cpus->size())) : 1;
}

}  // namespace headrace
