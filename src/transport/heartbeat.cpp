// SPDX-License-Identifier: Apache-2.0
#include "transport/heartbeat.hpp"

#include <algorithm>

namespace headrace::transport {

Heartbeat::Beat Heartbeat::beat(std::uint64_t now_ns) {
  const bool heard = heard_.exchange(false);
  const bool spoke = spoke_.exchange(false);
  if (heard) heard_at(now_ns);
  if (spoke) spoke_at(now_ns);
  flagged_ = heard || spoke;
  const auto since = [&](std::uint64_t time_ns) { return now_ns - std::min(now_ns, time_ns); };
  silent_ns_ = since(heard_ns_);
  if (silent_ns_ >= timeout_ns_) return Beat::lost;
  const bool quiet = silent_ns_ >= interval_ns_ || since(spoke_ns_) >= interval_ns_;
  if (!quiet || since(pinged_ns_) < interval_ns_) return Beat::rest;
  pinged_ns_ = now_ns;
  return Beat::ping;
}

std::uint64_t Heartbeat::due_ns() const {
  if (flagged_) return 0;
  const std::uint64_t quiet_since = std::min(heard_ns_.load(), spoke_ns_.load());
  const std::uint64_t due =
      std::min(heard_ns_ + timeout_ns_, std::max(quiet_since, pinged_ns_) + interval_ns_);
  const std::uint64_t step = std::clamp<std::uint64_t>(interval_ns_ / 16, 1'000'000, 250'000'000);
  return (due + step - 1) / step * step;
}

std::uint64_t Heartbeat::next_ns(std::uint64_t now_ns) const {
  if (!flagged_) return due_ns();
  return now_ns + std::clamp<std::uint64_t>(interval_ns_ / 2, 1'000'000, 250'000'000);
}

}  // namespace headrace::transport
