// SPDX-License-Identifier: Apache-2.0
// A peer of one NIC: one stream, and all posts over it.
//
// A stream keeps order, so a mark needs no counting of chunks, and its end fences the rail. Where one stream
// does not fill the link, a NIC is opened several times: each is a rail of its own.
#pragma once

#include "rail/stream/fetch.hpp"
#include "rail/stream/frame_reader.hpp"
#include "rail/stream/hello.hpp"
#include "rail/stream/nic_state.hpp"
#include "rail/stream/outgoing.hpp"
#include "rail/stream/stream.hpp"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headrace::rail::stream {

/// `state` outlives it.
class Peer final : FrameReader::Handler {
 public:
  enum class Life : std::uint8_t {
    connecting,  ///< the stream is
    greeting,    ///< the hello of the other side has not come
    usable,
    lost,
  };
  /// How it came: a stranger is a stream that came in and has not said hello.
  enum class Role : std::uint8_t { added, stranger };
  struct Setup {
    PeerId id{};
    Role role{};
    std::uint64_t wanted_life = 0;  ///< of one that was added
    std::string hello;              ///< the same
    std::uint64_t deadline_ns = 0;  ///< for its hello
    std::string where;              ///< for sentences
  };
  Peer(NicState& state, Setup setup, std::unique_ptr<Stream> stream);
  ~Peer() override;

  [[nodiscard]] PeerId id() const { return setup_.id; }
  [[nodiscard]] Life life() const { return life_; }
  /// Nobody has heard of it yet.
  [[nodiscard]] bool is_stranger() const { return setup_.role == Role::stranger && !joined_; }
  [[nodiscard]] bool greets() const { return life_ == Life::connecting || life_ == Life::greeting; }
  [[nodiscard]] std::uint64_t deadline_ns() const { return setup_.deadline_ns; }
  /// Something waits that `flush` could send.
  [[nodiscard]] bool has_output() const {
    return !blocked_ && !outgoing_.empty() && (life_ == Life::greeting || life_ == Life::usable);
  }

  // What the NIC passes on.
  /// Of the set.
  void on_event(std::uint32_t events);
  /// What the set has not told.
  void look();
  /// As of a stream.
  [[nodiscard]] bool arm() { return stream_ == nullptr || stream_->arm(); }
  void disarm() {
    if (stream_ != nullptr) stream_->disarm();
  }
  void flush();
  /// Copies bytes that the peer has named, some at a time.
  void fetch();
  /// A memory of a GPU is registered no more.
  void hide(std::uint32_t memory) {
    if (stream_ != nullptr) stream_->hide(memory);
  }
  /// A memory that was hidden: the peer may have it open yet.
  [[nodiscard]] bool is_open_there(std::uint32_t memory) const {
    return stream_ != nullptr && stream_->is_open_there(memory);
  }
  [[nodiscard]] bool has_fetches() const { return !fetches_.empty(); }
  /// Bytes have come since this was last asked.
  [[nodiscard]] bool take_heard() { return std::exchange(heard_, false); }
  /// Gives the next waiting message its receive. False: there is no such message, or no receive.
  bool serve_offer();
  /// Ends the stream and all posts; a peer that has a user hears `lost`.
  void lose(const Error& why);
  /// The same, without `lost`; then `dropped`.
  void drop();

  // What the user posts. A peer that ends nothing fills its own count alone.
  Result<RemoteId> load(std::string_view key);
  void unload(RemoteId memory) { loaded_.erase(static_cast<std::uint32_t>(memory)); }
  Status write(const Write& write);
  Status read(const Read& read);
  Status message(const LocalRange& bytes, std::uint64_t token);
  void cancel(std::uint64_t token);

 private:
  struct Post {
    FrameType type = FrameType::write;  // or read, offer, fetch
    std::uint64_t token = 0;
    std::vector<Range> local = {};           // of a read, a long message, a fetch
    std::vector<Range> remote = {};          // of a fetch
    std::optional<std::uint32_t> mark = {};  // the same
    bool gpu = false;                        // of a fetch
    bool sent = false;                       // nothing of it waits here
    bool done = false;                       // its bytes are where they belong, as far as this side can see
    std::uint64_t bytes = 0;                 // of a read
    bool lent = false;                       // of a read: this side copies its bytes
  };
  struct Offer {
    std::uint64_t post = 0;
    std::uint32_t bytes = 0;
    std::string message;  // empty: a long one, which has not come
  };

