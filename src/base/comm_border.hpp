// SPDX-License-Identifier: Apache-2.0
// What backends of communicators that are C tables (comm_v1.h) share: the border to their host.
#pragma once

#include "base/clock.hpp"
#include "base/errors.hpp"

#include <headrace/plugin/comm_v1.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace headrace::comm_border {

/// The code of an error, whose sentence goes to `why`, which may be null.
std::int32_t answer(const Error& error, headrace_text_v1* why);

/// The code of what `body` returns; no exception crosses the border.
template <class Body>
std::int32_t guarded(headrace_text_v1* why, const Body& body) noexcept {
  try {
    const auto result = body();
    return result ? HEADRACE_OK : answer(result.error(), why);
  } catch (const std::exception& thrown) {
    return answer({Code::internal, thrown.what()}, why);
  }
}

/// Of a time limit as tables have it: negative is none.
[[nodiscard]] Deadline deadline_of(std::int64_t timeout_ns);

/// The host of one communicator. The table outlives it.
class Host {
 public:
  explicit Host(const headrace_comm_host_v1* table) : table_(table) {}

  /// Sets a key at the meeting place.
  ///   errors  those of the host
  [[nodiscard]] Result<void> set(const std::string& key, std::string_view value) const;
  ///   errors  those of the host; not_found (it has no value yet)
  [[nodiscard]] Result<std::string> get(const std::string& key) const;
  /// Waits for a key's value. `missing`: the sentence if it is late.
  ///   errors  those of the host; timed_out
  [[nodiscard]] Result<std::string> wait_for(const std::string& key, const Deadline& deadline,
                                             std::string_view missing) const;
  /// Ends a work. `source`: of a recv.
  void end(std::uint64_t work, const Result<void>& result, int source = -1) const;
  /// The communicator has ended, and no work says why.
  void ended(const Error& why) const;

 private:
  const headrace_comm_host_v1* table_;
};

}  // namespace headrace::comm_border
