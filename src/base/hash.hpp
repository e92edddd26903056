// SPDX-License-Identifier: Apache-2.0
// A quick checksum over bytes (XXH3, 64 bits): finds damage and change, keeps out no forger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

/// The XXH3 64-bit hash of `bytes`. The same on every machine and in every version: it may be stored and
/// sent.
[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;

}  // namespace headrace
