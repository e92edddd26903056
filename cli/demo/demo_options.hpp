// SPDX-License-Identifier: Apache-2.0
// The options of `headrace demo`.
#pragma once

#include "cli/demo/front.hpp"

#include <optional>

namespace headrace::cli::demo {

struct DemoOptions {
  FrontOptions front;
  std::string shape = "book";
  std::string prompt;
  std::size_t count = 400;
  Sampling sampling;
  bool check = false;  ///< compare with the text that one process generates
  bool json = false;
  std::optional<std::uint16_t> port;  ///< serve HTTP at this port
  std::string host = "127.0.0.1";

  /// False for random weights: their tokens are numbers, not bytes of a text.
  [[nodiscard]] bool has_text() const { return !front.model.weights.empty(); }
};

/// Runs one prompt. Prints the text to stdout token by token and a table to stderr.
///   errors  corrupt (--check: a token differs; the text names it)
Result<void> run_once(const DemoOptions& options);

/// Serves OpenAI's completions protocol until SIGINT or SIGTERM.
Result<void> serve_http(const DemoOptions& options);

}  // namespace headrace::cli::demo
