// SPDX-License-Identifier: Apache-2.0
// The channels of messages between ranks: where their ends lie, and which messages go in one launch.
#pragma once

#include "p2p/settings.hpp"

#include <headrace/plugin/comm_v1.h>
#include <headrace/plugin/kernels/collectives_v1.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace::p2p {

/// A send or a recv that is to go.
struct Message {
  std::uint64_t work;
  int peer;
  bool is_received;
  std::uint64_t address, bytes;
  void* stream;
  bool async;
  std::int64_t timeout_ns;
};
[[nodiscard]] Message message_of(const headrace_comm_call_v1& call, std::uint64_t work);

/// Each ordered pair of ranks has a channel, with an end at either rank. The ends of a rank lie behind its
/// box.
class Channels {
 public:
  Channels(int rank, int size, const Settings& settings);

  /// Of an end; the same on all ranks.
  [[nodiscard]] const headrace_collectives_box_v1& shape() const { return shape_; }
  /// How long an end of this shape is, and how many blocks an operation has; the same on all ranks.
  void set_end_bytes(std::uint64_t bytes) { end_bytes_ = bytes; }
  void share(std::uint32_t blocks);
  /// Places the ends of a rank as this GPU sees them.
  void place(int rank, std::uint64_t address) { ends_[static_cast<std::size_t>(rank)] = address; }

  /// Of all ends of a rank.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Blocks of each channel in a launch.
  [[nodiscard]] std::uint32_t blocks() const { return blocks_; }

  /// Messages that belong together, as launches: one, if it has room for all of them. Else the n-th ones of
  /// all channels come first, and then those of the channels in an order that is the same on all ranks: so
  /// ranks that have issued the same messages together do not wait for one another in a circle.
  [[nodiscard]] std::vector<std::vector<Message>> launches_of(std::span<const Message> messages) const;

  /// The arguments of one launch that say what goes where.
  struct Places {
    std::vector<headrace_collectives_channel_v1> channels;
    std::vector<headrace_collectives_message_v1> messages;
  };
  [[nodiscard]] Places places_of(std::span<const Message> messages) const;

 private:
  [[nodiscard]] headrace_collectives_channel_v1 channel_of(const Message& message) const;
  /// The end of a channel at rank `at`, with rank `with`; `is_inbound`: messages come to `at`.
  [[nodiscard]] std::uint64_t end_at(int at, int with, bool is_inbound) const;

  const int rank_, size_;
  headrace_collectives_box_v1 shape_{};
  std::uint64_t end_bytes_ = 0;
  std::uint32_t blocks_ = 1, most_channels_ = 1;  // of a launch
  std::array<std::uint64_t, HEADRACE_COLLECTIVES_MOST_RANKS> ends_{};
};

}  // namespace headrace::p2p
