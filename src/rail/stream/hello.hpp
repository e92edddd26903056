// SPDX-License-Identifier: Apache-2.0
// What two NICs say to each other before the first frame: docs/wire.md, section 8.
#pragma once

#include "base/errors.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::rail::stream {

struct Hello {
  std::uint64_t life = 0;    ///< of the sender
  std::uint64_t wanted = 0;  ///< the life that the sender means to talk to
  std::string text;          ///< of the engine; empty in an answer
};
inline constexpr std::size_t hello_head_bytes = 32;
inline constexpr std::size_t max_hello_text_bytes = 256;

[[nodiscard]] std::string encode(const Hello& hello);
/// How long the hello is whose first `hello_head_bytes` are these.
///   errors  corrupt (it is no hello), not_supported (another version)
[[nodiscard]] Result<std::size_t> hello_bytes(std::string_view head);
/// All of its bytes.
///   errors  as above
[[nodiscard]] Result<Hello> read_hello(std::string_view bytes);

}  // namespace headrace::rail::stream
