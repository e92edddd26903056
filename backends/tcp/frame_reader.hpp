// SPDX-License-Identifier: Apache-2.0
// Turns what comes out of a socket into frames, without copying payload: it says where the next bytes belong,
// the owner lets the socket put them there and says how many came.
//
// Headers and ranges go through a small staging buffer. While payload is on its way the staging buffer stands
// behind the payload's place in the list of targets, so that one receive can finish a frame and bring the
// next header.
#pragma once

#include "backends/tcp/frame.hpp"

#include <headrace/result.hpp>

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace headrace::tcp {

class FrameReader {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    /// Header and ranges of a frame are there; the ranges' bytes are valid during the call. For `write`, and
    /// `read_data` that is no error: say by `place` where the payload goes, in order, or `discard`. An error
    /// ends the link.
    virtual Result<void> begin(const FrameHeader& header, const RangeList& ranges) = 0;
    /// The whole frame is there. `payload` is what was neither placed nor discarded.
    virtual Result<void> end(const FrameHeader& header, std::span<const std::byte> payload) = 0;
    /// The place cannot be written, from payload byte `at` on: it is read-only, or no memory any more. The
    /// rest is discarded.
    virtual void unwritable(std::uint64_t at) = 0;
  };

  static constexpr std::size_t staging_bytes = 16 * 1024;

  FrameReader();

  /// Where the next bytes go, at most `max_count` pieces; never empty. Valid until the next call.
  [[nodiscard]] std::span<iovec> targets(std::size_t max_count);
  /// The first `bytes` bytes of the targets are filled. Calls the handler for what that completes.
  ///   errors  corrupt, or what the handler said; then nothing more may be read
  Result<void> took(std::size_t bytes, Handler& handler);
  /// Bytes that were received before this reader was there.
  Result<void> feed(std::span<const std::byte> bytes, Handler& handler);

  // For the handler, in `begin`; `discard` also later, to keep the rest of a frame out of memory that is
  // going away.
  enum class Memory : std::uint8_t {
    callers,  ///< may be read-only, or gone: what has come already is put there by a call that may fail
    ours,
  };
  void place(void* at, std::size_t bytes, Memory memory = Memory::callers);
  /// Not all of the payload has its place yet: when what has one is full, the reader is starved.
  void place_more_later() { more_later_ = true; }
  void discard();

  /// Whether the rest of a payload has no place: `place` more and `go_on` before the next `targets`.
  [[nodiscard]] bool starved() const noexcept {
    return in_payload_ && !discarding_ && left_ > 0 && room() == 0;
  }
  /// Takes what has come already, after a place was given, or the rest was discarded, while nothing was
  /// received.
  ///   errors  as of `took`
  Result<void> go_on(Handler& handler);
  /// How much of the payload has come.
  [[nodiscard]] std::uint64_t payload_taken() const noexcept { return header_.payload - left_; }

  /// Whether a payload is on its way to a place of the handler's.
  [[nodiscard]] bool placing() const noexcept { return in_payload_ && !discarding_; }

  /// Whether a frame's payload is on its way, and how much of it is missing.
  [[nodiscard]] std::uint64_t payload_left() const noexcept { return in_payload_ ? left_ : 0; }
  [[nodiscard]] const FrameHeader& header() const noexcept { return header_; }

 private:
  void make_room(std::size_t needed);
  Result<bool> take_frame(Handler& handler);
  Result<bool> take_payload(Handler& handler);
  Result<void> begin_frame(Handler& handler);
  void forget_payload();
  void take_payload_from_staging(Handler& handler);
  std::size_t advance(std::size_t bytes);
  /// Of the placed part of the payload what is missing.
  [[nodiscard]] std::uint64_t room() const noexcept { return placed_ - payload_taken(); }

  std::unique_ptr<std::byte[]> staging_;
  std::size_t capacity_ = staging_bytes;
  std::size_t begin_ = 0, end_ = 0;          // unread bytes of staging
  std::size_t needed_ = frame_header_bytes;  // of them, before anything can be done
  FrameHeader header_;
  bool in_payload_ = false;
  bool discarding_ = false;
  bool more_later_ = false;    // not all of the payload has been placed
  bool all_ours_ = true;       // no place of the frame's so far is the caller's memory
  std::uint64_t left_ = 0;     // of the payload
  std::uint64_t placed_ = 0;   // by the handler, of the payload
  std::vector<iovec> pieces_;  // where the payload goes, from next_ on
  std::size_t next_ = 0;
  bool staging_in_pieces_ = false;  // between targets() and took()
  std::vector<std::byte> small_;    // payload that the reader keeps for the handler's `end`
  std::unique_ptr<std::byte[]> scrap_;
};

}  // namespace headrace::tcp
