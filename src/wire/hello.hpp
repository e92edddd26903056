// SPDX-License-Identifier: Apache-2.0
// The first bytes of every connection: who speaks, in which version, and what proves it. docs/wire.md
// section 3.
#pragma once

#include <headrace/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace headrace::wire {

enum class Purpose : std::uint8_t { tcp_backend = 1, metadata = 2 };

/// Bits of Hello::capabilities.
inline constexpr std::uint32_t capability_authentication = 1U << 0;
inline constexpr std::uint32_t capability_checksums = 1U << 1;

using Nonce = std::array<std::uint8_t, 32>;
using Proof = std::array<std::uint8_t, 32>;

struct Hello {
  static constexpr std::uint16_t own_major = 1;
  static constexpr std::uint16_t own_minor = 0;
  static constexpr std::size_t prefix_bytes =
      8;  ///< magic and versions: alike in every version there will be
  static constexpr std::size_t fixed_bytes = 72;  ///< all before the name
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

///   errors  invalid_argument (name of 0 or over 255 bytes, incarnation 0)
[[nodiscard]] Result<std::string> encode(const Hello& hello);
/// Reads one whole hello of our major version.
///   errors  corrupt (with the offset), not_supported (another major: both are named)
[[nodiscard]] Result<Hello> decode_hello(std::string_view bytes);

/// How it went, from the accepting side. Code::ok and no text: welcome.
struct HelloVerdict {
  static constexpr std::size_t fixed_bytes = 8;
  static constexpr std::size_t text_bytes = 1024;
  Code code = Code::ok;
  std::string text;
  friend bool operator==(const HelloVerdict&, const HelloVerdict&) = default;
};
/// Cuts the text at its bound.
[[nodiscard]] std::string encode(const HelloVerdict& verdict);
///   errors  corrupt (with the offset)
[[nodiscard]] Result<HelloVerdict> decode_verdict(std::string_view bytes);

/// HMAC-SHA256, from whoever has one: this room has no cryptography.
using Hmac = std::function<Result<Proof>(std::string_view key, std::string_view message)>;

enum class HelloRole : char { connecting = 'C', accepting = 'S' };

/// What the side in that role sends to show that it knows the token: bound to both hellos, and so to both
/// nonces.
[[nodiscard]] Result<Proof> compute_proof(const Hmac& hmac, std::string_view token, HelloRole role,
                                          std::string_view connecting_hello,
                                          std::string_view accepting_hello);
/// Equal? In a time that does not tell where they differ.
[[nodiscard]] bool equal_in_constant_time(const Proof& a, std::string_view b) noexcept;

}  // namespace headrace::wire
