// SPDX-License-Identifier: Apache-2.0
// Bytes as text for JSON: RFC 4648 section 4, with padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace::metadata {

[[nodiscard]] std::string encode_base64(std::string_view bytes);
/// Nullopt if the text is not a result of encode_base64.
[[nodiscard]] std::optional<std::string> decode_base64(std::string_view text);

}  // namespace headrace::metadata
