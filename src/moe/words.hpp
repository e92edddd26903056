// SPDX-License-Identifier: Apache-2.0
// Flags and words of a window on the host. A writer stores one after its bytes and rings the bell; a reader
// that sees it sees the bytes. Bells need sequential consistency (base/bell.hpp), which costs a reader
// nothing on x86 and a writer less than the bytes of a chunk.
#pragma once

#include "base/bell.hpp"
#include "moe/layout.hpp"
#include "moe/votes.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace headrace::moe {

/// The window of a rank, in memory of this process.
class Window {
 public:
  Window(std::byte* memory, const WindowLayout& layout) : memory_(memory), layout_(layout) {}

  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return memory_ + offset; }
  [[nodiscard]] const WindowLayout& layout() const { return layout_; }
  [[nodiscard]] Bell bell() const {
    return Bell(*reinterpret_cast<std::atomic<std::uint32_t>*>(at(WindowLayout::bell_at)));
  }

  [[nodiscard]] std::uint64_t load(std::uint64_t offset) const {
    return word(offset).load(std::memory_order_seq_cst);
  }
  /// Stores a word after all bytes that this thread has written to the window, and rings.
  void tell(std::uint64_t offset, std::uint64_t value) const {
    word(offset).store(value, std::memory_order_seq_cst);
    bell().ring();
  }
  /// Stores a value if the word holds `expected`; else takes what it holds into that.
  bool exchange(std::uint64_t offset, std::uint64_t& expected, std::uint64_t value) const {
    return word(offset).compare_exchange_strong(expected, value, std::memory_order_seq_cst);
  }
  /// Votes against ranks, in the window that has the votes. Returns what they are then.
  std::uint64_t vote(std::uint32_t voter, std::uint64_t ranks) const {
    std::uint64_t out = load(WindowLayout::voted_out_at);
    while (after_vote(out, voter, ranks) != out) {
      const std::uint64_t after = after_vote(out, voter, ranks);
      if (exchange(WindowLayout::voted_out_at, out, after)) return after;
    }
    return out;
  }
  /// Whether it is mapped.
  [[nodiscard]] bool exists() const { return memory_ != nullptr; }

 private:
  [[nodiscard]] std::atomic<std::uint64_t>& word(std::uint64_t offset) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(at(offset));
  }

  std::byte* memory_;
  WindowLayout layout_;
};

}  // namespace headrace::moe
