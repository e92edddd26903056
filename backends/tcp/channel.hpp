// SPDX-License-Identifier: Apache-2.0
// One socket of a link: takes work when it has room for it, and puts what comes in where it belongs.
//
// Locks, in the order in which they may be taken:
//   receive_   one thread at a time takes bytes from the socket   (what comes in, where it goes)
//   send_      one thread at a time puts bytes into it            (the batch on its way)
//   link's     short: queues, windows, requests
// Payload is only ever written with receive_ held and sent with send_ held: whoever holds both knows the
// memory quiet.
#pragma once

#include "backends/tcp/chunk.hpp"
#include "backends/tcp/frame_reader.hpp"
#include "backends/tcp/frame_writer.hpp"
#include "backends/tcp/host_calls.hpp"
#include "backends/tcp/io_thread.hpp"
#include "backends/tcp/regions.hpp"
#include "base/unique_fd.hpp"

#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace headrace::tcp {

struct Context;
class Link;
class RemoteRequest;

class Channel final : public Watched, private FrameReader::Handler {
 public:
  Channel(std::shared_ptr<Link> link, unsigned index, UniqueFd fd, IoThread& thread);
  ~Channel() override;

  /// Begins to receive; `early` are bytes that came with the handshake.
  Result<void> watch();
  void start(HostCalls& calls, std::string_view early);

  void on_ready(std::uint32_t events) override;
  void on_kick() override;
  std::uint64_t on_time(std::uint64_t now_ns) override;
  Look on_look() override;

  /// Who drives: an I/O thread does all there is, a caller's thread a piece and never waits for another.
  enum class Driver { io_thread, caller };
  /// Takes bytes from the socket. Whether there were any.
  bool receive(HostCalls& calls, Driver driver);
  /// Sends what is to be sent. `writable`: epoll says that the socket has room again.
  void pump(HostCalls& calls, Driver driver, bool writable = false);

  /// Keeps what is still to come for this post of a read out of its memory, and counts it as answered.
  void abandon(std::uint64_t wire_id);
  /// Keeps peers out of a region that is going away: the rest of a write into it is thrown away, the rest of
  /// an answer from it is copied first.
  void detach(const Region& region);
  /// No memory is touched after it; with `farewell` the peer is told, if it can be done at once. The socket
  /// is closed.
  void close(bool farewell);

  [[nodiscard]] unsigned index() const { return index_; }

 private:
  friend class Link;

  /// Something to be answered, in order of arrival.
  struct Acknowledgement {
    std::uint64_t request = 0;
    std::uint32_t chunk = 0;
    Code code = Code::ok;
    std::uint64_t good_bytes = UINT64_MAX;  // of the chunk, before the first that could not be reached
  };
  struct Answer {
    FrameHeader header;  // of the read
    std::vector<std::byte> ranges;
  };
  /// A chunk of ours that waits for its answer.
  struct Unanswered {
    RemoteRequest* request = nullptr;  // null: abandoned
    std::uint64_t wire_id = 0;
    Chunk chunk;
    std::uint32_t ranges = 0;
  };
  /// The write that is being received.
  struct Incoming {
    Code code = Code::ok;
    std::uint64_t good_bytes = UINT64_MAX;
    std::vector<std::pair<const Region*, std::uint64_t>>
        regions;  // what it goes into, and from which byte on
  };
  struct GpuIncoming;
  struct GpuOutgoing;

  // Receiving.
  Result<void> begin(const FrameHeader& header, const RangeList& ranges) override;
  Result<void> end(const FrameHeader& header, std::span<const std::byte> payload) override;
  void unwritable(std::uint64_t at) override;
  void retire();
  Result<void> begin_write(const FrameHeader& header, const RangeList& ranges);
  Result<void> begin_read(const FrameHeader& header, const RangeList& ranges);
  Result<void> begin_read_data(const FrameHeader& header);
  Result<void> end_write(const FrameHeader& header);
  Result<void> landed(const FrameHeader& header, Code code, std::uint64_t good_bytes);
  Result<void> end_write_ack(const FrameHeader& header, std::uint64_t good_bytes);
  Result<void> end_read_data(const FrameHeader& header, std::span<const std::byte> payload);
  bool say_farewell();

