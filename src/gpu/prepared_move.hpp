// SPDX-License-Identifier: Apache-2.0
// A request prepared for a GPU: a list of pages becomes one launch or one copy.
//
// All work that depends on the list happens in `prepare`: it merges neighbours, chooses the method, writes
// the tables and sends them to the device. A post costs the same for one page and for a hundred thousand. The
// device reports the end by storing a word in host memory after the bytes, so that polling needs no call of
// the driver.
#pragma once

#include "gpu/courier.hpp"
#include "gpu/event.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/stream.hpp"
#include "gpu/table_pool.hpp"

#include <headrace/plugin/backend_v1.h>
#include <headrace/plugin/kernels/gather_scatter_v1.h>
#include <headrace/plugin/kernels/grids_v1.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace headrace::gpu {

enum class MoveMethod {
  nothing,  ///< no bytes
  copy,     ///< by copy engine: one run on both sides, or a few long ones to or from host memory
  few,      ///< by a kernel whose launch arguments contain the runs
  pages,    ///< by a kernel that reads a 4-byte index for each page and side
  grids,    ///< the same for pages that are grids of runs
  runs,     ///< by a kernel that reads source, target and length of each run
  batch,    ///< long runs between GPUs, by copy engine in one call; on the legacy stream as `runs`
};

/// How the method is chosen. The defaults were measured on H200 with NVLink (bench/results, gpu-probe).
struct MoveSettings {
  /// Multiprocessors that a kernel may occupy; 0: all. Of 132, 64 reach 98 to 99 % of the bandwidth of all,
  /// 32 reach 95 to 99 %, 16 reach 94 to 97 %.
  std::uint32_t multiprocessors = 64;
  /// Lists of at most 8 runs and at most this many bytes travel inside the launch.
  std::uint64_t few_bytes = 65536;
  /// One run of at least this length goes by copy engine, which is also the fastest method for a small one.
  std::uint64_t copy_engine_bytes = 1;
  /// To and from host memory, lists of at most 64 runs that all have at least this length go by copy engine:
  /// 55 GB/s, against 52 GB/s by kernel.
  std::uint64_t host_copy_bytes = 4 << 20;
  /// Between GPUs, lists of at most 256 runs that all have at least this length go by copy engine, in one
  /// call; 0: no list does. Measured for runs of 16 MiB: 387 GB/s in one call, 359 GB/s in a call for each
  /// run, 360 to 368 GB/s by kernel. For runs of 4 MiB: 373 to 376 GB/s against 360 to 366 GB/s by kernel.
  /// For runs of 1 MiB the kernel is faster.
  std::uint64_t gpu_copy_bytes = 4 << 20;
  /// Off by default: it occupies a multiprocessor.
  CourierSettings courier = {};
};

/// Whether a post keeps its place in the order of its stream.
enum class Order { stream, none };

/// The memory that a move reaches besides GPU memory.
enum class Touches { gpus, host };

/// What all moves of one device share.
///   threads  any
struct Mover {
  std::shared_ptr<const Kernels> kernels;
  KernelFamily<headrace_gather_scatter_v1> gather_scatter;
  KernelFamily<headrace_grids_v1> grids;
  std::shared_ptr<TablePool> tables;
  Stream uploads;
  MoveSettings settings;
  std::shared_ptr<Courier> courier;  ///< null: off

  ///   errors   not_supported (the library lacks a family, or has an older one), exhausted, backend_failed
  [[nodiscard]] static Result<std::shared_ptr<const Mover>> make(std::shared_ptr<const Kernels> kernels,
                                                                 const MoveSettings& settings = {});
};

class PreparedMove {
 public:
  /// The begin of a region of the request, as the mover's device sees it.
  using AddressOf = std::function<cuda::Address(void* region)>;

  /// Prepares a move. Reads the list, which is not needed afterwards.
  ///   errors   exhausted (memory for tables), backend_failed
  [[nodiscard]] static Result<PreparedMove> prepare(std::shared_ptr<const Mover> mover,
                                                    const headrace_prepare_v1& args, const AddressOf& local,
                                                    const AddressOf& remote, Touches touches = Touches::gpus);

  /// Number of pages of a uniform list on each side: page indices are below these.
  struct PageLimits {
    std::uint64_t local = 0;
    std::uint64_t remote = 0;
  };
  /// Prepares a move for a graph: always by kernel, and by page indices if the list is uniform. It is
  /// recorded, not posted.
  ///   errors   as prepare
  [[nodiscard]] static Result<PreparedMove> prepare_for_graph(std::shared_ptr<const Mover> mover,
                                                              const headrace_prepare_v1& args,
                                                              const PageLimits& limits,
                                                              const AddressOf& local,
                                                              const AddressOf& remote);

