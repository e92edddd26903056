// SPDX-License-Identifier: Apache-2.0
// Error codes from a peer: only those that this version knows may become a Code.
#pragma once

#include <headrace/result.hpp>

#include <cstdint>

namespace headrace::wire {

/// The code with this number; backend_failed, the weakest one, for numbers of later versions. The caller
/// handles 0, which is no error, before.
[[nodiscard]] constexpr Code code_from_wire(std::uint32_t number) noexcept {
  return number <= static_cast<std::uint32_t>(Code::internal) ? static_cast<Code>(number)
                                                              : Code::backend_failed;
}

}  // namespace headrace::wire
