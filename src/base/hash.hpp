// SPDX-License-Identifier: Apache-2.0
// A fast checksum over bytes (XXH3, 64 bits). It finds damage and change; it is no protection against
// forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

/// The XXH3 64-bit hash of `bytes`. It is the same on every machine and in every version, so it may be stored
/// and sent.
[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;

}  // namespace headrace
