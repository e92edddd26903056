// SPDX-License-Identifier: Apache-2.0
// One rank of a communicator of NCCL: queues its calls on streams, and tells the host when they have ended.
#pragma once

#include "base/clock.hpp"
#include "base/comm_border.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/stream.hpp"
#include "gpu/stream_works.hpp"
#include "nccl/operation.hpp"
#include "nccl/rank_handle.hpp"
#include "nccl/windows.hpp"
#include "vendor/nccl/config.hpp"

#include <headrace/plugin/comm_v1.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace::nccl {

/// What a communicator is made of besides its setup.
struct Parts {
  cuda::DriverTable driver;
  Library library;
};

/// Calls may wait inside the library for other ranks; an abort ends them. With the hint `blocking` 0 the
/// library goes on by itself instead, and `settle` waits for it.
///   threads  as comm_v1.h has them
class Communicator {
 public:
  using Setup = headrace_comm_setup_v1;
  using Call = headrace_comm_call_v1;

  ///   errors  those of the driver and the library, timed_out (another rank has not come)
  static Result<std::unique_ptr<Communicator>> open(const Parts& parts, const Setup& setup);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Whether the work has ended already.
  Result<bool> issue(const Call& call, std::uint64_t work);
  void group_start();
  Result<void> group_end();
  Result<void> wait_on(std::uint64_t work, cuda::Stream stream);
  /// Tells the library of memory that calls use again and again; the number of the registration. It is local
  /// to this rank and changes speed alone, so what the library refuses is logged and is no error.
  Result<std::uint64_t> tensor_register(const headrace_comm_elements_v1& tensor);
  Result<void> tensor_deregister(std::uint64_t registration);
  /// Gives back the library's memory of the GPU, and takes it again.
  Result<void> suspend(const Deadline& deadline);
  Result<void> resume(const Deadline& deadline);
  Result<void> window_open(headrace_comm_window_v1& window, const Deadline& deadline);
  Result<void> window_close(std::uint64_t window, const Deadline& deadline);
  /// As issue.
  Result<bool> window_issue(const headrace_comm_window_call_v1& call, std::uint64_t work);
  bool progress();
  void abort();
  /// Null: this rank is in no group.
  Result<std::unique_ptr<Communicator>> split(std::span<const int> ranks, const Setup* setup);
  Result<std::unique_ptr<Communicator>> shrink(std::span<const int> excluded, const Setup& setup);
  /// This rank, for one reconfigure.
  Result<RankHandle> handle();
  /// Grows this communicator, if the others are ranks that join all of its own; else makes one from nothing.
  Result<std::unique_ptr<Communicator>> reconfigure(std::span<const RankHandle> ranks, const Setup& setup);

 private:
  /// A call that the library has taken.
  struct Taken {
    std::uint64_t work;
    int source;
    cuda::Stream stream;
    bool captured;
    std::optional<ReduceOp> own_op;            // made for this call
    std::shared_ptr<const KeptConfig> config;  // in place until the library has queued it; null: none
  };
  /// The calls between group_start and group_end, with calls_ held.
  struct Group {
    std::unique_lock<std::mutex> calls;
    std::vector<Taken> taken = {};
    Outcome failure = Outcome::success;
  };
  /// The hints of a setup.
  struct Wishes {
    CommConfig config;
    gpu::Priority priority;
  };

  Communicator(const Parts& parts, const Setup& setup, std::shared_ptr<const gpu::Device> device,
               gpu::Stream stream, gpu::DeviceMemory scratch);
  [[nodiscard]] static Result<Wishes> wishes_of(const Library& library, const Setup& setup);
  /// A rank that is not connected.
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> make(const Parts& parts, const Setup& setup,
                                                                  gpu::Priority priority);
  [[nodiscard]] Result<UniqueId> meet(const Deadline& deadline) const;
  /// Connects by `begin(&made, config)`, which calls the library.
  template <class Begin>
  [[nodiscard]] Result<void> connect(const Setup& setup, Config config, const Deadline& deadline,
                                     const Begin& begin);
  /// Makes this rank of a communicator that grows: one that it has already, and one that joins.
  [[nodiscard]] Result<std::unique_ptr<Communicator>> grow(const RankHandle& first, const Setup& setup);
  [[nodiscard]] Result<std::unique_ptr<Communicator>> join(const RankHandle& first, const Setup& setup) const;
  /// Makes a rank of a communicator, by `begin(&made, config)`, beside this one.
  template <class Begin>
  [[nodiscard]] Result<std::unique_ptr<Communicator>> make_beside(const Setup& setup, std::uint64_t identity,
                                                                  const Begin& begin) const;
  /// The id by which this communicator grows; none: it cannot.
  [[nodiscard]] std::optional<UniqueId> growth_id();
  /// Checks that the library has made what was asked for.
  [[nodiscard]] Result<void> check_ranks(const Setup& setup) const;

