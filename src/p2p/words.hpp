// SPDX-License-Identifier: Apache-2.0
// Host memory that the kernels of one rank look at and write: the abort word, and the statuses of launches.
#pragma once

#include "base/errors.hpp"
#include "gpu/pinned_memory.hpp"

#include <headrace/plugin/kernels/collectives_v1.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace headrace::p2p {

/// Why a launch has ended early, as its status says.
struct EarlyEnd {
  std::uint64_t reason;
  /// What `epoch` and `seen` count: operations of all ranks, or this rank's messages to or from the peer.
  enum class Of { operation, send, recv } of;
  int peer;
  std::uint64_t epoch, seen;

  /// invalid_argument (splits), timed_out, or canceled: it was aborted.
  [[nodiscard]] Code code() const;
  /// "rank 1 has not come: ...".
  [[nodiscard]] std::string text() const;

 private:
  [[nodiscard]] std::string text_of_operation() const;
  [[nodiscard]] std::string text_of_message() const;
};

///   threads  any
class Words {
 public:
  /// The status of captured launches; others take the rest in turn. Only one launch of a rank writes its
  /// status.
  static constexpr int of_replays = 0;
  [[nodiscard]] static int of_launch(std::uint64_t number) {
    return 1 + static_cast<int>(number % (count - 1));
  }

  [[nodiscard]] static Result<Words> make(const std::shared_ptr<const gpu::Device>& device);

  /// The kernels of this rank leave, and so do later ones.
  void abort() const { abort_word().store(1, std::memory_order_release); }
  [[nodiscard]] std::uint64_t abort_address() const { return memory_.address(); }
  [[nodiscard]] std::uint64_t status_address(int status) const {
    return memory_.address() + offset_of(status);
  }

  /// Nullopt: no launch with this status has ended early.
  [[nodiscard]] std::optional<EarlyEnd> early_end(int status) const;
  /// Of the launch of this rank that has.
  [[nodiscard]] std::optional<EarlyEnd> any_early_end() const;

 private:
  explicit Words(gpu::PinnedMemory memory) : memory_(std::move(memory)) {}
  static constexpr int count = 64;
  static constexpr std::size_t line = 64;
  static std::size_t offset_of(int status) { return line * (1 + static_cast<std::size_t>(status)); }
  [[nodiscard]] std::atomic_ref<std::uint64_t> abort_word() const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(memory_.bytes().data()));
  }

  gpu::PinnedMemory memory_;
};

}  // namespace headrace::p2p
