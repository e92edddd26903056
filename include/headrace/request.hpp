// SPDX-License-Identifier: Apache-2.0
// Requests: move the pages of one list to or from the pages of another.
#pragma once

#include <headrace/pages.hpp>

#include <chrono>
#include <optional>
#include <span>

namespace headrace {

namespace engine {
class Transfer;
}

enum class Op : std::int32_t {
  read = 0,   ///< local <- remote
  write = 1,  ///< local -> remote
};

/// prepared -> posted -> (canceling ->) done | failed | canceled. From any of the last three a request can be
/// posted again. A post on a stream that is being captured leads to `captured`, which cancel() ends.
enum class RequestState : std::uint32_t { prepared, posted, canceling, done, failed, canceled, captured };

/// The name of a state, as written in this header.
HEADRACE_API std::string_view state_name(RequestState state) noexcept;

using Timeout = std::optional<std::chrono::nanoseconds>;  ///< nullopt: no limit
inline constexpr std::nullopt_t forever = std::nullopt;

struct RequestOptions {
  /// Only these paths, and inside the agent `local` if none of them can; empty: the best of all.
  std::vector<std::string> backends = {};
  Timeout timeout = {};  ///< of each post: after this time it is canceled and ends with timed_out
};

/// What moves to or from one peer: page local_index[i] of `local` with page remote_index[i] of `remote`.
/// Without indices page i goes with page i.
///
/// A request has one part, or one for each of several peers. Each part takes its own best path. A part that
/// fails does not stop the others: the request ends when its last part has ended, with the error of the part
/// that failed first. Notification and stream of a post go with each part. Each peer receives the
/// notification after its own pages.
struct RequestPart {
  PageList local;
  PageList remote;  ///< each part has another peer
  PageNumbers local_index = {};
  PageNumbers remote_index = {};
};

/// The pages that a captured request moves instead of those that it was made with.
struct PageIndices {
  /// Indices of pages in the local and the remote list. Both have the same length, at most the number of
  /// pages of the request. An empty span with a null address leaves the first indices of that side as they
  /// are.
  std::span<const std::uint32_t> local = {};
  std::span<const std::uint32_t> remote = {};
  /// Memory of the two arrays. dram: they are copied before the call returns. vram: the addresses are a
  /// GPU's, and the GPU reads them in the order of the stream; the caller keeps them until then.
  MemoryKind kind = MemoryKind::dram;
  /// In a request to several peers: the part whose lists are indexed. Other parts keep their pages.
  std::size_t part = 0;
};

/// What a post adds to at its peer: Agent::counter there counts the posts that arrived with it.
struct Immediate {
  std::uint32_t value = 0;
  std::uint32_t scope = 0;  ///< the same value in another scope is another immediate

  friend bool operator==(const Immediate&, const Immediate&) = default;
};

/// The most bytes of a notification.
inline constexpr std::size_t max_notification_bytes = 64 * 1024;

/// What goes with one post.
struct PostOptions {
  /// Delivered to the peer once the bytes have arrived (write) or have been taken (read). Up to 64 KiB.
  std::optional<std::string> notification = {};
  /// Counted by the peer once the bytes have arrived (write) or have been taken (read): Agent::counter. A
  /// post that succeeds is counted once, unless the link is lost; one that fails is not counted. After a
  /// failure of its path a post with an immediate ends, and tries no other path. In a capture every replay
  /// is counted.
  std::optional<Immediate> immediate = {};
  Timeout timeout = {};  ///< of this post; nullopt: the request's
  /// A CUDA stream (CUstream or cudaStream_t; null: the default stream) of the GPU that has the local pages.
  /// The pages move after the work that the stream holds already, and before work that is queued later. The
  /// host does not wait. If the stream is being captured, the move becomes part of the graph, nothing runs
  /// yet, and the request is `captured`.
  std::optional<void*> stream = {};
  /// In a capture: indices that the graph reads before it moves, at every replay. They lie in GPU memory, so
  /// that a model's block tables can choose the pages.
  std::optional<PageIndices> indices = {};
};

/// Times and counts of the last post that ended.
struct RequestTimes {
  std::uint64_t posted_at_ns = 0;  ///< CLOCK_MONOTONIC
  std::uint64_t post_ns = 0;       ///< time inside post
  std::uint64_t transfer_ns = 0;   ///< time from post to completion
  std::uint64_t bytes = 0;
  std::uint64_t pages = 0;
  std::uint64_t posts = 0;  ///< number of posts of this request so far
};

/// The state of one part of a request. A request to one peer has one part.
struct PartInfo {
  std::string peer;     ///< or this agent's own name
  std::string backend;  ///< that carries the part
  std::uint64_t pages = 0;
  std::uint64_t bytes = 0;
  RequestState state = RequestState::prepared;
  /// Of its last post; the page counts within the part. Code::ok: no error.
  Error error = {Code::ok, {}, no_page};
};

/// How long a request is expected to take.
struct CostEstimate {
  std::chrono::nanoseconds duration{};
  double margin = 0;   ///< the error of the estimate, as a fraction of it
  std::string method;  ///< how it was estimated
  std::string backend;
};

/// A handle, cheap to copy. When the last copy goes, the post in flight is canceled, and the page lists are
/// kept until its memory is quiet. The memory stays the caller's and must stay in place until the request has
/// ended.
///
/// A captured request is part of a CUDA graph. Each replay moves the pages at that place of the graph,
/// without the host, one replay after another. The request holds everything that replays touch: its regions
/// cannot be deregistered, here or by their owner, and a peer's memory stays mapped even if the peer dies.
/// The request and its agent must outlive the graph. After cancel(), or once the last handle is gone, the
/// graph must not be replayed.
///   threads  any; post and set_indices from one thread at a time
class Request {
 public:
  Request() = default;
  /// By the agent. The deleter of `transfer` cancels.
  explicit Request(std::shared_ptr<engine::Transfer> transfer) : transfer_(std::move(transfer)) {}

