// SPDX-License-Identifier: Apache-2.0
// A kernel that stays on a GPU and moves small jobs without a launch for each.
//
// A launch costs microseconds, which is most of what one page takes. The courier looks at a ring in pinned
// host memory instead, for as long as jobs keep coming: then it occupies a multiprocessor, and whoever waits
// for the whole GPU (a device-wide synchronise, memory that is freed) waits until it leaves. So it leaves
// soon when nothing comes, now and then in any case, and is launched anew when there is work.
//
// No job is lost between leaving and posting, though neither side waits for the other: a job that the courier
// did not see before it left stays in the ring, and `look`, which whoever waits for a job calls, sees that
// the courier has left before that job, and launches it anew. docs/decisions/0009-courier.md says why it is
// so.
#pragma once

#include "gpu/kernel_library.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"

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
  /// Of one job.
  std::uint64_t most_bytes = 65536;
  /// Without a job it leaves after so long. A device-wide synchronise waits as long after the last job.
  std::chrono::nanoseconds idle = std::chrono::microseconds(200);
  /// It leaves after so long in any case, so that who waits for the GPU is served while jobs keep coming.
  std::chrono::nanoseconds stay = std::chrono::milliseconds(10);
};

/// Any thread.
class Courier {
 public:
  struct Part {
    cuda::Address source = 0;  ///< any alignment and length; both as the GPU sees them: of its own memory, a
    cuda::Address target = 0;  ///< peer's, or pinned host memory
    std::uint64_t bytes = 0;
  };
  static constexpr std::size_t most_parts = HEADRACE_COURIER_PARTS_MOST;

  /// Of a job. Jobs end in the order of their tickets.
  using Ticket = std::uint64_t;
  enum class State {
    pending,
    done,     ///< every byte can be seen, by the host and by GPUs
    dropped,  ///< it will never be moved: the courier could not be launched anew. The memory is quiet
  };

  /// Nothing runs before the first post.
  ///   errors   exhausted, backend_failed
  [[nodiscard]] static Result<std::shared_ptr<Courier>> make(std::shared_ptr<const Kernels> kernels,
                                                             const CourierSettings& settings);
  /// Asks it to leave, and waits for that.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  [[nodiscard]] const CourierSettings& settings() const noexcept { return settings_; }
  /// Whether a job may consist of these parts: neither too many, nor too long, nor too high in memory.
  [[nodiscard]] bool takes(std::span<const Part> parts) const noexcept;

  /// Hands it a job that it `takes`. The parts' memory stays until the job is done or dropped, and whoever
  /// waits for that calls `look`. None: the ring is full, or it could not be launched (then it takes no job
  /// any more, see take_failure): take another way.
  [[nodiscard]] std::optional<Ticket> post(std::span<const Part> parts);
  /// How the job stands. Two loads; if the courier has left before the job, a launch. A fault of the GPU's
  /// context leaves it pending: that is seen by asking the driver, of whatever stream, as for other work.
  [[nodiscard]] State look(Ticket ticket);
  /// Why it could not be launched, for a warning: once.
  [[nodiscard]] std::optional<Error> take_failure();

 private:
  Courier(std::shared_ptr<const Kernels> kernels, const CourierSettings& settings, Stream stream,
          PinnedMemory memory)
      : settings_(settings),
        kernels_(std::move(kernels)),
        memory_(std::move(memory)),
        stream_(std::move(stream)) {}

  [[nodiscard]] headrace_courier_told_v1& told() const noexcept;
  [[nodiscard]] std::uint64_t finished() const noexcept;
  [[nodiscard]] bool has_left() const noexcept;
  void write_job(std::uint64_t number, std::span<const Part> parts) noexcept;
  [[nodiscard]] bool launch();
  [[nodiscard]] State launch_for(Ticket ticket);

  const CourierSettings settings_;
  const std::shared_ptr<const Kernels> kernels_;
  const PinnedMemory memory_;  // what it tells, then the ring
  const Stream stream_;        // of its own: it holds nobody up

  std::mutex mutex_;
  std::uint64_t posted_ = 0;                // the last job
  std::atomic<std::uint64_t> launches_{0};  // the last launch
  std::atomic<bool> is_broken_{false};      // it could not be launched, and is not tried again
  std::optional<Error> failure_;
};

}  // namespace headrace::gpu
