// SPDX-License-Identifier: Apache-2.0
// Loops over the indices of a post: thousands at each, so compiled into vector code.
#pragma once

#include <cstdint>
#include <span>

namespace headrace::fabric {

/// Copies all of them; `to` has as many. False: one does not fit into 32 bits, or is negative.
bool narrow(std::span<const std::int32_t> from, std::span<std::uint32_t> to);
bool narrow(std::span<const std::int64_t> from, std::span<std::uint32_t> to);

/// 0 of none.
[[nodiscard]] std::uint32_t greatest(std::span<const std::uint32_t> numbers);

}  // namespace headrace::fabric
