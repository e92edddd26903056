// SPDX-License-Identifier: Apache-2.0
// What a channel keeps of traffic to and from GPU memory. There is none of it before the first such frame.
#pragma once

#include "backends/tcp/channel.hpp"
#include "backends/tcp/gpu_lane.hpp"
#include "backends/tcp/settings.hpp"

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace headrace::tcp {

/// Guarded by the channel's receive_.
struct Channel::GpuIncoming {
  explicit GpuIncoming(const Settings& settings)
      : lane(GpuLane::Way::unpack, settings.gpu_ring_bytes, settings.gpu_chunk_bytes) {}

  /// A frame that has come whole, in the order of arrival. It is told when the GPUs have unpacked it, and
  /// those before it.
  struct Landing {
    std::uint64_t frame = 0;
    FrameHeader header;
    Unanswered answered;  // of data: the chunk of ours that they answer
    Code code = Code::ok;
    std::uint64_t good_bytes = UINT64_MAX;
  };

  GpuLane lane;
  std::deque<Landing> landings;

  // The frame that is being received.
  bool receiving = false;          // there is one, with bytes for a GPU
  std::uint64_t frame = 0;         // its number
  std::vector<Stretch> stretches;  // its payload's places
  std::size_t next = 0;  // of them the first that the reader does not have whole, and how much of it it has
  std::uint64_t skip = 0;
  std::uint64_t placed = 0;   // bytes of the payload that the reader knows the place of
  std::vector<Stretch> part;  // scratch
  std::string why;            // the last failure

  [[nodiscard]] bool quiet() const { return landings.empty() && lane.parts().empty(); }
  /// Whether GPUs have something to do; a part that is still being received is no concern of theirs.
  [[nodiscard]] bool waits() const {
    return !landings.empty() ||
           (!lane.parts().empty() && lane.parts().front().state != GpuPart::State::taken);
  }
};

/// Guarded by the channel's send_.
struct Channel::GpuOutgoing {
  explicit GpuOutgoing(const Settings& settings)
      : lane(GpuLane::Way::gather, settings.gpu_ring_bytes, settings.gpu_chunk_bytes) {}

  /// A frame, or a part of an answer, that goes out when it has been gathered. In the order in which they
  /// were taken.
  struct Staged {
    GpuPart* part = nullptr;           // null: a refusal
    RemoteRequest* request = nullptr;  // a write: its chunk; null: an answer
    Chunk chunk;
    FrameHeader header;              // an answer: of the read
    bool first = true, last = true;  // part of the answer
    Code code = Code::ok;            // of a refusal
    std::uint64_t good_bytes = 0;
  };
  /// A read that is being answered.
  struct Open {
    Answer answer;
    std::shared_ptr<const gpu::WorkingGpu> gpu;  // one of those whose memory it is
    std::uint32_t next = 0;                      // range, and how much of it has been staged
    std::uint64_t skip = 0;
    std::uint64_t staged = 0;
  };

  GpuLane lane;
  std::deque<Staged> staged;
  std::optional<Open> open;
  std::size_t answers = 0;  // staged or open, which others' data may not overtake
  std::size_t lent = 0;     // parts whose bytes the writer has
  bool mid_frame =
      false;  // the writer had the beginning of an answer, and not its end: nothing else may go out
  bool answers_turn = false;
  std::vector<Stretch> part;  // scratch
};

}  // namespace headrace::tcp
