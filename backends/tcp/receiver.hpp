// SPDX-License-Identifier: Apache-2.0
// The receiving half of a channel: puts what comes in where it belongs, and leaves to the sender what is to
// be answered.
#pragma once

#include "backends/tcp/channel_state.hpp"
#include "backends/tcp/gpu_receiver.hpp"
#include "backends/tcp/receipt.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>

namespace headrace::tcp {

class Receiver final : private FrameReader::Handler {
 public:
  explicit Receiver(ChannelState& state) : state_(state) {}

  /// One thread at a time takes bytes from the socket, and writes payload. Taken before the sender's lock and
  /// the link's.
  [[nodiscard]] std::mutex& mutex() { return mutex_; }

  /// Begins to receive; `early` are bytes that came with the handshake. False: the socket is closed.
  bool start(HostCalls& calls, std::string_view early);
  /// Takes bytes from the socket. Whether there were any.
  bool receive(HostCalls& calls, Driver driver);
  /// A caller has polled within the last microseconds, so it is about to poll again.
  [[nodiscard]] bool left_to_caller() const;
  /// Whether the peer has closed the socket. Bytes that came before may wait to be read.
  [[nodiscard]] bool closed_by_peer();
  /// Looks what GPUs have ended. Whether there was anything.
  bool look(HostCalls& calls);

  /// Keeps what is still to come for this post of a read out of its memory, and counts it as answered.
  void abandon(std::uint64_t wire_id);
  /// Throws away the rest of a write into a region that is going away.
  void detach(const Region& region);

  // With the lock held, while the socket closes.
  void stop();
  /// Lets go of the ring of GPU memory.
  void release() { gpu_.reset(); }

 private:
  Result<void> begin(const FrameHeader& header, const RangeList& ranges) override;
  Result<void> end(const FrameHeader& header, std::span<const std::byte> payload) override;
  void unwritable(std::uint64_t at) override;

  bool writes_have_ended();
  void end_write_if_closed();
  void discard_write(std::uint64_t at);
  enum class Taken { all, some, nothing };  // all: there may be more; some: the socket is empty
  Taken take(std::uint64_t& total);
  Taken failed(int error);
  void retire();
  GpuReceiver& gpu();
  [[nodiscard]] bool goes_to_gpu(Regions::View& view, const RangeList& ranges) const;
  Result<void> begin_write(const RangeList& ranges);
  Result<void> begin_read(const FrameHeader& header, const RangeList& ranges);
  Result<void> begin_read_data(const FrameHeader& header);
  void place_data(const Unanswered& answered);
  Result<void> end_write(const FrameHeader& header);
  Result<void> end_write_ack(const FrameHeader& header, std::span<const std::byte> payload);
  Result<void> end_read_data(const FrameHeader& header, std::span<const std::byte> payload);
  Result<void> end_message(const FrameHeader& header, std::span<const std::byte> payload);
  void end_ping();
  void end_goodbye();

  ChannelState& state_;
  std::mutex mutex_;
  Receipt receipt_;
  std::uint64_t looked_ns_ = 0;              // when the socket was last seen open
  bool asked_ = false;                       // whether it is, in this receive
  bool closed_ = false;                      // the peer has closed the socket: its writes have ended
  std::unique_ptr<GpuReceiver> gpu_;         // null: no GPU has had to do with what came
  std::atomic<std::uint64_t> caller_ns_{0};  // when a caller last polled
};

}  // namespace headrace::tcp
