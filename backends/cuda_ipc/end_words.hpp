// SPDX-License-Identifier: Apache-2.0
// The words by which GPUs of an owner's tell the initiator of each request that its post has ended: one
// memory file a link, pinned once, a word for each request that wants one.
//
// Pinning a page for each request would be two calls of the driver more, the second of which may wait for the
// GPU.
#pragma once

#include "gpu/gpus.hpp"
#include "gpu/pinned_memory.hpp"
#include "host_link/control_socket.hpp"
#include "host_link/memory_file.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace headrace::cuda_ipc {

inline constexpr std::uint32_t end_words = 1024;
inline constexpr std::uint32_t no_end_word = UINT32_MAX;
inline constexpr std::size_t end_word_step = 64;  ///< bytes from one to the next
inline constexpr std::size_t end_words_bytes = end_words * end_word_step;

/// The owner's side.
///   threads  any
class EndWords {
 public:
  [[nodiscard]] static Result<std::unique_ptr<EndWords>> make();
  [[nodiscard]] const host_link::SharedFd& descriptor() const { return descriptor_; }
  /// Where GPUs of this process see a word; none: there is no such word, or they do not see it.
  [[nodiscard]] std::optional<cuda::Address> address(const gpu::WorkingGpu& gpu, std::uint32_t number);

 private:
  EndWords(host_link::SharedFd descriptor, host_link::Mapping words)
      : descriptor_(std::move(descriptor)), words_(std::move(words)) {}
  const host_link::SharedFd descriptor_;
  const host_link::Mapping words_;  // goes after its pin
  std::mutex mutex_;
  std::optional<Result<gpu::PinnedMemory>> pinned_;
};

/// The initiator's side.
///   threads  any
class EndWordsView : public std::enable_shared_from_this<EndWordsView> {
 public:
  /// One word, given back when this goes.
  class Word {
   public:
    Word() = default;
    Word(std::shared_ptr<EndWordsView> view, std::uint32_t number)
        : view_(std::move(view)), number_(number) {}
    Word(Word&& other) noexcept
        : view_(std::move(other.view_)), number_(std::exchange(other.number_, no_end_word)) {}
    Word& operator=(Word&&) = delete;
    ~Word();
    [[nodiscard]] std::uint32_t number() const { return number_; }
    /// What was written last, also for whoever had it before; 0 without a word.
    [[nodiscard]] std::uint64_t value() const;

   private:
    std::shared_ptr<EndWordsView> view_;
    std::uint32_t number_ = no_end_word;
  };

  ///   errors   corrupt (no sealed memory file of that size)
  [[nodiscard]] static Result<std::shared_ptr<EndWordsView>> open(int fd);
  /// A free one, or none.
  [[nodiscard]] Word take();

 private:
  explicit EndWordsView(host_link::Mapping words);
  const host_link::Mapping words_;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
};

}  // namespace headrace::cuda_ipc
