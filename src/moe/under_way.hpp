// SPDX-License-Identifier: Apache-2.0
// How many operations of one kind a rank has sent and received, and what may follow.
#pragma once

#include <headrace/result.hpp>

#include <cstdint>
#include <string_view>

namespace headrace::moe {

struct UnderWay {
  std::uint64_t sent = 0, received = 0;
};

// Errors are invalid_argument: which operation is in the way, and what to do.

[[nodiscard]] Result<void> none_under_way(const UnderWay& count, std::string_view operation);
[[nodiscard]] Result<void> may_send(const UnderWay& count, std::string_view operation);
///   awaited  the number of the operation that the routing was sent with
[[nodiscard]] Result<void> may_receive(const UnderWay& count, std::uint64_t awaited,
                                       std::string_view operation);

}  // namespace headrace::moe
