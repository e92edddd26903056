// SPDX-License-Identifier: Apache-2.0
// A request that the owner of the remote memory carries out, because no GPU but those of its process reaches
// it: the initiator's side (owner_copies.hpp is the other).
#pragma once

#include "backends/cuda_ipc/end_words.hpp"
#include "backends/cuda_ipc/move_file.hpp"

#include <cstdint>
#include <memory>

namespace headrace::cuda_ipc {

class Link;

/// One for each such request, from when it is known that the owner has to move until the request goes.
///   threads  one at a time, save where it says
class OwnerMove {
 public:
  /// Tells the owner the pages.
  ///   errors   as write_move_file
  [[nodiscard]] static Result<std::unique_ptr<OwnerMove>> prepare(std::shared_ptr<Link> link,
                                                                  const headrace_prepare_v1& args);
  ~OwnerMove();
  OwnerMove(const OwnerMove&) = delete;
  OwnerMove& operator=(const OwnerMove&) = delete;

  /// Asks the owner for a post, which it may begin once it is told. The last one has ended.
  void ask() { control_.ask(++posts_); }
  void tell_owner() const;
  /// Whether the last post has ended, was called off, or will never end since its owner is no more. Any
  /// thread.
  [[nodiscard]] bool poll_done() const;
  /// Calls the post off if the owner has not begun it: then it has ended. Any thread.
  void withdraw() { (void)control_.withdraw(posts_); }
  /// How the last post, which has ended, did.
  [[nodiscard]] host_link::Outcome outcome() const;

 private:
  OwnerMove(std::shared_ptr<Link> link, std::uint32_t number, MoveControl control, EndWordsView::Word word)
      : link_(std::move(link)),
        number_(number),
        control_(std::move(control)),
        word_(std::move(word)),
        posts_(word_.value()) {}
  [[nodiscard]] bool has_ended() const { return word_.value() == posts_ || control_.has_ended(posts_); }
  [[nodiscard]] bool owner_is_gone() const;

  const std::shared_ptr<Link> link_;
  const std::uint32_t number_;
  MoveControl control_;
  EndWordsView::Word word_;
  std::uint64_t posts_;  // counts on from whoever had the word before
};

}  // namespace headrace::cuda_ipc
