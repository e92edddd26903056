// SPDX-License-Identifier: Apache-2.0
// Numbers that nobody can guess or repeat, for incarnations, nonces and the names of temporary things.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

/// Fills `bytes` from the kernel's generator. Aborts if the kernel has none (before 3.17): there is no honest
/// fallback.
void fill_random(std::span<std::byte> bytes);

/// 64 random bits. Two forked processes never share a sequence, for there is no state on our side.
[[nodiscard]] std::uint64_t random_u64();

}  // namespace headrace
