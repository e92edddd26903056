// SPDX-License-Identifier: Apache-2.0
// Turns the bytes that a model generates into text that JSON can hold, byte by byte.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::cli::demo {

/// Ends a text before the first of several stop words. Bytes that may begin a stop word are held back until
/// the next bytes decide it.
class StopFinder {
 public:
  explicit StopFinder(std::vector<std::string> words) : words_(std::move(words)) {}

  /// Takes the next bytes; returns those that certainly come before any stop word.
  std::string take(std::string_view bytes);
  /// Returns the bytes that are still held back when the text ends without a stop word.
  std::string finish() { return std::exchange(held_, {}); }
  /// Whether a stop word was found: the text is over.
  [[nodiscard]] bool found() const { return found_; }

 private:
  std::vector<std::string> words_;
  std::string held_;
  bool found_ = false;
};

/// Passes valid UTF-8 through. Each longest beginning of an invalid character becomes one U+FFFD, as the
/// Unicode standard advises and Python's `errors="replace"` does. An incomplete character is held back.
class Utf8Text {
 public:
  std::string take(std::string_view bytes);
  /// Returns the replacement for bytes that are still held back when the text ends.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace headrace::cli::demo
