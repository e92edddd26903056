// SPDX-License-Identifier: Apache-2.0
// The first bytes of every connection: the agent, its version, and its proof. docs/wire.md section 3.
#pragma once

#include <headrace/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace headrace::wire {

enum class Purpose : std::uint8_t { tcp_backend = 1, metadata = 2, fabric = 3 };

/// Bits of Hello::capabilities.
inline constexpr std::uint32_t capability_authentication = 1U << 0;
inline constexpr std::uint32_t capability_checksums = 1U << 1;

using Nonce = std::array<std::uint8_t, 32>;
using Proof = std::array<std::uint8_t, 32>;

struct Hello {
  static constexpr std::uint16_t own_major = 1;
  static constexpr std::uint16_t own_minor = 0;
  static constexpr std::size_t prefix_bytes = 8;  ///< magic and versions: the same in every version
  static constexpr std::size_t fixed_bytes = 72;  ///< everything before the name
  static constexpr std::size_t name_bytes = 255;

  std::uint16_t major = own_major;
  std::uint16_t minor = own_minor;
  std::uint64_t incarnation = 0;
  std::uint32_t capabilities = 0;
  Purpose purpose = Purpose::tcp_backend;
  std::uint8_t channel = 0;
  Nonce nonce{};
  std::uint64_t link_id = 0;
  std::uint64_t expected_incarnation = 0;  ///< 0: any
  std::string name;

  friend bool operator==(const Hello&, const Hello&) = default;
};

/// Encodes a hello. errors: invalid_argument (name of 0 or over 255 bytes, incarnation 0)
[[nodiscard]] Result<std::string> encode(const Hello& hello);
/// Decodes one complete hello of this major version.
///   errors  corrupt (with the offset), not_supported (another major: both are named)
[[nodiscard]] Result<Hello> decode_hello(std::string_view bytes);

/// The result of the handshake, from the accepting side. Code::ok without text: accepted.
struct HelloVerdict {
  static constexpr std::size_t fixed_bytes = 8;
  static constexpr std::size_t text_bytes = 1024;
  Code code = Code::ok;
  std::string text;
  friend bool operator==(const HelloVerdict&, const HelloVerdict&) = default;
};
/// Encodes a verdict; truncates its text at the limit.
[[nodiscard]] std::string encode(const HelloVerdict& verdict);
/// Decodes a verdict. errors: corrupt (with the offset)
[[nodiscard]] Result<HelloVerdict> decode_verdict(std::string_view bytes);

/// HMAC-SHA256, supplied by the user of this room, which has no cryptography.
using Hmac = std::function<Result<Proof>(std::string_view key, std::string_view message)>;

enum class HelloRole : char { connecting = 'C', accepting = 'S' };

/// The proof that the side with this role knows the token. It covers both hellos, and so both nonces.
[[nodiscard]] Result<Proof> compute_proof(const Hmac& hmac, std::string_view token, HelloRole role,
                                          std::string_view connecting_hello,
                                          std::string_view accepting_hello);
/// Whether two proofs are equal. The time does not depend on where they differ.
[[nodiscard]] bool equal_in_constant_time(const Proof& a, std::string_view b) noexcept;

}  // namespace headrace::wire
