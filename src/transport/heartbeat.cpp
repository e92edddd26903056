// SPDX-License-Identifier: Apache-2.0
#include "transport/heartbeat.hpp"

#include <algorithm>

namespace headrace::transport {

Heartbeat::Beat Heartbeat::beat(std::uint64_t now_ns) {
  if (heard_.exchange(false)) heard_ns_ = now_ns;
  if (spoke_.exchange(false)) spoke_ns_ = now_ns;
  silent_ns_ = now_ns - heard_ns_;
  if (silent_ns_ >= timeout_ns_) return Beat::lost;
  const bool quiet = silent_ns_ >= interval_ns_ || now_ns - spoke_ns_ >= interval_ns_;
  if (!quiet || now_ns - pinged_ns_ < interval_ns_) return Beat::rest;
  pinged_ns_ = now_ns;
  return Beat::ping;
}

std::uint64_t Heartbeat::next_ns(std::uint64_t now_ns) const {
  return now_ns + std::clamp<std::uint64_t>(interval_ns_ / 2, 1'000'000, 250'000'000);
}

}  // namespace headrace::transport
