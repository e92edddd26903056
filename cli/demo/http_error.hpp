// SPDX-License-Identifier: Apache-2.0
// The error that a client gets for its request, in the form that OpenAI's clients read.
#pragma once

#include <string>

namespace headrace::cli::demo {

struct HttpError {
  unsigned status = 400;
  std::string message;
  std::string parameter;  ///< the parameter of the request's body that is wrong; empty: none
  std::string code;       ///< for programs to read; empty: none
};

/// {"error": {"message", "type", "param", "code"}}.
[[nodiscard]] std::string error_body(const HttpError& error);

}  // namespace headrace::cli::demo
