// SPDX-License-Identifier: Apache-2.0
// What a fabric's posts become: work that ends once, and immediates that are counted at the far side.
#pragma once

#include <headrace/fabric_words.hpp>
#include <headrace/request.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace headrace {

namespace fabric {
class Core;
class Expectation;
class Receiver;
class Work;
}  // namespace fabric

/// How often the peer counts an immediate.
enum class FabricCountBy : std::uint8_t {
  request,  ///< once, when all bytes are there
  page,     ///< once for each page, when all bytes are there. A post of other calls has one, of 0 pages none
  shard,    ///< once for each network card of the group, when all bytes are there
};

/// Which network cards carry a post.
enum class FabricSpread : std::uint8_t {
  free,     ///< the one that would be done first: idle ones take work, and unequal ones fill up
  in_turn,  ///< one after the other, by chunks
  pinned,   ///< one, once it is connected and as long as it lives; a scatter's targets on this host are
            ///< reached by "this host" all the same
  by_peer,  ///< of a scatter: one for each target, in turn, "this host" for those there; of other posts it is
            ///< `free`
};

/// What goes with one post.
struct FabricPost {
  /// Counted by the peer after the bytes of this post: Fabric::expect there. At each peer, if there are
  /// several.
  std::optional<Immediate> immediate = {};
  FabricCountBy count_by = FabricCountBy::request;
  FabricSpread spread = FabricSpread::free;
  std::uint32_t nic = 0;  ///< pinned: its place in FabricGroup::nics
  Timeout timeout = {};   ///< then the post is canceled and ends with timed_out; nullopt: no limit
};

/// A post. A handle, cheap to copy; the post goes on without handles. `posted` (-> `canceling`) -> `done`,
/// `failed` or `canceled`, once. At the end no network card touches the memory of the post any more, here
/// and, over all links that live, at the peer. `done`: the bytes can be read at the peer (write) or here
/// (read), and its immediate is counted, or will be, unless the link is lost first.
///   threads  any
class FabricWork {
 public:
  FabricWork() = default;

  [[nodiscard]] HEADRACE_API RequestState state() const;
  /// Waits until it has ended. Returns ok, its error, or timed_out: then it still runs if `state` says so.
  HEADRACE_API Status wait(Timeout timeout = forever) const;
  /// Asks that it ends, and returns at once. Does nothing if it has ended.
  HEADRACE_API void cancel() const;
  /// Calls `done` once, on the callback thread of the fabric; also if it has ended already. Replaces an
  /// earlier function that was not called.
  HEADRACE_API void on_done(std::function<void(Status)> done) const;
  /// A descriptor that becomes readable at the end and stays so. It belongs to the work: do not close it.
  ///   errors  exhausted
  [[nodiscard]] HEADRACE_API Result<int> event_fd() const;
  /// Why it failed: operation, peer, network card where one is known, page. Code::ok if it did not fail.
  [[nodiscard]] HEADRACE_API Error error() const;
  /// Of the post, to all peers; of a receive that is done, of the message.
  [[nodiscard]] HEADRACE_API std::uint64_t bytes() const;
  [[nodiscard]] explicit operator bool() const noexcept { return work_ != nullptr; }

 private:
  friend class fabric::Core;
  explicit FabricWork(std::shared_ptr<fabric::Work> work) : work_(std::move(work)) {}
  std::shared_ptr<fabric::Work> work_;
};

/// Counts an immediate in rounds of n arrivals. What exceeds n stays for the next round. A handle, cheap to
/// copy; it counts without handles, until `remove` or the close of the fabric.
///
/// Who sees that a round is full, by any of these ways, can read the bytes of its posts: from the host, and
/// by GPU work that is submitted afterwards.
///   threads  any
class FabricExpectation {
 public:
  FabricExpectation() = default;

  [[nodiscard]] HEADRACE_API Immediate immediate() const;
  /// Arrivals of a round.
  [[nodiscard]] HEADRACE_API std::uint64_t arrivals_each() const;
  /// Takes the next full round that no `wait` has taken, and waits for it. Returns ok, timed_out, or canceled
  /// (removed, or the fabric is closed).
  HEADRACE_API Status wait(Timeout timeout = forever) const;
  /// Calls `reached` on the callback thread for each round that is full and that it was not called for, until
  /// it returns false. Replaces an earlier function.
  HEADRACE_API void on_reached(std::function<bool()> reached) const;
  /// An eventfd that grows by one with each round. Read 8 bytes to clear it. It belongs to the expectation:
  /// do not close it. It becomes readable for good when the expectation is removed or the fabric is closed.
  ///   errors  exhausted
  [[nodiscard]] HEADRACE_API Result<int> event_fd() const;
  /// The number of full rounds: it grows by one with each. Load it with acquire order. It lives as long as a
  /// handle.
  [[nodiscard]] HEADRACE_API const std::atomic<std::uint64_t>& rounds() const;
  /// A word that grows with the rounds, for kernels and streams of GPUs. Any number of them.
  ///   errors  not_supported (no GPU driver), invalid_argument (no such GPU, not aligned, ended already),
  ///           not_found (no memory of this GPU there), exhausted
  [[nodiscard]] HEADRACE_API Result<FabricFlag> flag(const FabricFlagPlace& place = {}) const;
  /// Ends it; waits return canceled. Returns the arrivals of the round that is not full. Later arrivals are
  /// unexpected ones.
  HEADRACE_API std::uint64_t remove() const;
  [[nodiscard]] explicit operator bool() const noexcept { return expectation_ != nullptr; }

 private:
  friend class fabric::Core;
  explicit FabricExpectation(std::shared_ptr<fabric::Expectation> expectation)
      : expectation_(std::move(expectation)) {}
  std::shared_ptr<fabric::Expectation> expectation_;
};

/// Receives messages, one after the other, into buffers of its own. A handle, cheap to copy; it receives
/// without handles, until `stop` or the close of the fabric.
///   threads  any
class FabricReceiver {
 public:
  FabricReceiver() = default;
  /// Returns at once; a message that has begun to come may still be told.
  HEADRACE_API void stop() const;
  [[nodiscard]] explicit operator bool() const noexcept { return receiver_ != nullptr; }

 private:
  friend class fabric::Core;
  explicit FabricReceiver(std::shared_ptr<fabric::Receiver> receiver) : receiver_(std::move(receiver)) {}
  std::shared_ptr<fabric::Receiver> receiver_;
};

}  // namespace headrace
