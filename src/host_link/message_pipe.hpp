// SPDX-License-Identifier: Apache-2.0
// The messages of one link: two rings in one sealed memory file, two doorbells, and what waits for room.
#pragma once

#include "host_link/bell.hpp"
#include "host_link/memory_file.hpp"
#include "host_link/ring.hpp"

#include <headrace/plugin/backend.hpp>
#include <headrace/result.hpp>

#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::host_link {

/// The longest message: 64 KiB of a user's and the 16 bytes that the agent puts before it (docs/wire.md,
/// section 4).
inline constexpr std::uint64_t max_message_bytes = 64 * 1024 + 16;

/// The channel of the counts of posts, which the host does not use.
inline constexpr std::uint32_t count_channel = UINT32_MAX;
/// A message there: so many posts with this immediate have arrived.
struct CountRecord {
  plugin::Immediate immediate;
  std::uint32_t posts = 1;

  [[nodiscard]] std::string_view bytes() const { return {reinterpret_cast<const char*>(this), sizeof *this}; }
};
static_assert(sizeof(CountRecord) == 12);

/// Layout of the file: the first 64 KiB hold this header and, from 1024 on, the two RingControls; then come
/// the data of ring 0 (from the side that connected) and of ring 1 (to it).
struct PipeHeader {
  std::uint32_t magic;
  std::uint32_t version;
  std::uint64_t ring_bytes;
};

class MessagePipe {
 public:
  /// What the connecting side sends to the other: the file, the end that rings our bell, the end of its bell
  /// that the peer waits for.
  using Descriptors = std::array<int, 3>;

  /// The connecting side makes it. Nothing is sent through it before the link is ready.
  [[nodiscard]] static Result<std::unique_ptr<MessagePipe>> create(std::uint64_t ring_bytes,
                                                                   std::uint64_t queue_bytes);
  /// The accepting side takes over what came in, in the order of `descriptors`.
  ///   errors   corrupt (sizes, seals, the header or the bells are not what they should be)
  [[nodiscard]] static Result<std::unique_ptr<MessagePipe>> adopt(UniqueFd file, UniqueFd their_bell,
                                                                  UniqueFd our_bell,
                                                                  std::uint64_t queue_bytes);
  [[nodiscard]] Descriptors descriptors() const {
    return {file_.get(), to_send_[0]->get(), to_send_[1]->get()};
  }
  /// The ends among them that this side keeps only until they have been sent.
  [[nodiscard]] std::vector<std::shared_ptr<const UniqueFd>> ends_to_send() const { return to_send_; }
  void forget_ends() { to_send_.clear(); }

  // Sending: any thread. Messages of one channel go in the order of `send`, `send_reserved` and `take_place`:
  // what comes behind a place that is still empty waits for it, other channels do not.

  /// would_block when there is no room in the ring, or behind what waits; corrupt when the peer broke the
  /// ring.
  [[nodiscard]] Status send(std::uint32_t channel, std::string_view bytes);
  /// Makes room for a message, so that sending it later cannot fail. would_block: too much is reserved
  /// already.
  [[nodiscard]] Status reserve(std::uint64_t message_bytes);
  void cancel_reservation(std::uint64_t message_bytes);
  /// Sends what was reserved, after all that was sent before.
  void send_reserved(std::uint32_t channel, std::string_view bytes);
  /// The same without a reservation, however much waits: for a few short messages.
  void send_beyond(std::uint32_t channel, std::string_view bytes);

  struct Waiting {
    std::string bytes;
    bool filled = false;
  };
  using Place = std::list<Waiting>::iterator;
  /// Keeps a place for a reserved message that will be known later.
  [[nodiscard]] Place take_place(std::uint32_t channel);
  void fill_place(Place place, std::string_view bytes);
  /// Gives it back, with the reservation.
  void give_up_place(std::uint32_t channel, Place place, std::uint64_t message_bytes);

  /// How many messages are not in the ring yet.
  [[nodiscard]] std::uint64_t waiting() const;
  /// Moves what waits into the ring. Returns how many went.
  std::uint32_t flush();
  /// Something waits for nothing but room in the ring.
  [[nodiscard]] bool wants_room() const { return wants_room_.load(std::memory_order_acquire); }
  /// The peer has written nonsense into the ring's control words.
  [[nodiscard]] bool broken() const { return broken_.load(std::memory_order_acquire); }

  // Receiving: the progress thread.

  RingReader& reader() { return reader_; }
  /// After a run of pops: rings a writer that waits for room, and expects an answer.
  void settle() {
    if (reader_.writer_starves()) ring_bell(their_bell_);
    writer_.prefetch();
  }
  /// The reader is about to sleep: the writer rings from now on. False: there may be something to do already.
  [[nodiscard]] bool arm();
  [[nodiscard]] int bell() const { return our_bell_.get(); }

 private:
  /// The messages of one channel that wait.
  struct Lane {
    std::uint32_t channel = 0;
    std::list<Waiting> waiting;
  };

  MessagePipe(UniqueFd file, UniqueFd our_bell, UniqueFd their_bell, std::uint64_t queue_bytes)
      : file_(std::move(file)),
        our_bell_(std::move(our_bell)),
        their_bell_(std::move(their_bell)),
        queue_bytes_(queue_bytes) {}
  Result<void> map(std::uint64_t ring_bytes, bool connecting);
  Lane& lane_locked(std::uint32_t channel);
  std::uint32_t flush_locked();
  RingWriter::Push push_locked(std::uint32_t channel, std::string_view bytes);

  UniqueFd file_;
  UniqueFd our_bell_;    // the end that waits
  UniqueFd their_bell_;  // the end that rings
  std::vector<std::shared_ptr<const UniqueFd>> to_send_;
  std::atomic<std::uint32_t> may_have_rung_{
      0};  // how often the peer had a reason to ring since the last drain
  Mapping header_;
  std::array<Mapping, 2> data_;
  RingReader reader_;

  mutable std::mutex mutex_;
  RingWriter writer_;
  const std::uint64_t queue_bytes_;
  std::uint64_t reserved_ = 0;  // bytes of messages that wait, or may come to
  std::vector<Lane> lanes_;     // few: the host has two channels
  std::atomic<bool> wants_room_{false};
  std::atomic<bool> broken_{false};
};

}  // namespace headrace::host_link
