// SPDX-License-Identifier: Apache-2.0
// A receiver's traffic to GPU memory. The reader is given places in the ring, a part at a time. A part that
// has come is unpacked while the next one is received. A frame is told when its last part has been unpacked.
//
// No thread waits for a GPU, save at the end of a link and where a region goes: the I/O thread looks for what
// has ended.
#pragma once

#include "backends/tcp/channel_state.hpp"
#include "backends/tcp/gpu_lane.hpp"
#include "backends/tcp/receipt.hpp"

#include <deque>
#include <string>
#include <vector>

namespace headrace::tcp {

/// Guarded by the receiver's lock. There is none before the first frame for GPU memory.
class GpuReceiver {
 public:
  GpuReceiver(ChannelState& state, Receipt& receipt, FrameReader::Handler& handler);

  // The frame that begins is for GPU memory.
  void begin();
  void add_run(const Stretch& run) {
    if (run.bytes > 0) stretches_.push_back(run);
  }

  /// Goes on with a frame whose rest had no place, as far as there is room.
  Result<void> feed();
  /// A frame has come whole. True: it is told later, when GPUs have unpacked it and what came before;
  /// acknowledgements keep the order of the writes.
  bool lands_later(const FrameHeader& header, const Unanswered& answered);
  /// Tells the frames that have landed. Whether there were any.
  bool settle();
  /// What has come is on its way to GPUs, or there: looks for the end of a small one, and leaves the rest to
  /// the I/O thread. Whether frames have landed.
  bool after_receive();
  /// A look of the I/O thread. Whether frames have landed.
  bool look();

  /// The part that was placed last will not come whole.
  void drop();
  /// The read whose data are being received is abandoned. It ends when GPUs write nothing of it any more.
  void cancel();
  /// Until GPUs touch nothing any more. Messages of writes that came whole are still delivered.
  void wait();
  void wait_for_lane() { lane_.wait(); }

 private:
  /// A frame that has come whole, in the order of arrival. It is told when the GPUs have unpacked it, and
  /// those before it.
  struct Landing {
    std::uint64_t frame = 0;
    FrameHeader header;
    Unanswered answered;  // of data: the chunk of ours that they answer
    Code code = Code::ok;
    std::uint64_t good_bytes = UINT64_MAX;
  };

  [[nodiscard]] Stretch rest_of(std::size_t i, std::uint64_t skip) const;
  std::uint64_t choose_part();
  bool place_more();
  void place_chosen(std::byte* ring, std::uint64_t bytes);
  void launch();
  void collect();
  void fail(const GpuPart& part);
  void tell();
  [[nodiscard]] bool quiet() const { return landings_.empty() && lane_.parts().empty(); }
  /// Whether GPUs have something to do; a part that is still being received is no concern of theirs.
  [[nodiscard]] bool waits() const {
    return !landings_.empty() ||
           (!lane_.parts().empty() && lane_.parts().front().state != GpuPart::State::taken);
  }
  [[nodiscard]] bool small_one_runs();
  /// A part was placed and has not been launched.
  [[nodiscard]] bool part_is_open() {
    return !lane_.parts().empty() && lane_.newest().state == GpuPart::State::taken;
  }

  ChannelState& state_;
  Receipt& receipt_;
  FrameReader::Handler& handler_;
  GpuLane lane_;
  std::deque<Landing> landings_;

  // The frame that is being received.
  bool receiving_ = false;          // there is one, with bytes for a GPU
  std::uint64_t frame_ = 0;         // its number
  std::vector<Stretch> stretches_;  // its payload's places
  std::size_t next_ = 0;  // of them the first that the reader does not have whole, and how much of it it has
  std::uint64_t skip_ = 0;
  std::uint64_t placed_ = 0;   // bytes of the payload that the reader knows the place of
  std::vector<Stretch> part_;  // scratch
  std::string why_;            // the last failure
};

}  // namespace headrace::tcp
