// SPDX-License-Identifier: Apache-2.0
// The box of a rank: the memory into which the other ranks write for it. Each rank allocates one; ranks of
// the same host map it.
//
// Every other rank has two lanes in it, one for collectives and one for messages, so that neither blocks the
// other. A lane has one writer and one reader. It is a ring of lines, which describe what comes, and a ring
// of bytes, which holds what does not fit into a line. No line lies where bytes may lie, so nothing stale
// looks like a line that is ready.
#pragma once

#include "base/bell.hpp"
#include "base/errors.hpp"
#include "base/utf8.hpp"

#include <headrace/result.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace headrace::collectives {

inline constexpr std::size_t cache_line = 64;
inline constexpr std::size_t inline_bytes = 40;

/// A part of a message. Up to `inline_bytes` lie in the line itself: a small message is one cache line.
struct alignas(cache_line) Line {
  std::atomic<std::uint64_t> ready;  ///< number of the line, from 1; stored last
  std::uint32_t length;
  std::uint32_t tag;
  std::uint64_t message_bytes;  ///< of the whole message
  std::byte bytes[inline_bytes];
};
static_assert(sizeof(Line) == cache_line);

/// What the reader has taken. The writer looks only when it believes the lane to be full.
struct alignas(cache_line) Taken {
  std::atomic<std::uint64_t> lines;
  std::atomic<std::uint64_t> bytes;
};

/// The last words of a rank to this one: why the communicator has ended. A slot for each rank.
struct alignas(cache_line) Farewell {
  static constexpr std::size_t most_text_bytes = 240;
  /// Who says it: a rank that still opened the communicator, or one to which it was open.
  static constexpr std::uint32_t by_opening = 1, by_open = 2;
  std::atomic<std::uint32_t> reached;  ///< 1: the rank has connected to this one, which may not have to it
  std::atomic<std::uint32_t> said;     ///< 0: nothing yet; else `by_opening` or `by_open`
  std::int32_t code;
  std::uint32_t text_bytes;
  char text[most_text_bytes];
};

enum class LaneKind : std::uint32_t { collective = 0, message = 1 };
inline constexpr std::size_t lane_kinds = 2;

/// Where everything lies in a box. The same on all ranks of a communicator.
struct BoxLayout {
  int ranks = 1;
  std::size_t lines = 256;                  ///< of each lane
  std::size_t lane_bytes[lane_kinds] = {};  ///< multiples of a cache line

  [[nodiscard]] std::size_t farewell_at(int from) const {
    return cache_line + static_cast<std::size_t>(from) * sizeof(Farewell);
  }
  [[nodiscard]] std::size_t lane_at(int from, LaneKind kind) const {
    const std::size_t before = static_cast<std::size_t>(from) * (lane_size(0) + lane_size(1));
    return round_up(farewell_at(ranks), page) + before + (kind == LaneKind::collective ? 0 : lane_size(0));
  }
  [[nodiscard]] std::size_t bytes() const { return lane_at(ranks, LaneKind::collective); }
  /// From the beginning of a lane to its ring of bytes.
  [[nodiscard]] std::size_t bytes_at() const { return sizeof(Taken) + lines * sizeof(Line); }

  static constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

 private:
  static constexpr std::size_t page = 4096;
  [[nodiscard]] std::size_t lane_size(std::size_t kind) const {
    return round_up(bytes_at() + lane_bytes[kind], page);
  }
};

/// A lane in memory.
struct LaneMemory {
  Taken* taken = nullptr;
  Line* lines = nullptr;
  std::byte* bytes = nullptr;
  std::size_t line_count = 0;
  std::size_t byte_count = 0;
};

/// A box in memory of this process: its own, a mapped one, or the copy from which a far one is filled.
class Box {
 public:
  Box() = default;
  Box(std::span<std::byte> memory, const BoxLayout& layout) : memory_(memory), layout_(layout) {}

  [[nodiscard]] LaneMemory lane(int from, LaneKind kind) const {
    std::byte* const at = memory_.data() + layout_.lane_at(from, kind);
    return {reinterpret_cast<Taken*>(at), reinterpret_cast<Line*>(at + sizeof(Taken)),
            at + layout_.bytes_at(), layout_.lines, layout_.lane_bytes[static_cast<std::size_t>(kind)]};
  }
  /// Set to 1 with the first farewell: the one word that a waiting rank looks at.
  [[nodiscard]] std::atomic<std::uint32_t>& ended() const {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data());
  }
  /// Where this rank's threads sleep.
  [[nodiscard]] Bell bell() const {
    return Bell(*reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data() + sizeof(std::uint32_t)));
  }
  [[nodiscard]] Farewell& farewell(int from) const {
    return *reinterpret_cast<Farewell*>(memory_.data() + layout_.farewell_at(from));
  }
  [[nodiscard]] std::atomic<std::uint32_t>& reached(int from) const { return farewell(from).reached; }
  [[nodiscard]] const BoxLayout& layout() const { return layout_; }
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }

  /// Says why rank `from` ends the communicator. Once for each rank.
  ///   who  Farewell::by_opening or by_open
  void say_farewell(int from, Code code, std::string_view text, std::uint32_t who) const {
    Farewell& slot = farewell(from);
    slot.code = static_cast<std::int32_t>(code);
    text = text.substr(0, Farewell::most_text_bytes);
    for (int cut = 0; cut < 3 && !is_utf8(text); ++cut) text.remove_suffix(1);  // a character is cut
    slot.text_bytes = static_cast<std::uint32_t>(text.size());
    std::memcpy(slot.text, text.data(), slot.text_bytes);
    slot.said.store(who, std::memory_order_release);
    ended().store(1, std::memory_order_seq_cst);
    bell().ring();
  }
  /// Whether a farewell says that the communicator was open: then all ranks had come to open it.
  [[nodiscard]] bool was_open() const {
    for (int from = 0; from < layout_.ranks; ++from)
      if (farewell(from).said.load(std::memory_order_acquire) == Farewell::by_open) return true;
    return false;
  }
  /// The first farewell that is there.
  [[nodiscard]] Error first_farewell() const {
    for (int from = 0; from < layout_.ranks; ++from) {
      const Farewell& slot = farewell(from);
      if (slot.said.load(std::memory_order_acquire) == 0) continue;
      return said_in(slot, from);
    }
    return Error{Code::canceled, "a rank ended the communicator"};
  }

 private:
  /// The slot is another process's: any bytes may be in it.
  static Error said_in(const Farewell& slot, int from) {
    std::string text(slot.text, std::min<std::size_t>(slot.text_bytes, Farewell::most_text_bytes));
    if (!is_utf8(text))
      text = fmt::format("rank {} ended the communicator, and its reason cannot be read", from);
    const auto code = static_cast<Code>(slot.code);
    const bool is_known = code == Code::peer_lost || code == Code::invalid_argument;
    return Error{is_known ? code : Code::canceled, std::move(text)};
  }

  std::span<std::byte> memory_;
  BoxLayout layout_;
};

}  // namespace headrace::collectives