  /// Starts the request and returns. A small request on a mapped or attached path is done when this returns.
  ///   errors  invalid_argument (posted already; the stream is of another GPU), would_block (a queue is full:
  ///           poll, retry; or, with a stream, the peer's memory is not mapped yet: poll, retry, and before a
  ///           capture post once without a capture), peer_lost, not_found (a region has been revoked),
  ///           not_supported (this path has no streams; a notification in a capture). With indices also the
  ///           errors of set_indices, and invalid_argument (the stream is not being captured)
  ///   parts   if a part fails and others have begun, wait() returns the error. On a stream post() returns it
  ///           too: the other parts are under way. In a capture the parts are withdrawn from the graph:
  ///           discard it
  HEADRACE_API Status post();
  HEADRACE_API Status post(const PostOptions& options);
  /// Runs progress once on this thread and returns the state.
  HEADRACE_API RequestState poll();
  /// Returns the state and does nothing else.
  [[nodiscard]] HEADRACE_API RequestState state() const;
  /// Waits until the post has ended. Returns ok, the request's error, timed_out (the post still ran), or
  /// invalid_argument (never posted, or captured). If state() has ended after timed_out, wait(0) tells how.
  HEADRACE_API Status wait(Timeout timeout = forever);
  /// Asks that the post ends, and returns at once; wait() returns when the memory is quiet. Does nothing if
  /// the post has ended. A captured request has left the state `captured` when this returns.
  HEADRACE_API void cancel();

  /// Changes the pages that a captured request moves, without a new graph. The change is queued on `stream`
  /// (as in PostOptions); neither host nor GPU waits. Replays that are queued on it later use the new pages.
  ///   errors  invalid_argument (not captured; too many indices; an index in host memory that its list does
  ///           not have: see the page; a stream of another GPU, or one that is being captured), not_supported
  ///           (a list is not uniform), would_block (64 changes are queued: wait until the stream has caught
  ///           up)
  HEADRACE_API Result<void> set_indices(const PageIndices& indices, void* stream);
  /// The number of replays of a captured request that have ended: their bytes can be read. Reads host memory
  /// and asks neither GPU nor peer.
  ///   errors  invalid_argument (not captured; or, at the page, an index in GPU memory that its list does not
  ///           have: a replay skipped that page, and this is reported once), not_found (a region has been
  ///           revoked), peer_lost. After the last two, replays may have read or written memory that is no
  ///           longer the peer's
  HEADRACE_API Result<std::uint64_t> check();

  /// Why the last post failed, with the peer's name and the page; Code::ok and no text if it did not fail.
  [[nodiscard]] HEADRACE_API Error error() const;
  [[nodiscard]] HEADRACE_API RequestTimes times() const;
  /// The path, why it was chosen, and why the others were not chosen.
  [[nodiscard]] HEADRACE_API std::string explain() const;
  /// The backend that carries the request.
  [[nodiscard]] HEADRACE_API std::string backend() const;
  [[nodiscard]] HEADRACE_API Result<CostEstimate> cost() const;
  /// The state of each part, in the order in which they were given. After a failure this shows which peers
  /// have their pages.
  [[nodiscard]] HEADRACE_API std::vector<PartInfo> parts() const;

  /// Calls `done` once for each completion, on the agent's callback thread. Replaces an earlier function.
  HEADRACE_API void on_done(std::function<void(Status)> done);
  /// An eventfd that becomes readable at each completion. Read 8 bytes to clear it. It belongs to the
  /// request. One eventfd for many requests: CompletionQueue.
  HEADRACE_API Result<int> event_fd();

  [[nodiscard]] HEADRACE_API Op op() const;
  [[nodiscard]] HEADRACE_API std::uint64_t pages() const;
  [[nodiscard]] HEADRACE_API std::uint64_t bytes() const;
  /// The peer's name, or this agent's own; of several parts all names, with commas.
  [[nodiscard]] HEADRACE_API std::string_view peer() const;

  [[nodiscard]] explicit operator bool() const noexcept { return transfer_ != nullptr; }

 private:
  friend class CompletionQueue;
  std::shared_ptr<engine::Transfer> transfer_;
};

}  // namespace headrace
