// SPDX-License-Identifier: Apache-2.0
// Host memory through which the kernels of windows that wait, or return a value, speak with the host.
#pragma once

#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"

#include <headrace/plugin/kernels/windows_v1.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace headrace::p2p {

/// Places for so many launches at once. Each has an abort word, a status and a stream of its own, so that no
/// wait holds up another one.
///   threads  any; a place is one launch's
class WaitWords {
 public:
  static constexpr std::size_t count = 16;

  [[nodiscard]] static Result<WaitWords> make(const std::shared_ptr<const gpu::Device>& device) {
    HEADRACE_TRY(memory, gpu::PinnedMemory::allocate(device, (count + 1) * line));
    return WaitWords(device, std::move(memory));
  }

  /// The stream of a place. It does not wait for the caller's.
  [[nodiscard]] Result<cuda::Stream> stream(std::size_t place) {
    auto& stream = streams_[place];
    if (!stream) {
      HEADRACE_TRY(made, gpu::Stream::make(device_));
      stream = std::make_unique<gpu::Stream>(std::move(made));
    }
    return stream->handle();
  }
  /// Before a launch.
  void clear(std::size_t place) const {
    abort_word(place).store(0, std::memory_order_relaxed);
    reason(place).store(0, std::memory_order_relaxed);
  }
  /// A kernel that waits leaves.
  void abort(std::size_t place) const { abort_word(place).store(1, std::memory_order_release); }
  /// The abort word of kernels of the caller, behind all places.
  static constexpr std::size_t of_callers = count;
  [[nodiscard]] std::uint64_t abort_address(std::size_t place) const {
    return memory_.address() + place * line;
  }
  [[nodiscard]] std::uint64_t status_address(std::size_t place) const {
    return abort_address(place) + status_at;
  }
  /// Nullopt: the launch has written none.
  [[nodiscard]] std::optional<headrace_windows_status_v1> status(std::size_t place) const {
    if (reason(place).load(std::memory_order_acquire) == 0) return std::nullopt;
    return at<headrace_windows_status_v1>(place, status_at);
  }

 private:
  WaitWords(std::shared_ptr<const gpu::Device> device, gpu::PinnedMemory memory)
      : device_(std::move(device)), memory_(std::move(memory)) {}

  static constexpr std::size_t line = 128, status_at = 64;
  template <class T>
  [[nodiscard]] T& at(std::size_t place, std::size_t offset) const {
    return *reinterpret_cast<T*>(memory_.bytes().data() + place * line + offset);
  }
  [[nodiscard]] std::atomic_ref<std::uint64_t> abort_word(std::size_t place) const {
    return std::atomic_ref(at<std::uint64_t>(place, 0));
  }
  [[nodiscard]] std::atomic_ref<std::uint64_t> reason(std::size_t place) const {
    return std::atomic_ref(at<headrace_windows_status_v1>(place, status_at).reason);
  }

  std::shared_ptr<const gpu::Device> device_;
  gpu::PinnedMemory memory_;
  std::array<std::unique_ptr<gpu::Stream>, count> streams_;
};

}  // namespace headrace::p2p
