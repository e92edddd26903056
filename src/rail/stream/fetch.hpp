// SPDX-License-Identifier: Apache-2.0
// A peer's write whose bytes this side copies out of the peer's memory, a piece at a time.
//
// The owner of the target copies, never the writer: it looks up each range under the lock of its memories at
// each piece, so memory is quiet when `deregister` returns. A writer with the owner's addresses could not be
// kept out.
#pragma once

#include "rail/stream/frame.hpp"
#include "rail/stream/range_cursor.hpp"
#include "rail/stream/stream.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::rail::stream {

[[nodiscard]] std::string encode(const std::vector<Source>& sources);
/// The payload of a fetch frame, whose ranges have `bytes` bytes.
///   errors  corrupt (an empty one; another sum)
[[nodiscard]] Result<std::vector<Source>> read_sources(std::string_view payload, std::uint64_t bytes);

class Fetch {
 public:
  /// `gpu`: memory of GPUs takes part.
  Fetch(const FrameHeader& header, RangeCursor places, std::vector<Source> sources, bool gpu)
      : header(header), places_(std::move(places)), sources_(std::move(sources)), gpu_(gpu) {}

  enum class State : std::uint8_t {
    under_way,
    done,
    refused,  ///< its place is no longer registered
  };
  /// Copies the next piece.
  ///   errors  those of the stream
  Result<State> step(Stream& stream, const Memories& memories);
  /// A GPU could begin with it.
  [[nodiscard]] bool waits_for_gpu() const { return gpu_ && running_ == nullptr && places_.left() > 0; }

  const FrameHeader header;

 private:
  Result<State> step_host(Stream& stream, const Memories& memories);
  Result<State> step_gpu(Stream& stream, const Memories& memories);
  Result<bool> begin(Stream& stream, const Memories& memories);
  void gather_sources(std::uint64_t bytes);
  void advance(std::uint64_t bytes);
  [[nodiscard]] State state() const { return places_.left() == 0 ? State::done : State::under_way; }

  RangeCursor places_;
  std::vector<Source> sources_;
  std::size_t at_ = 0;  // of sources_; its address and bytes are what is left of it
  const bool gpu_;
  std::unique_ptr<RunningCopy> running_;
  std::vector<iovec> to_, from_;
};

}  // namespace headrace::rail::stream
