// SPDX-License-Identifier: Apache-2.0
// What the parts of a channel share: its socket, and what receiver and sender leave for one another.
#pragma once

#include "backends/tcp/frame.hpp"
#include "backends/tcp/io_thread.hpp"
#include "base/unique_fd.hpp"
#include "transport/chunk_table.hpp"
#include "transport/heartbeat.hpp"
#include "transport/host_calls.hpp"

#include <headrace/result.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace headrace::tcp {

using transport::HostCalls;
using transport::Unanswered;

struct Context;
class Link;

/// Who drives: an I/O thread does all there is, a caller's thread a piece and never waits for another.
enum class Driver { io_thread, caller };
/// Rounds of a driver before it looks after others: receives, and batches sent.
inline int rounds_of(Driver driver) { return driver == Driver::io_thread ? 8 : 1; }

/// A write that is to be answered, in order of arrival.
struct Acknowledgement {
  std::uint64_t request = 0;
  std::uint32_t chunk = 0;
  Code code = Code::ok;
  std::uint64_t good_bytes = UINT64_MAX;  // of the chunk, before the first that could not be reached
};
/// A read that is to be answered.
struct Answer {
  FrameHeader header;  // of the read
  std::vector<std::byte> ranges;
};

struct ChannelState {
  ChannelState(Watched& its_channel, std::shared_ptr<Link> its_link, unsigned number, UniqueFd socket,
               IoThread& its_thread);

  /// The I/O thread pumps soon.
  void kick() { thread.kick(channel.shared_from_this()); }
  /// The I/O thread looks again and again for what GPUs have ended.
  void look_after() { thread.look_after(channel.shared_from_this()); }
  /// The heartbeat goes on, with this as its beginning. With the link's lock.
  void rouse();
  /// A write's bytes are where they belong, or were refused: it is answered.
  ///   errors  corrupt (the peer asks more than it may)
  Result<void> landed(HostCalls& calls, const FrameHeader& header, Code code, std::uint64_t good_bytes);
  /// Forgets what waits for an answer, here or there: the socket has been closed.
  void clear();

  Watched& channel;
  const std::shared_ptr<Link> link;
  Context& context;
  const unsigned index;
  IoThread& thread;
  UniqueFd fd;  // closed with the locks of receiver and sender held

  // With the link's lock.
  bool idle = true;      // nothing to send, and nobody is about to
  bool resting = false;  // no heartbeat: nothing is under way here, and the link's first socket has one
  bool ping_due = false;
  bool pong_due = false;
  std::deque<Acknowledgement> acknowledgements;
  std::deque<Answer> answers;
  std::size_t answer_ranges = 0;
  transport::ChunkTable writes;
  transport::ChunkTable reads;
  std::uint64_t staged_bytes = 0;  // of writes that GPUs gather and that are not in `writes` yet

  std::atomic<bool> gathering{false};  // frames wait for GPUs, to go out
  std::atomic<bool> landing{false};    // frames that came in wait for GPUs
  std::atomic<bool> starved{false};    // what comes in waits for room in the ring
  std::atomic<bool> retired{false};    // the peer has said goodbye on this socket, which is not the first
  transport::Heartbeat heartbeat;
};

}  // namespace headrace::tcp
