// SPDX-License-Identifier: Apache-2.0
// What a client is told when its request cannot be answered, in the form that OpenAI's clients read.
#pragma once

#include <string>

namespace headrace::cli::demo {

struct HttpError {
  unsigned status = 400;
  std::string message;
  std::string parameter;  ///< of the request's body, if it is about one
  std::string code;       ///< for programs, where the protocol has one
};

/// {"error": {"message", "type", "param", "code"}}.
[[nodiscard]] std::string error_body(const HttpError& error);

}  // namespace headrace::cli::demo
