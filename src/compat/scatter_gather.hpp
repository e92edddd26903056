// SPDX-License-Identifier: Apache-2.0
// A place in a list of buffers, from which chunks are gathered or to which they are scattered.
#pragma once

#include <headrace/compat/staged_rdma_transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace headrace::compat {

class ScatterGatherCursor {
 public:
  explicit ScatterGatherCursor(const ScatterGatherDescriptor& list) : list_(list) {}

  /// Fills `chunk` from the buffers. The list has as many bytes left.
  void gather(std::span<std::byte> chunk) {
    each_piece(chunk,
               [](std::byte* piece, std::byte* buffer, std::size_t n) { std::memcpy(piece, buffer, n); });
  }
  /// Fills the buffers from `chunk`.
  void scatter(std::span<std::byte> chunk) {
    each_piece(chunk,
               [](std::byte* piece, std::byte* buffer, std::size_t n) { std::memcpy(buffer, piece, n); });
  }

 private:
  template <class Copy>
  void each_piece(std::span<std::byte> chunk, Copy copy) {
    while (!chunk.empty()) {
      const auto& entry = list_.entries[entry_];
      const auto bytes = std::min(entry.size - offset_, chunk.size());
      if (bytes != 0) copy(chunk.data(), static_cast<std::byte*>(entry.ptr) + offset_, bytes);
      chunk = chunk.subspan(bytes);
      offset_ += bytes;
      if (offset_ == entry.size) ++entry_, offset_ = 0;
    }
  }

  const ScatterGatherDescriptor& list_;
  std::size_t entry_ = 0;
  std::size_t offset_ = 0;
};

}  // namespace headrace::compat
