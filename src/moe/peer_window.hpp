// SPDX-License-Identifier: Apache-2.0
// The window of a rank as another one writes to it: mapped, if both are on one node, else by the fabric.
#pragma once

#include "moe/far_window.hpp"
#include "moe/words.hpp"

#include <cstddef>
#include <cstdint>

namespace headrace::moe {

class PeerWindow {
 public:
  ///   by  the rank that writes
  PeerWindow(Window window, std::uint32_t by) : window_(window), by_(by) {}
  PeerWindow(FarWindow& far, const WindowLayout& layout, std::uint32_t by)
      : window_(nullptr, layout), far_(&far), by_(by) {}

  /// Whether there is a way to it.
  [[nodiscard]] bool exists() const { return far_ != nullptr || window_.exists(); }
  [[nodiscard]] bool is_far() const { return far_ != nullptr; }
  [[nodiscard]] FarWindow& far() const { return *far_; }
  /// Not if it is far.
  [[nodiscard]] const Window& mapped() const { return window_; }

  /// Where the writer puts what the window shall have at this offset, which is in a part of its own.
  [[nodiscard]] std::byte* at(std::uint64_t offset) const {
    return far_ != nullptr ? far_->at(offset) : window_.at(offset);
  }

  /// The card of a dispatch is written.
  void tell_card(std::uint64_t epoch) const {
    if (far_ != nullptr) return far_->tell_card(epoch);
    window_.tell(window_.layout().card_at(epoch, by_) + offsetof(CardHead, epoch), epoch);
  }
  /// Records of a chunk are written: slots from its first one on, and no more come unless it is full.
  void tell_records(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) const {
    if (far_ != nullptr) return far_->tell_records(epoch, begin, end);
    window_.tell(window_.layout().chunk_flag_at(epoch, by_, chunk_of(begin)), epoch);
  }
  /// The same of records for several ranks of its node. Of a far window.
  void tell_relay_records(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) const {
    far_->tell_relay_records(epoch, begin, end);
  }
  /// The same of partials.
  void tell_partials(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) const {
    if (far_ != nullptr) return far_->tell_partials(epoch, begin, end);
    window_.tell(window_.layout().partial_flag_at(epoch, by_, chunk_of(begin)), epoch);
  }
  /// Partials that never come.
  void tell_missing(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end) const {
    if (far_ != nullptr) return far_->tell_missing(epoch, begin, end);
    for (std::uint64_t chunk = chunk_of(begin); chunk < chunks_of(end); ++chunk)
      window_.tell(window_.layout().partial_flag_at(epoch, by_, chunk), epoch | missing_bit);
  }
  /// What has been told may leave. At the end of an operation.
  void flush() const {
    if (far_ != nullptr) far_->flush();
  }

  void tell_dispatch_taken(std::uint64_t epoch) const {
    if (far_ != nullptr) return far_->signal(Signal::Kind::dispatch_taken, Chunks{epoch, 0, 0}.payload());
    tell_word(offsetof(PeerWords, dispatch_taken), epoch);
  }
  void tell_combine_taken(std::uint64_t epoch) const {
    if (far_ != nullptr) return far_->signal(Signal::Kind::combine_taken, Chunks{epoch, 0, 0}.payload());
    tell_word(offsetof(PeerWords, combine_taken), epoch);
  }
  /// While ranks regroup: the counts come first, and nobody is left out any more.
  void tell_meeting(const Meeting& meeting) const {
    if (far_ != nullptr) return far_->tell_meeting(meeting);
    tell_word(offsetof(PeerWords, left_out), 0);
    tell_word(offsetof(PeerWords, dispatches), meeting.dispatches);
    tell_word(offsetof(PeerWords, combines), meeting.combines);
    tell_word(offsetof(PeerWords, answers), meeting.answers);
    tell_word(offsetof(PeerWords, asks), meeting.asks);
  }
  /// One of PeerWords, by its offset. Not if it is far.
  void tell_word(std::size_t word, std::uint64_t value) const {
    window_.tell(window_.layout().words_at(by_) + word, value);
  }

 private:
  Window window_;
  FarWindow* far_ = nullptr;
  std::uint32_t by_;
};

}  // namespace headrace::moe
