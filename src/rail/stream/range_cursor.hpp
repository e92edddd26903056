// SPDX-License-Identifier: Apache-2.0
// A walk over ranges of registered memory, while their bytes go into a stream or come out of one.
#pragma once

#include "rail/stream/memories.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace headrace::rail::stream {

class RangeCursor {
 public:
  RangeCursor() = default;
  /// `least`: what the memory must allow. `local` for this side's own posts.
  RangeCursor(std::vector<Range> ranges, Access least, Reach reach = Reach::host)
      : ranges_(std::move(ranges)), least_(least), reach_(reach) {
    for (const Range& range : ranges_) left_ += range.length;
  }

  [[nodiscard]] std::uint64_t left() const { return left_; }
  /// Whether all that is left may be reached now.
  [[nodiscard]] bool allowed(Memories::View& view) const {
    for (std::size_t i = at_; i < ranges_.size(); ++i)
      if (view.find(ranges_[i], least_, reach_) == nullptr) return false;
    return true;
  }
  /// A GPU of what is left; none: all is the host's.
  [[nodiscard]] std::optional<int> gpu(Memories::View& view) const {
    for (std::size_t i = at_; i < ranges_.size(); ++i) {
      const RegisteredMemory* const memory = view.memory_of(ranges_[i], least_);
      if (memory != nullptr && memory->device) return memory->device;
    }
    return std::nullopt;
  }
  /// Appends the next bytes, at most `most` pieces in all, valid while the view lives. False: the memory is
  /// no longer there.
  bool gather(Memories::View& view, std::vector<iovec>& pieces, std::size_t most) const {
    std::uint64_t skip = done_;
    for (std::size_t i = at_; i < ranges_.size() && pieces.size() < most; ++i, skip = 0) {
      std::byte* const begin = view.find(ranges_[i], least_, reach_);
      if (begin == nullptr) return false;
      pieces.push_back({begin + skip, static_cast<std::size_t>(ranges_[i].length - skip)});
    }
    return true;
  }
  /// The same, as far as memory is of the same GPU, or of the host. `gpu`: which; none: the host's.
  bool gather_alike(Memories::View& view, std::vector<iovec>& pieces, std::size_t most,
                    std::optional<int>& gpu) const {
    if (!gather(view, pieces, most)) return false;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const RegisteredMemory* const memory = view.memory_of(ranges_[at_ + i], least_);
      const std::optional<int> here = memory == nullptr ? std::nullopt : memory->device;
      if (i == 0) gpu = here;
      if (here == gpu) continue;
      pieces.resize(i);
    }
    return true;
  }
  /// At most `left`.
  void advance(std::uint64_t bytes) {
    left_ -= bytes;
    while (bytes > 0) {
      const std::uint64_t step = std::min(bytes, ranges_[at_].length - done_);
      done_ += step;
      bytes -= step;
      if (done_ == ranges_[at_].length) ++at_, done_ = 0;
    }
  }

 private:
  std::vector<Range> ranges_;  // none is empty
  Access least_ = Access::local;
  Reach reach_ = Reach::host;
  std::size_t at_ = 0;
  std::uint64_t done_ = 0;  // of ranges_[at_]
  std::uint64_t left_ = 0;
};

}  // namespace headrace::rail::stream