  [[nodiscard]] Result<Taken> take(const Call& call, std::uint64_t work);
  [[nodiscard]] Result<void> queue(const Call& call, const Reduction& reduction, Taken& taken);
  [[nodiscard]] Result<ReduceOp> make_op(const Reduction& reduction, double factor);
  /// Puts an event behind a call; whether its work has ended already.
  [[nodiscard]] bool watch(const Taken& taken);
  /// Waits while the library goes on by itself; in_progress: it is late, or the communicator ends.
  Outcome settle(Comm comm, Outcome outcome, const Deadline& deadline) const {
    return settle(comm, outcome, deadline, stopping_);
  }
  Outcome settle(Comm comm, Outcome outcome, const Deadline& deadline, const std::atomic<bool>& stop) const;
  /// The communicator that the library makes; it goes on by itself.
  Outcome settle_part(const Comm& made, Outcome outcome, const Deadline& deadline,
                      const std::atomic<bool>& stop) const;
  /// Makes a part by `begin(&made, config)`, which calls the library.
  template <class Begin>
  [[nodiscard]] Result<std::unique_ptr<Communicator>> make_part(const Setup& setup,
                                                                const std::atomic<bool>& stop,
                                                                const Begin& begin);
  [[nodiscard]] Error failed(Outcome outcome, std::string_view what) const;
  /// The library's handle of memory; null: it has none for it.
  [[nodiscard]] void* handle_of(const headrace_comm_elements_v1& tensor);
  void look_for_error();
  /// Calls `begin`, which waits for other ranks inside the library; a rank that does not come ends the
  /// communicator. With calls_ held.
  template <class Begin>
  [[nodiscard]] Result<void> together(std::string_view what, const Deadline& deadline, const Begin& begin);
  /// The same for windows.
  [[nodiscard]] Result<void> call_for_windows(std::string_view what, const Deadline& deadline,
                                              const std::function<Outcome(Comm)>& begin);
  void end_late_part();
  void stop_library();
  [[nodiscard]] Result<void> stand_aside();
  void leave();

  const Parts parts_;
  const Table& table_;
  const comm_border::Host host_;
  const int rank_, size_;
  const std::int64_t meeting_timeout_ns_;
  const std::shared_ptr<const gpu::Device> device_;
  const gpu::Stream stream_;  // of asynchronous calls
  const gpu::DeviceMemory scratch_;

  std::mutex ending_;  // held during shrink and abort, which the library does not serve beside each other
  std::mutex calls_;   // held while the library is called with comm_
  std::mutex asking_;  // held while the library is used beside a call
  std::atomic<Comm> comm_ = nullptr;
  Comm no_part_ = nullptr;  // where the library writes if this rank is in no group
  bool blocking_ = false;   // then a call may wait inside the library, and abort comes beside it
  std::optional<Group> group_;
  std::map<std::uint64_t, void*> registered_;  // handles of the library by number, with calls_ held
  std::uint64_t last_registration_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> revoked_{false};
  bool suspended_ = false;          // with calls_ held
  std::uint64_t identity_ = 0;      // the same on all ranks
  std::uint64_t parts_made_ = 0;    // of it
  std::optional<UniqueId> growth_;  // the library has one at a time
  Deadline next_look_ = Deadline::at_ns(0);
  gpu::StreamWorks works_;
  Windows windows_;
};

}  // namespace headrace::nccl
