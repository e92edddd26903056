// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/http_text.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace headrace::cli::demo {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// The length of the longest end of the text that is a beginning of the word.
std::size_t begun(std::string_view text, std::string_view word) {
  std::size_t length = std::min(text.size(), word.size() - 1);
  while (!text.ends_with(word.substr(0, length))) --length;
  return length;
}

struct Piece {
  enum class Kind { character, wrong, incomplete } kind;
  std::size_t length;
};

/// The first character of `bytes`, which must not be empty, or the longest beginning of one.
Piece first_piece(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Piece::Kind::character, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Piece::Kind::wrong, 1};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The limits of the second byte exclude overlong forms, surrogates and code points above U+10FFFF.
  unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (i == bytes.size()) return {Piece::Kind::incomplete, i};
    if (byte(i) < low || byte(i) > high) return {Piece::Kind::wrong, i};
  }
  return {Piece::Kind::character, length};
}

}  // namespace

std::string StopFinder::take(std::string_view bytes) {
  if (found_) return {};
  std::string text = std::exchange(held_, {});
  text += bytes;
  std::size_t end = std::string::npos, held = 0;
  for (const std::string& word : words_) {
    end = std::min(end, text.find(word));
    held = std::max(held, begun(text, word));
  }
  found_ = end != std::string::npos;
  if (!found_) {
    end = text.size() - held;
    held_ = text.substr(end);
  }
  text.resize(end);
  return text;
}

std::string Utf8Text::take(std::string_view bytes) {
  const std::string all = std::exchange(held_, {}) + std::string(bytes);
  std::string text;
  for (std::string_view rest = all; !rest.empty();) {
    const Piece piece = first_piece(rest);
    if (piece.kind == Piece::Kind::incomplete) {
      held_ = rest;
      break;
    }
    text += piece.kind == Piece::Kind::character ? rest.substr(0, piece.length) : replacement;
    rest.remove_prefix(piece.length);
  }
  return text;
}

std::string Utf8Text::finish() {
  return std::exchange(held_, {}).empty() ? std::string() : std::string(replacement);
}

}  // namespace headrace::cli::demo
