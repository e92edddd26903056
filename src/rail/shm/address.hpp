// SPDX-License-Identifier: Apache-2.0
// Where a NIC of the shm provider is found: "shm:0123456789abcdef/0123456789abcdef", its host since that
// started, and its life, which names its socket.
#pragma once

#include "base/errors.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::rail::shm {

struct NearAddress {
  std::uint64_t host = 0;
  std::uint64_t life = 0;
};
[[nodiscard]] std::string encode(const NearAddress& address);
/// Bytes from outside.
///   errors  corrupt, not_supported (the address of another kind of NIC)
[[nodiscard]] Result<NearAddress> read_near_address(std::string_view bytes);

/// Of this host; 0 where the kernel does not say.
[[nodiscard]] std::uint64_t this_host();

}  // namespace headrace::rail::shm
