// SPDX-License-Identifier: Apache-2.0
// The sending half of a channel: takes work when the socket has room for it.
#pragma once

#include "backends/tcp/batch.hpp"
#include "backends/tcp/channel_state.hpp"
#include "backends/tcp/gpu_sender.hpp"
#include "backends/tcp/lingering_close.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace headrace::tcp {

class Sender {
 public:
  explicit Sender(ChannelState& state) : state_(state) {}

  /// One thread at a time puts bytes into the socket. Taken before the link's lock.
  [[nodiscard]] std::mutex& mutex() { return mutex_; }

  /// Has epoll listen for what comes in.
  void start();
  /// Sends what is to be sent. `writable`: epoll says that the socket has room again.
  void pump(HostCalls& calls, Driver driver, bool writable = false);
  /// Whether epoll has yet to be told that there is room, or none, for what comes in.
  [[nodiscard]] bool must_listen_anew() const { return deaf_.load() != state_.starved.load(); }

  /// The rest of an answer from a region that is going away is copied first.
  void detach(const Region& region);

  // With the lock held, while the socket closes.
  /// What is still to be said: the rest of the batch, messages, and a goodbye. None: nothing more can be
  /// said.
  [[nodiscard]] std::optional<LastWords> farewell();
  void stop() { sending_ = false; }
  /// Lets go of all memory.
  void release();

 private:
  [[nodiscard]] bool put_last_words(std::string& words);
  enum class Next { more, over };
  Next send_batch(HostCalls& calls, Driver driver);
  void failed(HostCalls& calls, int error);
  void listen_for(std::uint32_t events);
  [[nodiscard]] bool mid_frame() const { return gpu_ != nullptr && gpu_->mid_frame(); }
  [[nodiscard]] bool refill(HostCalls& calls);
  GpuSender& gpu();

  // With the link's lock held.
  bool fill(HostCalls& calls);
  void take_work(HostCalls& calls);
  bool has_work_for_gpu();
  void put_control();
  void put_acknowledgement(const Acknowledgement& acknowledgement);
  bool put_messages();
  bool put_answer();
  bool lend_answer(const Answer& answer, FrameHeader& header);
  void put_refusal(FrameHeader& header, Code code, std::uint64_t good_bytes);
  bool put_chunk();
  [[nodiscard]] RemoteRequest* next_work() const;

  ChannelState& state_;
  std::mutex mutex_;
  Batch batch_;
  std::uint32_t events_ = 0;        // what epoll listens for
  bool started_ = false;            // false: the link does not know the socket, which takes a goodbye at most
  bool sending_ = true;             // false: closed
  bool blocked_ = false;            // the socket is full
  std::uint64_t blocked_ns_ = 0;    // since when, if it is
  std::atomic<bool> deaf_{false};   // epoll does not listen for what comes: there is no room for it
  std::unique_ptr<GpuSender> gpu_;  // null: nothing has gone out of a GPU's memory

  // With the link's lock.
  bool answers_turn_ = false;
  bool reads_turn_ = false;
};

}  // namespace headrace::tcp
