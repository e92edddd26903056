// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_reserve.hpp"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

namespace headrace {
namespace {

constexpr std::uint64_t log_every_ns = 1'000'000'000;

std::uint64_t most_descriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : UINT64_MAX;
}

/// Linux 6.2 and later have the number of open descriptors as the size of that folder. Before, the number of
/// a fresh one is a lower bound: the system gives out the lowest that is free.
std::uint64_t open_descriptors(const UniqueFd& fresh) {
  struct stat folder {};
  if (::stat("/proc/self/fd", &folder) == 0 && folder.st_size > 0)
    return static_cast<std::uint64_t>(folder.st_size) - 1;
  return static_cast<std::uint64_t>(fresh.get());
}

std::uint64_t left_beside(const UniqueFd& fresh, std::uint64_t most) {
  const std::uint64_t open = open_descriptors(fresh);
  return most > open ? most - open : 0;
}

}  // namespace

std::uint64_t descriptors_left() {
  const UniqueFd fresh(::eventfd(0, EFD_CLOEXEC));
  return fresh ? left_beside(fresh, most_descriptors()) : 0;
}

DescriptorReserve::DescriptorReserve(std::string agent, std::uint64_t kept)
    : agent_(std::move(agent)), kept_(kept) {
  (void)refill();
}

bool DescriptorReserve::refill() {
  if (!spare_) spare_.reset(::eventfd(0, EFD_CLOEXEC));
  return spare_.valid();
}

Result<void> DescriptorReserve::check() const {
  const std::uint64_t most = most_descriptors();
  const UniqueFd fresh(::eventfd(0, EFD_CLOEXEC));
  if (!fresh)
    return make_error(Code::exhausted,
                      "agent {} has no file descriptors left (ulimit -n {}): close some there, or raise its "
                      "limit",
                      agent_, most);
  const std::uint64_t left = left_beside(fresh, most);
  if (left >= kept_) return {};
  return make_error(Code::exhausted,
                    "agent {} has {} file descriptor{} left (ulimit -n {}) and keeps {} for the rest of its "
                    "process: raise its limit, or lower its option reserved_descriptors",
                    agent_, left, left == 1 ? "" : "s", most, kept_);
}

std::uint64_t DescriptorReserve::count_refusal(std::uint64_t now_ns) {
  refusals_.fetch_add(1);
  std::uint64_t last = logged_at_ns_.load();
  if (last != 0 && now_ns - last < log_every_ns) return 0;
  if (!logged_at_ns_.compare_exchange_strong(last, now_ns == 0 ? 1 : now_ns)) return 0;
  return refusals_.exchange(0);
}

}  // namespace headrace
