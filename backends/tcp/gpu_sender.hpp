// SPDX-License-Identifier: Apache-2.0
// A sender's traffic from GPU memory. Chunks and answers are staged, that is gathered into the ring, ahead of
// the one that is being sent, and handed to the writer in order.
//
// No thread waits for a GPU, save where a region goes: the I/O thread looks for what has been gathered.
#pragma once

#include "backends/tcp/batch.hpp"
#include "backends/tcp/channel_state.hpp"
#include "backends/tcp/gpu_lane.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace headrace::tcp {

/// Guarded by the sender's lock. There is none before the first work for a GPU.
class GpuSender {
 public:
  GpuSender(ChannelState& state, Batch& batch);

  // With the link's lock held.
  /// Takes what is to be gathered into the ring, while there is room: answers and chunks of our own in turn.
  void stage(HostCalls& calls);
  /// Puts frames that have been gathered. Whether there were any.
  bool put(HostCalls& calls);

  /// Begins to gather what was staged. Without the link's lock: others need not wait for the driver.
  void launch();
  /// The writer is empty: the ring has room again.
  void release_sent();
  /// There is nothing to be sent yet. Whether that changed while a small move was looked at.
  [[nodiscard]] bool gathered_soon();
  /// Leaves what is being gathered to the I/O thread's looks.
  void watch();
  void wait_for_lane() { lane_.wait(); }

  /// The writer had the beginning of an answer, and not its end: nothing else may go out.
  [[nodiscard]] bool mid_frame() const { return mid_frame_; }
  /// Whether answers are staged, which others' data may not overtake.
  [[nodiscard]] bool holds_answers() const { return answers_ > 0; }
  [[nodiscard]] bool anything_staged() const { return !staged_.empty() || open_; }

 private:
  /// A frame, or a part of an answer, that goes out when it has been gathered. In the order in which they
  /// were taken.
  struct Staged {
    GpuPart* part = nullptr;           // null: a refusal
    RemoteRequest* request = nullptr;  // a write: its chunk; null: an answer
    transport::Chunk chunk;
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
  /// The next ranges of an answer, as far as they fit into a part.
  struct Piece {
    std::uint32_t next = 0;
    std::uint64_t skip = 0;
    std::uint64_t bytes = 0;
    Code code = Code::ok;
  };

  bool stage_answer();
  bool stage_open_part();
  [[nodiscard]] Piece choose_piece(Regions::View& view, const RangeList& ranges);
  bool stage_write(HostCalls& calls);
  bool put_write(HostCalls& calls);
  bool put_answer(HostCalls& calls);
  void put_answer_header(const Staged& frame, bool failed);

  ChannelState& state_;
  Batch& batch_;
  GpuLane lane_;
  std::deque<Staged> staged_;
  std::optional<Open> open_;
  std::size_t answers_ = 0;  // staged or open
  std::size_t lent_ = 0;     // parts whose bytes the writer has
  bool mid_frame_ = false;
  bool answers_turn_ = false;
  std::vector<Stretch> part_;  // scratch
};

}  // namespace headrace::tcp
