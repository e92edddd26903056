// SPDX-License-Identifier: Apache-2.0
// Random numbers that cannot be guessed: for incarnations, nonces and names of temporary files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

/// Fills `bytes` from the kernel's generator. Aborts if the kernel has none (before 3.17): no fallback is
/// safe.
void fill_random(std::span<std::byte> bytes);

/// 64 random bits. Forked processes never repeat each other's numbers: all state is the kernel's.
[[nodiscard]] std::uint64_t random_u64();

}  // namespace headrace
