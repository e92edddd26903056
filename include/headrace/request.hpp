// SPDX-License-Identifier: Apache-2.0
// Requests: move the pages of one list to or from the pages of another.
#pragma once

#include <headrace/pages.hpp>

#include <chrono>
#include <optional>
#include <span>

namespace headrace {

enum class Op : std::int32_t {
  read = 0,   ///< local <- remote
  write = 1,  ///< local -> remote
};

/// prepared -> posted -> (canceling ->) done | failed | canceled, and from any of these three posted again. A
/// post on a stream that is being captured leads to captured, which cancel() ends.
enum class RequestState : std::uint32_t { prepared, posted, canceling, done, failed, canceled, captured };

HEADRACE_API std::string_view state_name(RequestState state) noexcept;

using Timeout = std::optional<std::chrono::nanoseconds>;  ///< nullopt: without end
inline constexpr std::nullopt_t forever = std::nullopt;

struct RequestOptions {
  std::vector<std::string> backends = {};  ///< only these paths; empty: the best of all
  Timeout timeout = {};                    ///< each post is canceled after this long and ends timed_out
};

/// What a request to several peers moves to or from one of them. Each part takes the path that is best for
/// it, and moves whatever becomes of the others: the request ends when the last has ended, and fails as the
/// first that failed. What goes with a post (notification, stream) goes with each part; a notification is
/// delivered after that peer's own pages.
struct RequestPart {
  PageList local;
  PageList remote;  ///< of another peer in each part
  /// Page local_index[i] goes with page remote_index[i]; both without an address: page i of the lists with
  /// page i.
  std::span<const std::uint32_t> local_index = {};
  std::span<const std::uint32_t> remote_index = {};
};

/// Which of its lists' pages a request in a CUDA graph is to move, in place of those that it was made with.
struct PageIndices {
  /// Numbers of pages in the local and the remote list: of both as many, at most as many as the request has
  /// pages. An empty span without an address leaves that side's first numbers as they are.
  std::span<const std::uint32_t> local = {};
  std::span<const std::uint32_t> remote = {};
  /// Where they lie. dram: they are copied before the call returns. vram: the spans' addresses are a GPU's,
  /// and its memory is read in the order of the stream; the caller keeps it until then.
  MemoryKind kind = MemoryKind::dram;
  /// Whose lists they number, in a request to several peers; the other parts' pages stay as they are.
  std::size_t part = 0;
};

struct PostOptions {
  /// Delivered at the far side once the bytes are there (write) or have been taken (read). Up to 64 KiB.
  std::optional<std::string> notification = {};
  Timeout timeout = {};  ///< this post's own; nullopt: the request's
  /// A CUDA stream (CUstream, cudaStream_t; null: the default stream) of the GPU whose memory the local pages
  /// are: the pages move after what was queued on it before, and before what is queued on it later. The
  /// caller need not wait for either. If the stream is being captured, the move becomes part of the graph and
  /// nothing runs yet: the request is `captured`.
  std::optional<void*> stream = {};
  /// In a capture: what the graph reads before it moves, at every replay. In GPU memory, so that a model's
  /// own block tables say which pages move.
  std::optional<PageIndices> indices = {};
};

/// Of the last post that ended.
struct RequestTimes {
  std::uint64_t posted_at_ns = 0;  ///< CLOCK_MONOTONIC
  std::uint64_t post_ns = 0;       ///< spent inside post
  std::uint64_t transfer_ns = 0;   ///< from post to done
  std::uint64_t bytes = 0;
  std::uint64_t pages = 0;
  std::uint64_t posts = 0;  ///< of this request so far
};

/// How a part of a request stands. A request to one peer has one.
struct PartInfo {
  std::string peer;     ///< or this agent's own name
  std::string backend;  ///< that carries it
  std::uint64_t pages = 0;
  std::uint64_t bytes = 0;
  RequestState state = RequestState::prepared;
  Error error = {
      Code::ok, {}, no_page};  ///< of its last post, with the page's number in the part; Code::ok: none
};

struct CostEstimate {
  std::chrono::nanoseconds duration{};
  double margin = 0;   ///< the guess may be off by this share of itself
  std::string method;  ///< how it was guessed
  std::string backend;
};

/// A handle, cheap to copy. The last copy to go cancels what is in flight and keeps the page lists until it
/// is quiet; the memory itself is the caller's and must stay in place until the request has ended.
///
/// A captured request lies in a CUDA graph, whose replays run without the host: they move the pages in the
/// place where they stand in the graph, as often as it is replayed, one replay after another. The request
/// holds all that they touch: its regions cannot be deregistered, here or by their owner, and a peer's memory
/// stays mapped even if the peer dies. It must outlive the graph, and its agent must too; cancel(), or the
/// last handle to go, takes it out, and its graph is replayed no more.
///   threads  any; post, and set_indices, from one thread at a time
class Request {
 public:
  struct State;
  Request() = default;
  explicit Request(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Starts the transfer and returns. Small requests on mapped or attached paths are done when this returns.
  ///   errors  invalid_argument (posted already; the stream is of another GPU), would_block (a queue is full,
  ///   or, with a
  ///           stream, the way to the peer's memory is not made yet: poll, retry; before a capture, post once
  ///           without), peer_lost, not_found (a region has been revoked), not_supported (this path knows no
  ///           streams; a notification in a capture); with indices those of set_indices, and invalid_argument
  ///           (the stream is not being captured)
  ///   parts   an error of a part that others have begun beside is told by wait(). On a stream it is told
  ///   here too: the
  ///           others are under way, and with a capture taken out of the graph again, which is to be thrown
  ///           away
  HEADRACE_API Status post();
  HEADRACE_API Status post(const PostOptions& options);
  /// The state, after giving the path a slice of this thread's time.
  HEADRACE_API RequestState poll();
  /// The state, without doing anything.
  [[nodiscard]] HEADRACE_API RequestState state() const;
  /// Waits for the end. ok, the request's own error, timed_out: then it is still running, or
  /// invalid_argument: it was never posted, or is captured.
  HEADRACE_API Status wait(Timeout timeout = forever);
  /// Asks for an early end and returns at once; wait() tells when the memory is quiet. Nothing happens if it
  /// has ended. A captured request is let go of before this returns.
  HEADRACE_API void cancel();

  /// Changes which pages of its lists a captured request moves, without making its graph anew: queued on a
  /// stream, so that neither host nor GPU waits. `stream` is as in PostOptions; replays that are queued later
  /// in its order see them.
  ///   errors  invalid_argument (not captured; too many, or, in host memory, a number that its list does not
  ///   have: the page
  ///           says which; a stream of another GPU, or one that is being captured), not_supported (a list is
  ///           not uniform), would_block (64 changes are queued: let the stream catch up)
  HEADRACE_API Result<void> set_indices(const PageIndices& indices, void* stream);
  /// How many replays of a captured request have ended: their bytes can be read. Looks into memory, asks
  /// neither GPU nor peer.
  ///   errors  invalid_argument (not captured; or, at the page, a number that a GPU has written is not in its
  ///   list: a replay
  ///           passed over that page, told once), not_found (a region has been revoked), peer_lost: replays
  ///           since may have read or written what is no longer the peer's memory
  HEADRACE_API Result<std::uint64_t> check();

  /// Why it failed, with the peer's name and the page index; Code::ok and no text if it did not.
  [[nodiscard]] HEADRACE_API Error error() const;
  [[nodiscard]] HEADRACE_API RequestTimes times() const;
  /// The path, why it was chosen, and why the others were not.
  [[nodiscard]] HEADRACE_API std::string explain() const;
  /// The backend that carries it.
  [[nodiscard]] HEADRACE_API std::string backend() const;
  [[nodiscard]] HEADRACE_API Result<CostEstimate> cost() const;
  /// How each part stands, in the order in which they were given: which peers have their pages after a
  /// failure.
  [[nodiscard]] HEADRACE_API std::vector<PartInfo> parts() const;

  /// Calls `done` once for the end of each post, on the agent's callback thread. Replaces an earlier one.
  HEADRACE_API void on_done(std::function<void(Status)> done);
  /// A descriptor that turns readable at each end; owned by the request; read 8 bytes to clear it.
  HEADRACE_API Result<int> event_fd();

  [[nodiscard]] HEADRACE_API Op op() const;
  [[nodiscard]] HEADRACE_API std::uint64_t pages() const;
  [[nodiscard]] HEADRACE_API std::uint64_t bytes() const;
  /// The far side: a peer's name, or this agent's own; of several parts all, with commas.
  [[nodiscard]] HEADRACE_API std::string_view peer() const;

  [[nodiscard]] explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace headrace
