// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/batch.hpp"

#include <cstring>

namespace headrace::tcp {

bool Batch::fits(const RemoteRequest& request, const transport::Chunk& chunk) {
  return writer.fits(frame_header_bytes + transport::most_ranges(request.args, chunk) * range_bytes);
}

void Batch::put_empty(FrameType type, std::uint64_t request, std::uint16_t channel) {
  FrameHeader header;
  header.type = type;
  header.request = request;
  header.channel = channel;
  writer.put(header);
}

std::uint32_t Batch::put_chunk(const RemoteRequest& request, const transport::Chunk& chunk) {
  FrameHeader header;
  header.type = request.is_write() ? FrameType::write : FrameType::read;
  header.request = request.wire_id();
  header.chunk = chunk.number;
  if (request.is_write()) {
    header.payload = chunk.bytes;
    if (request.has_message()) header.flags |= flag_bound;
  }
  std::byte* const at = writer.head(frame_header_bytes);
  const std::uint32_t ranges = put_ranges(request, chunk, header);
  std::memcpy(at, &header, sizeof header);
  return ranges;
}

void Batch::lend_payload() {
  for (const iovec& piece : payload) writer.lend(piece.iov_base, piece.iov_len);
}

/// Fills in what the header says of the ranges. Nearly always all runs are alike; where one is not, it begins
/// again with lengths.
std::uint32_t Batch::put_ranges(const RemoteRequest& request, const transport::Chunk& chunk,
                                FrameHeader& header) {
  const FrameWriter::Mark before = writer.mark();
  if (put_ranges_of_one_length(request, chunk)) {
    header.flags |= flag_uniform;
  } else {
    writer.take_back(before);
    put_ranges_with_lengths(request, chunk);
  }
  header.ranges = static_cast<std::uint32_t>(payload.size());
  return header.ranges;
}

/// False: a run has another length than the first.
bool Batch::put_ranges_of_one_length(const RemoteRequest& request, const transport::Chunk& chunk) {
  payload.clear();
  PageCursor cursor(request.args, chunk.from, chunk.to);
  PageRun run;
  std::uint64_t first_bytes = 0;
  while (cursor.next(run)) {
    if (payload.empty()) {
      first_bytes = run.bytes;
      writer.put(&first_bytes, 8);
    } else if (run.bytes != first_bytes) {
      return false;
    }
    put_range(run, uniform_range_bytes);
  }
  return true;
}

void Batch::put_ranges_with_lengths(const RemoteRequest& request, const transport::Chunk& chunk) {
  payload.clear();
  PageCursor cursor(request.args, chunk.from, chunk.to);
  PageRun run;
  while (cursor.next(run)) put_range(run, range_bytes);
}

void Batch::put_range(const PageRun& run, std::size_t bytes) {
  const WireRange range{Handles::remote(run.remote_region).id, 0, run.remote_offset, run.bytes};
  writer.put(&range, bytes);
  payload.push_back({Handles::region(run.local_region).base + run.local_offset, run.bytes});
}

}  // namespace headrace::tcp