  // Receiving for GPU memory, with receive_ held: channel_gpu.cpp.
  [[nodiscard]] const Region* find_gpu_region(Regions::View& view, const RangeList& ranges,
                                              Access access) const;
  void begin_placing();
  void add_placed_run(const Region& region, std::uint64_t offset, std::uint64_t bytes);
  bool place_more();
  void launch_received();
  void drop_received();
  Result<void> feed_gpu();
  bool lands_later(const FrameHeader& header, const Unanswered& answered);
  void collect_unpacked();
  bool settle();
  void tell(GpuIncoming& in);
  bool after_receive();
  void cancel_received();
  void wait_for_unpacking();

  // Sending from GPU memory, with send_ held, and the link's lock where something is put or staged:
  // channel_gpu.cpp.
  void stage_work(HostCalls& calls);
  bool stage_answer();
  bool stage_open_part();
  bool stage_write(HostCalls& calls);
  void launch_staged();
  bool put_staged(HostCalls& calls);
  bool put_staged_write(HostCalls& calls);
  bool put_staged_answer(HostCalls& calls);
  void release_sent();
  bool gathered_soon();
  [[nodiscard]] bool mid_frame() const;
  [[nodiscard]] bool holds_answers() const;
  [[nodiscard]] bool anything_staged() const;
  void watch_gathering();
  [[nodiscard]] std::uint64_t window_now() const;
  [[nodiscard]] ChunkLimits limits_of(const RemoteRequest& request) const;

  // Sending: with send_ and the link's lock held.
  bool fill(HostCalls& calls);
  void put_control();
  bool put_messages();
  bool put_answer();
  bool put_chunk();
  void lend_payload();
  void put_empty(FrameType type, std::uint64_t request = 0, std::uint16_t channel = 0);
  std::uint32_t put_ranges(const RemoteRequest& request, const Chunk& chunk, FrameHeader& header);
  void listen_for(std::uint32_t events);

  const std::shared_ptr<Link> link_;
  Context& context_;
  const unsigned index_;
  IoThread& thread_;

  std::mutex receive_;
  FrameReader reader_;
  Incoming incoming_;
  HostCalls* calls_ = nullptr;           // of the receive that is under way
  bool receiving_ = false;               // not before start, not after close
  std::unique_ptr<GpuIncoming> gpu_in_;  // null: no GPU has had to do with what came

  std::mutex send_;
  FrameWriter writer_;
  std::vector<iovec> payload_;            // of the write that is being put together
  std::uint32_t events_ = 0;              // what epoll listens for
  bool sending_ = true;                   // false: closed
  bool blocked_ = false;                  // the socket is full
  std::atomic<bool> deaf_{false};         // epoll does not listen for what comes: there is no room for it
  std::unique_ptr<GpuOutgoing> gpu_out_;  // null: nothing has gone out of a GPU's memory
  UniqueFd fd_;                           // closed with both locks held

  // With the link's lock.
  bool idle_ = true;  // nothing to send, and nobody is about to
  bool ping_due_ = false;
  bool pong_due_ = false;
  bool answers_turn_ = false;
  bool reads_turn_ = false;
  std::deque<Acknowledgement> acknowledgements_;
  std::deque<Answer> answers_;
  std::size_t answer_ranges_ = 0;
  std::deque<Unanswered> writes_;
  std::deque<Unanswered> reads_;
  std::uint64_t write_bytes_ = 0;  // under way
  std::uint64_t read_bytes_ = 0;
  std::size_t read_ranges_ = 0;

  std::atomic<bool> gathering_{false};  // frames wait for GPUs, to go out
  std::atomic<bool> landing_{false};    // frames that came in wait for GPUs
  std::atomic<bool> starved_{false};    // what comes in waits for room in the ring

  std::atomic<std::uint64_t> caller_ns_{0};  // when a caller last polled
  std::atomic<bool> retired_{false};  // the peer has said goodbye on this socket, which is not the first
  std::atomic<bool> heard_{true};
  std::atomic<bool> spoke_{true};
  std::uint64_t heard_ns_ = 0;  // on_time's own: when heard_ was last seen set
  std::uint64_t spoke_ns_ = 0;
  std::uint64_t pinged_ns_ = 0;
};

}  // namespace headrace::tcp
