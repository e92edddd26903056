// SPDX-License-Identifier: Apache-2.0
// Init handles are bytes here, and text in torchcomms: Python has them as str.
#pragma once

#include <string>
#include <string_view>

namespace headrace::torchcomms_backend {

/// "headrace:" and the bytes in hexadecimal.
std::string handle_text(std::string_view bytes);
/// errors: c10::Error (no text of handle_text)
std::string handle_bytes(std::string_view text);

}  // namespace headrace::torchcomms_backend
