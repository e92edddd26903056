// SPDX-License-Identifier: Apache-2.0
// Puts frames together for a socket. Guarded by its sender's lock.
#pragma once

#include "backends/tcp/frame_writer.hpp"
#include "backends/tcp/request.hpp"
#include "transport/chunk.hpp"

#include <cstdint>
#include <vector>

namespace headrace::tcp {

class Batch {
 public:
  /// A batch is closed once it has this much: several small frames share a system call, large ones go alone.
  static constexpr std::uint64_t most_bytes = 256 * 1024;
  static constexpr std::size_t most_pieces = 768;

  [[nodiscard]] bool has_bytes_left() const { return writer.bytes() < most_bytes; }
  [[nodiscard]] bool has_room() const { return has_bytes_left() && writer.pieces() < most_pieces; }
  [[nodiscard]] bool fits(const RemoteRequest& request, const transport::Chunk& chunk);

  void put_empty(FrameType type, std::uint64_t request = 0, std::uint16_t channel = 0);
  /// Puts header and ranges of a write, or a read. Leaves the local pieces in `payload`. Returns the number
  /// of ranges.
  std::uint32_t put_chunk(const RemoteRequest& request, const transport::Chunk& chunk);
  void lend_payload();

  FrameWriter writer;
  std::vector<iovec> payload;  // of the chunk that was put last

 private:
  std::uint32_t put_ranges(const RemoteRequest& request, const transport::Chunk& chunk, FrameHeader& header);
  bool put_ranges_of_one_length(const RemoteRequest& request, const transport::Chunk& chunk);
  void put_ranges_with_lengths(const RemoteRequest& request, const transport::Chunk& chunk);
  void put_range(const PageRun& run, std::size_t bytes);
};

}  // namespace headrace::tcp
