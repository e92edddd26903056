// SPDX-License-Identifier: Apache-2.0
// A peer's write whose bytes this side copies out of the peer's memory, a piece at a time.
//
// The owner of the target copies, never the writer: it looks up each range under the lock of its memories at
// each piece, so memory is quiet when `deregister` returns. A writer with the owner's addresses could not be
// kept out.
#pragma once

#include "rail/stream/frame.hpp"
#include "rail/stream/range_cursor.hpp"
#include "rail/stream/stream.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail::stream {

/// Bytes of the peer's process.
struct Source {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

[[nodiscard]] std::string encode(const std::vector<Source>& sources);
/// The payload of a fetch frame, whose ranges have `bytes` bytes.
///   errors  corrupt (an empty one; another sum)
[[nodiscard]] Result<std::vector<Source>> read_sources(std::string_view payload, std::uint64_t bytes);

class Fetch {
 public:
  Fetch(const FrameHeader& header, RangeCursor places, std::vector<Source> sources)
      : header(header), places_(std::move(places)), sources_(std::move(sources)) {}

  enum class State : std::uint8_t {
    under_way,
    done,
    refused,  ///< its place is no longer registered
  };
  /// Copies the next piece.
  ///   errors  those of the stream
  Result<State> step(Stream& stream, const Memories& memories);

  const FrameHeader header;

 private:
  void gather_sources(std::uint64_t bytes);

  RangeCursor places_;
  std::vector<Source> sources_;
  std::size_t at_ = 0;  // of sources_; its address and bytes are what is left of it
  std::vector<iovec> to_, from_;
};

}  // namespace headrace::rail::stream
