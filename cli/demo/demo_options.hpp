// SPDX-License-Identifier: Apache-2.0
// What `headrace demo` was asked for.
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
  bool check = false;  ///< compare with one process alone
  bool json = false;
  std::optional<std::uint16_t> port;  ///< serve HTTP there
  std::string host = "127.0.0.1";

  /// Random weights write no text: their tokens are numbers, and no bytes.
  [[nodiscard]] bool has_text() const { return !front.model.weights.empty(); }
};

/// Runs one prompt: the text on stdout as it comes, a table on stderr.
///   errors  corrupt (--check: the tokens differ, where)
Result<void> run_once(const DemoOptions& options);

/// Answers OpenAI's completions protocol until SIGINT or SIGTERM.
Result<void> serve_http(const DemoOptions& options);

}  // namespace headrace::cli::demo
