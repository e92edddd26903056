// SPDX-License-Identifier: Apache-2.0
// Codes that come over a wire are a peer's word: only those that this version knows may become a Code.
#pragma once

#include <headrace/result.hpp>

#include <cstdint>

namespace headrace::wire {

/// The code of that number; backend_failed, which promises least, for one that only a later version has. 0,
/// which is no error, is for the caller to tell apart before.
[[nodiscard]] constexpr Code code_from_wire(std::uint32_t number) noexcept {
  return number <= static_cast<std::uint32_t>(Code::internal) ? static_cast<Code>(number)
                                                              : Code::backend_failed;
}

}  // namespace headrace::wire
