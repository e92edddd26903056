// SPDX-License-Identifier: Apache-2.0
// A kernel that stays on a GPU and moves small jobs without a launch for each.
//
// A launch costs microseconds, which is most of the time of one page. The courier instead polls a ring in
// pinned host memory as long as jobs keep coming. It occupies a multiprocessor, and a thread that waits for
// the whole GPU (a device-wide synchronise, freeing memory) waits until it leaves. So it leaves soon when no
// job comes, leaves after a fixed time in any case, and is launched again when there is work.
//
// No job is lost between leaving and posting, though neither side waits for the other. A job that the courier
// did not see stays in the ring. Threads that wait for a job call `look`, which finds that the courier has
// left before the job, and launches it again. docs/decisions/0009-courier.md gives the reasons.
#pragma once

#include "gpu/kernel_family.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"

#include <headrace/plugin/kernels/courier_v1.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace headrace::gpu {

struct CourierSettings {
  bool on = false;
  /// The largest job.
  std::uint64_t most_bytes = 65536;
  /// It leaves after this time without a job. A device-wide synchronise waits this long after the last job.
  std::chrono::nanoseconds idle = std::chrono::microseconds(200);
  /// It leaves after this time even while jobs keep coming, so that threads that wait for the GPU continue.
  std::chrono::nanoseconds stay = std::chrono::milliseconds(10);
};

/// A courier for one GPU.
///   threads  any
class Courier {
 public:
  struct Run {
    // Any alignment and length. Addresses as the GPU sees them: its own memory, a peer's, or pinned host
    // memory.
    cuda::Address source = 0;
    cuda::Address target = 0;
    std::uint64_t bytes = 0;
  };
  static constexpr std::size_t most_runs = HEADRACE_COURIER_RUNS_MOST;

  /// Names a job. Jobs end in the order of their tickets.
  using Ticket = std::uint64_t;
  enum class State {
    pending,
    done,     ///< host and GPUs can see every byte
    dropped,  ///< it will never move: the courier could not be launched again. The memory is quiet
  };

  /// Nothing runs before the first post.
  ///   errors   not_supported (the library has no courier, or an older one), exhausted, backend_failed
  [[nodiscard]] static Result<std::shared_ptr<Courier>> make(const std::shared_ptr<const Kernels>& kernels,
                                                             const CourierSettings& settings);
  /// Asks the courier to leave, and waits until it has left.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  [[nodiscard]] const CourierSettings& settings() const noexcept { return settings_; }
  /// Whether a job may have these runs: not too many, not too long, addresses below 2^48.
  [[nodiscard]] bool takes(std::span<const Run> runs) const noexcept;

  /// Posts a job that it `takes`. The runs' memory must stay until the job is done or dropped; a caller that
  /// waits for that calls `look`. Nullopt: use another path. The ring is full, or the courier could not be
  /// launched; then it takes no further job, see take_failure.
  [[nodiscard]] std::optional<Ticket> post(std::span<const Run> runs);
  /// The state of a job. Costs two loads, and a launch if the courier has left before the job. After a fault
  /// of the GPU's context the job stays pending: any call of the driver reports the fault, as for other work.
  [[nodiscard]] State look(Ticket ticket);
  /// Why it could not be launched, for a warning; returned once.
  [[nodiscard]] std::optional<Error> take_failure();

 private:
  Courier(KernelFamily<headrace_courier_v1> kernel, const CourierSettings& settings, Stream stream,
          PinnedMemory memory)
      : settings_(settings),
        kernel_(std::move(kernel)),
        memory_(std::move(memory)),
        stream_(std::move(stream)) {}

  [[nodiscard]] headrace_courier_told_v1& told() const noexcept;
  [[nodiscard]] std::uint64_t finished() const noexcept;
  [[nodiscard]] bool has_left() const noexcept;
  void write_job(std::uint64_t number, std::span<const Run> runs) noexcept;
  [[nodiscard]] bool launch();
  [[nodiscard]] State launch_for(Ticket ticket);

  const CourierSettings settings_;
  const KernelFamily<headrace_courier_v1> kernel_;
  const PinnedMemory memory_;  // the courier's words, then the ring
  const Stream stream_;        // its own: it delays no other work

  std::mutex mutex_;
  std::uint64_t posted_ = 0;                // the last job
  std::atomic<std::uint64_t> launches_{0};  // the last launch
  std::atomic<bool> is_broken_{false};      // it could not be launched and is not launched again
  std::optional<Error> failure_;
};

}  // namespace headrace::gpu
