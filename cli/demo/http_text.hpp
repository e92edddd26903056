// SPDX-License-Identifier: Apache-2.0
// From the bytes that a model generates to text that JSON can hold, piece by piece as they come.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::cli::demo {

/// Ends a text before the first of some words. What may be the beginning of one is held back until that is
/// known.
class StopFinder {
 public:
  explicit StopFinder(std::vector<std::string> words) : words_(std::move(words)) {}

  /// Takes the next bytes; gives those that are known to stand before any word.
  std::string take(std::string_view bytes);
  /// What is still held back when the text ends by itself.
  std::string finish() { return std::exchange(held_, {}); }
  /// A word has come: the text is over.
  [[nodiscard]] bool found() const { return found_; }

 private:
  std::vector<std::string> words_;
  std::string held_;
  bool found_ = false;
};

/// UTF-8 as it is; for what is none, U+FFFD for each longest beginning of a character, as the Unicode
/// standard advises and Python's `errors="replace"` does it. A character that is not all there yet is held
/// back.
class Utf8Text {
 public:
  std::string take(std::string_view bytes);
  /// For what is still held back when the text ends.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace headrace::cli::demo