  [[nodiscard]] MoveMethod method() const noexcept { return method_; }
  /// Number of runs for the kernel or the copy engine, after neighbours were merged and long ones cut.
  [[nodiscard]] std::uint64_t runs() const noexcept { return runs_; }

  /// Whether the courier moves it if no order is required.
  [[nodiscard]] bool fits_courier() const noexcept { return !carried_.empty(); }

  /// Queues the move on a stream of the mover's device, or passes it to the courier if that takes it and no
  /// order is required. The last post has ended.
  [[nodiscard]] Result<void> post(cuda::Stream stream, Order order = Order::stream);
  /// Whether the last post has ended: then its bytes can be read, unless it was dropped. Costs a load, no
  /// call.
  [[nodiscard]] bool poll_done() const {
    if (ticket_ != 0) return mover_->courier->look(ticket_) != Courier::State::pending;
    return method_ == MoveMethod::nothing || __atomic_load_n(word(), __ATOMIC_ACQUIRE) == posts_;
  }
  /// Of a post that has ended: whether it never moved, because the courier could not be launched again.
  [[nodiscard]] bool was_dropped() const {
    return ticket_ != 0 && mover_->courier->look(ticket_) == Courier::State::dropped;
  }

  // For moves that were prepared for a graph.

  /// Queues the move on a stream that is being captured. Its launches, one for each replay, follow one after
  /// another. Waits until its table has arrived, about 10 us.
  [[nodiscard]] Result<void> record(cuda::Stream stream);
  /// Number of its launches that have ended. Costs a load, no call.
  [[nodiscard]] std::uint64_t replays() const noexcept { return __atomic_load_n(word(), __ATOMIC_ACQUIRE); }
  /// A page that a launch has skipped, in the form of headrace_move_pages_v1; 0: none. Each is returned once.
  [[nodiscard]] std::uint64_t take_refused() noexcept {
    return __atomic_exchange_n(word() + refused_word, 0, __ATOMIC_ACQUIRE);
  }
  /// Of a uniform list: device addresses of what may change between launches.
  struct Changeable {
    cuda::Address count = 0;  ///< a uint32_t
    cuda::Address local = 0;  ///< a uint32_t for each page
    cuda::Address remote = 0;
  };
  [[nodiscard]] const std::optional<Changeable>& changeable() const noexcept { return changeable_; }

 private:
  explicit PreparedMove(std::shared_ptr<const Mover> mover) : mover_(std::move(mover)) {}

  struct Copy {
    cuda::Address target, source;
    std::uint64_t bytes;
  };

  Result<void> choose(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote,
                      Touches touches);
  void offer_to_courier(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote);
  Result<void> tell_copies(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote);
  Result<void> tell_few(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote);
  Result<void> write_pages(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote,
                           const PageLimits* limits);
  void tell_grid(const headrace_prepare_v1& args);
  void write_bounds(const headrace_prepare_v1& args, const PageLimits& limits);
  Result<void> write_runs(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote);
  Result<void> write_batch(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote);
  Result<void> take_table(std::uint64_t bytes);
  Result<void> upload(std::uint64_t bytes);
  Result<void> after_upload(cuda::Stream stream);
  cuda::Outcome launch(cuda::Stream stream);
  cuda::Outcome launch_runs(cuda::Stream stream);
  cuda::Outcome copy(cuda::Stream stream);
  cuda::Outcome copy_batch(cuda::Stream stream);
  cuda::Outcome tell_end(cuda::Outcome copied, cuda::Stream stream);

  [[nodiscard]] std::uint64_t* word() const noexcept {
    return reinterpret_cast<std::uint64_t*>(table_.host());
  }
  [[nodiscard]] headrace_move_done_v1 done() const noexcept {
    return {table_.mapped(), posts_, table_.device()};
  }

  std::shared_ptr<const Mover> mover_;
  MoveMethod method_ = MoveMethod::nothing;
  std::uint64_t runs_ = 0;
  std::uint64_t posts_ = 0;            // on streams
  std::vector<Courier::Run> carried_;  // its runs for the courier; empty: the courier does not take the list
  Courier::Ticket ticket_ = 0;         // of the last post; 0: it went by stream
  // Begins with the words that the device writes; on the device's side it also begins with the kernel's
  // state. Then the bounds, then the columns.
  TablePool::Table table_;
  std::unique_ptr<Event> uploaded_;  // until the upload has been seen
  std::vector<Copy> copies_;
  /// In the form that the driver takes.
  struct Batch {
    std::vector<cuda::Address> targets, sources;
    std::vector<std::size_t> bytes;
  } batch_;
  headrace_move_few_v1 few_{};
  headrace_move_pages_v1 pages_{};
  headrace_move_grids_v1 grids_{};
  headrace_move_runs_v1 run_list_{};
  std::optional<Changeable> changeable_;

  static constexpr std::size_t refused_word = 1;  // after the word of the end
};

}  // namespace headrace::gpu
