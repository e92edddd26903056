// SPDX-License-Identifier: Apache-2.0
// Turns what comes out of a stream into frames. It says where the next bytes belong, the owner lets the
// stream put them there and says how many came: long payload goes straight into its place.
#pragma once

#include "rail/stream/frame.hpp"
#include "rail/stream/range_cursor.hpp"

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail::stream {

class FrameReader {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    /// Header and ranges are there and checked. Says by `place` or `keep` where the payload goes; else it is
    /// thrown away. An error ends the peer.
    virtual Result<void> begin(const FrameHeader& header, std::vector<Range> ranges) = 0;
    /// The whole frame is there. `refused`: a part of its place was no longer registered when it came.
    virtual Result<void> end(const FrameHeader& header, std::string_view kept, bool refused) = 0;
  };

  static constexpr std::size_t staging_bytes = 64 * 1024;
  static_assert(staging_bytes >= header_bytes + max_ranges * range_bytes);

  /// `memories` outlives it.
  explicit FrameReader(const Memories& memories)
      : memories_(memories), staging_(new std::byte[staging_bytes]), scrap_(new std::byte[staging_bytes]) {}

  /// Where the next bytes go; never empty. Valid until `took`, while `view` lives.
  [[nodiscard]] std::span<iovec> targets(Memories::View& view);
  /// The first `bytes` bytes of the targets are filled. Calls the handler, with no view held.
  ///   errors  corrupt, or what the handler said; then nothing more may be read
  Result<void> took(std::size_t bytes, Handler& handler);

  // For the handler, in `begin`.
  void place(RangeCursor cursor) { cursor_ = std::move(cursor), fate_ = Fate::placed; }
  void keep() { fate_ = Fate::kept; }  ///< for short payloads

 private:
  enum class Fate : std::uint8_t { scrapped, placed, kept };

  Result<bool> step(Handler& handler);
  Result<bool> begin_frame(Handler& handler);
  Result<bool> take_payload(Handler& handler);
  void copy_to_place(std::size_t bytes);
  void refuse() { fate_ = Fate::scrapped, refused_ = true; }
  [[nodiscard]] std::size_t staged() const { return end_ - begin_; }

  const Memories& memories_;
  std::unique_ptr<std::byte[]> staging_, scrap_;
  std::size_t begin_ = 0, end_ = 0;  // of staging, what is not read
  FrameHeader header_;
  bool in_payload_ = false;
  bool refused_ = false;
  Fate fate_ = Fate::scrapped;
  std::uint64_t left_ = 0;  // of the payload
  RangeCursor cursor_;
  std::string kept_;
  std::vector<iovec> pieces_;
  std::uint64_t direct_bytes_ = 0;  // of the targets, what is payload
};

}  // namespace headrace::rail::stream