  // Greeting.
  void on_ready(std::uint32_t events);
  Result<void> receive_hello();
  Result<void> greeted();

  // Frames.
  Result<void> receive();
  Result<std::size_t> receive_some();
  Result<void> begin(const FrameHeader& header, std::vector<Range> ranges) override;
  Result<void> end(const FrameHeader& header, std::string_view kept, bool refused) override;
  Result<void> begin_request(const FrameHeader& header, std::vector<Range> ranges);
  void begin_write(std::vector<Range> ranges);
  void begin_read(const FrameHeader& header, std::vector<Range> ranges);
  Result<void> begin_data(const FrameHeader& header);
  Result<void> begin_message(const FrameHeader& header);
  void end_write(const FrameHeader& header, bool refused);
  Result<void> end_fetch(const FrameHeader& header, std::string_view sources);
  Result<void> end_lend(const FrameHeader& header, std::string_view sources);
  Result<void> returned(const FrameHeader& header);
  Result<void> finish_fetch(Code code);
  void begin_gpu_fetches();
  void send_data(std::uint64_t post, std::vector<Range> ranges);
  Code lend(std::uint64_t post, const std::vector<Range>& ranges);
  Result<std::vector<Source>> tell_places(const std::vector<Range>& ranges, Access least);
  [[nodiscard]] bool is_allowed(const RangeCursor& cursor) const;
  [[nodiscard]] bool is_of_gpu(const RangeCursor& cursor, const std::vector<Source>& sources) const;
  Result<void> end_data(const FrameHeader& header, bool refused);
  Result<void> end_offer(const FrameHeader& header, std::string_view kept);
  void end_message(const FrameHeader& header, std::string_view kept);
  Result<void> taken(const FrameHeader& header);
  Result<void> ended(const FrameHeader& header);
  void answer(std::uint64_t post, Code code);
  void send_answer(FrameHeader header);
  bool deliver(const Offer& offer, const Receive& receive);
  void say_received(const Receive& receive, std::uint32_t bytes);

  // Posts.
  struct Moves {
    std::vector<Range> local, remote;
    std::uint64_t bytes = 0;
    bool gpu = false;  // memory of GPUs takes part
  };
  Status look_at(std::span<const Move> moves, Moves& looked) const;
  [[nodiscard]] bool is_registered(const Range& range) const;
  std::uint64_t keep(Post post);
  void send_write(std::uint64_t token, Moves moves, std::optional<std::uint32_t> mark);
  Status let_fetch(std::uint64_t token, Moves moves, std::optional<std::uint32_t> mark);
  void send_instead(std::map<std::uint64_t, Post>::iterator at);
  void finished(const OutFrame& frame);
  void end_post(std::map<std::uint64_t, Post>::iterator at, Code code);
  void close();
  void say(Event event);
  void set_blocked(bool blocked);
  [[nodiscard]] Error lie(std::uint64_t post, std::string_view what) const;

  NicState& state_;
  const Setup setup_;
  std::unique_ptr<Stream> stream_;  // none: lost or dropped
  Life life_;
  bool joined_ = false;  // a stranger has become a peer
  bool heard_ = false;
  bool blocked_ = false;  // the stream takes no more for now
  std::string hello_;     // of the other side, as far as it has come
  FrameReader reader_;
  Outgoing outgoing_;
  std::uint64_t their_life_ = 0;

  std::map<std::uint64_t, Post> posts_;
  std::uint64_t next_post_ = 1;
  struct Loaded {
    std::uint32_t memory = 0;  // the peer's number
    bool gpu = false;
  };
  std::unordered_map<std::uint32_t, Loaded> loaded_;  // by RemoteId
  std::uint32_t next_remote_ = 0;

  std::uint64_t last_request_ = 0;                    // the number of the peer's latest post
  bool refused_ = false;                              // the frame that comes now
  std::vector<Range> fetched_;                        // its ranges, of a fetch
  std::deque<Fetch> fetches_;                         // the first one is under way
  std::map<std::uint64_t, std::vector<Range>> lent_;  // by post: what the peer copies
  std::deque<Offer> offers_;                          // without a receive
  std::map<std::uint64_t, std::uint32_t> taken_;      // by post: bytes that are to come
};

}  // namespace headrace::rail::stream
