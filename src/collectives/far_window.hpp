// SPDX-License-Identifier: Apache-2.0
// The window of a rank whose memory is not mapped here: bytes move by requests of the agents, and the rank
// itself changes the words that others ask it to change.
#pragma once

#include "collectives/station.hpp"
#include "collectives/window_call.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

namespace headrace::collectives {

enum class WindowMailKind : std::uint32_t { signal_add = 0, signal_set = 1, atomic_add = 2, answer = 3 };

/// What follows the mailbox in a notification: a question, or the answer to it.
struct WindowMail {
  WindowMailKind kind = WindowMailKind::answer;
  std::uint32_t from = 0;      ///< rank
  std::uint64_t number = 0;    ///< of the question, from 1; a rank asks another one question at a time
  std::uint64_t at_bytes = 0;  ///< of the element
  std::uint64_t value = 0;     ///< to add or to set; in an answer the value before
};

/// Where the window of a far rank is.
struct FarWindowAddress {
  std::string agent;
  std::uint64_t mailbox = 0;
  RegionId elements;
  std::string signals;  ///< name of the region that its window has in any case
  int my_rank = 0;
};

class FarWindow {
 public:
  FarWindow(std::shared_ptr<Station> station, FarWindowAddress address)
      : station_(std::move(station)), address_(std::move(address)) {}
  ~FarWindow();
  FarWindow(const FarWindow&) = delete;
  FarWindow& operator=(const FarWindow&) = delete;

  /// Moves bytes between memory of this process and the rank's elements, and waits until they are there.
  [[nodiscard]] Result<void> write(const std::byte* from, std::size_t bytes, std::size_t at_bytes,
                                   WindowCall& call);
  [[nodiscard]] Result<void> read(std::byte* to, std::size_t bytes, std::size_t at_bytes, WindowCall& call);
  /// Has a word changed by the rank, once, and returns the value before.
  [[nodiscard]] Result<std::uint64_t> ask(WindowMailKind kind, std::size_t at_bytes, std::uint64_t value,
                                          WindowCall& call);

  // On the agent's callback thread.
  /// The rank has answered a question of this one.
  void answered(const WindowMail& answer);
  /// Answers one of its own. An answer that cannot leave now is asked for again.
  void answer(std::uint64_t number, std::uint64_t value);

 private:
  /// Memory through which a chunk passes: that of a caller is not registered.
  struct Slot {
    std::size_t at = 0;  ///< in the staging region
    Request request;
    std::size_t bytes = 0;
    std::byte* to = nullptr;  ///< of a read
    bool given_up = false;    ///< its operation has failed, and nothing of it counts
  };
  static constexpr std::size_t slot_count = 4, slot_bytes = std::size_t{256} << 10;

  [[nodiscard]] Result<void> open_staging();
  [[nodiscard]] std::byte* memory(const Slot& slot) const { return staging_.bytes().data() + slot.at; }
  template <class Fill>
  Result<void> move(Op op, std::size_t bytes, std::size_t at_bytes, WindowCall& call, const Fill& fill);
  Result<void> post(Slot& slot, Op op, std::size_t at_bytes, WindowCall& call);
  Result<void> finish(Slot& slot, WindowCall& call);
  [[nodiscard]] Error failure(Error error, const WindowCall& call) const;
  [[nodiscard]] Result<void> check_window(const WindowCall& call) const;
  [[nodiscard]] Result<void> notify(const WindowMail& mail);
  Result<bool> send_question(const WindowMail& question, const WindowCall& call);

  const std::shared_ptr<Station> station_;
  const FarWindowAddress address_;

  std::mutex moving_;  ///< one operation at a time uses the next two
  Region staging_;
  std::array<Slot, slot_count> slots_;

  std::mutex asking_;                       ///< one question at a time
  std::atomic<std::uint64_t> asked_{0};     ///< number of the last question
  std::atomic<std::uint64_t> answered_{0};  ///< of the last one that was answered
  std::atomic<std::uint64_t> value_{0};     ///< stored before it
};

}  // namespace headrace::collectives
