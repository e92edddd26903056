// SPDX-License-Identifier: Apache-2.0
// The window of a rank on another node, as one rank sees it: a mirror in memory of this process of the parts
// that this rank writes there. What is told is posted: the bytes of the mirror first, then a signal, which
// the far side stores as the flag that a rank of its node would have stored.
#pragma once

#include "base/clock.hpp"
#include "moe/epochs.hpp"
#include "moe/relay_layout.hpp"
#include "moe/signal.hpp"

#include <headrace/fabric.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace headrace::moe {

enum class Operation : std::uint8_t { dispatch, combine };

/// `signal` and `broken` from any thread; the rest is the rank's.
class FarWindow {
 public:
  struct Place {
    WindowLayout layout;
    RelayLayout relay;
    std::uint32_t by = 0;                 ///< this rank
    std::uint32_t node = 0;               ///< of this rank
    std::chrono::nanoseconds limit = {};  ///< of each post
    FabricDescriptor window = {};
    FabricPeer peer = {};  ///< whose window it is
  };
  ///   fabric  stays in place until this object is gone; it may be closed
  [[nodiscard]] static Result<std::unique_ptr<FarWindow>> make(Fabric& fabric, const Place& place);
  ~FarWindow() { static_cast<void>(fabric_.deregister(memory_)); }
  FarWindow(const FarWindow&) = delete;
  FarWindow& operator=(const FarWindow&) = delete;

  /// Where this rank writes what the far window shall have at this offset. One of its own parts.
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return mirror_.get() + mirrored(offset); }

  void tell_card(std::uint64_t epoch);
  /// Slots from a multiple of a chunk on. They may wait for more, until `flush`.
  void tell_records(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end);
  void tell_relay_records(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end);
  void tell_partials(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end);
  void tell_missing(std::uint64_t epoch, std::uint64_t begin, std::uint64_t end);
  /// Posts what waits.
  void flush();
  void signal(Signal::Kind kind, std::uint64_t payload = 0);

  /// Waits until the posts from the half of this epoch have ended, so that it can be written again. False:
  /// they have not, or have failed.
  [[nodiscard]] bool settle(Operation operation, std::uint64_t epoch, Deadline deadline);
  /// Waits until all posts have ended. Returns at once if one has failed.
  void drain(Deadline deadline);
  /// The same before ranks regroup; what was told and not posted is dropped. False: some posts run, or one
  /// has failed.
  [[nodiscard]] bool clear(Deadline deadline);
  /// Messages arrive in their order. Waits for room if many are on their way.
  void tell_meeting(const Meeting& meeting);
  [[nodiscard]] const FabricDescriptor& window() const { return place_.window; }
  /// Whether a post has failed, and what came before that has been taken: both are told in turn on the
  /// fabric's callback thread.
  [[nodiscard]] bool broken() const { return *broken_; }
  /// Reads a few bytes of the far window. Asked about ten times a second, `interrupted` ends the wait.
  [[nodiscard]] Result<void> reach(Deadline deadline, const std::function<bool()>& interrupted);

 private:
  struct Part {
    std::uint64_t offset;  ///< in the far window
    std::uint64_t bytes;
    std::uint64_t mirrored;
  };
  /// Slots that have been told and not posted.
  struct Waiting {
    Signal::Kind kind = Signal::Kind::records;
    std::uint64_t epoch = 0, begin = 0, end = 0;
  };
  /// All slots of a kind.
  struct Slots {
    std::uint64_t at;  ///< of the first one, in the far window
    std::uint64_t bytes_each;
    std::uint64_t count;
  };

  FarWindow(Fabric& fabric, const Place& place);
  [[nodiscard]] std::uint64_t mirrored(std::uint64_t offset) const;
  [[nodiscard]] std::vector<FabricWork>& works(Operation operation, std::uint64_t epoch) {
    return works_[operation == Operation::dispatch ? 0 : 1][epoch % halves];
  }
  [[nodiscard]] Slots slots_of(Signal::Kind kind, std::uint64_t epoch) const;
  void tell(const Waiting& slots);
  void post(const Chunks& chunks, Signal::Kind kind, std::uint64_t offset, std::uint64_t bytes);
  /// Empty: it was refused, and the window is broken.
  [[nodiscard]] FabricWork write(std::uint64_t offset, std::uint64_t bytes, const Signal& signal);
  void watch(const FabricWork& work) const;

  Fabric& fabric_;
  const Place place_;
  std::array<Part, 3 * halves> parts_;
  std::unique_ptr<std::byte, decltype(&std::free)> mirror_{nullptr, &std::free};
  FabricMemory memory_;
  Waiting waiting_;
  std::array<std::array<std::vector<FabricWork>, halves>, 2> works_;
  const std::shared_ptr<std::atomic<bool>> broken_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex_;
  std::deque<FabricWork> signals_;  // that may not have ended

  static constexpr std::size_t messages = 8;
  std::uint64_t messages_at_ = 0;  // behind the mirror
  std::array<FabricWork, messages> sent_;
  std::size_t next_message_ = 0;
};

}  // namespace headrace::moe
