// SPDX-License-Identifier: Apache-2.0
// A request made ready for a GPU: what was a list of pages is one launch, or one copy.
//
// Whatever depends on the list happens in `prepare`: neighbours are merged, the way is chosen, tables are
// written and sent to the device. A post costs the same for one page and for a hundred thousand. Its end is a
// word in host memory that the device writes after the bytes, so that nobody needs to ask the driver.
#pragma once

#include "gpu/courier.hpp"
#include "gpu/event.hpp"
#include "gpu/kernel_library.hpp"
#include "gpu/stream.hpp"
#include "gpu/table_pool.hpp"

#include <headrace/plugin/backend_v1.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace headrace::gpu {

enum class MoveMethod {
  nothing,  ///< no bytes
  copy,     ///< by copy engine: one stretch on both sides, or a few long ones to or from host memory
  few,      ///< by a kernel that is told the parts in its launch
  pages,    ///< by a kernel that reads 4 bytes of index a page and side
  grids,    ///< likewise, of pages that are grids of runs
  parts,    ///< by a kernel that reads source, target and length of each part
  batch,    ///< long stretches between GPUs, by copy engine in one call; as `parts` on the legacy stream
};

/// What chooses the way. The defaults were measured on H200 with NVLink (bench/results, gpu-probe).
struct MoveSettings {
  /// Of the GPU that a kernel may occupy; 0: all. 64 of 132 reach 98 to 99 % of what all do, 32 reach
  /// 95 to 99 %, 16 reach 94 to 97 %.
  std::uint32_t multiprocessors = 64;
  /// Lists of at most 8 parts and so many bytes travel inside the launch.
  std::uint64_t few_bytes = 65536;
  /// One stretch of at least so many bytes goes by copy engine, which is also the quickest way for a small
  /// one.
  std::uint64_t copy_engine_bytes = 1;
  /// To and from host memory, lists of at most 64 stretches that are all at least so long go by copy engine:
  /// 55 GB/s where the kernel reaches 52.
  std::uint64_t host_copy_bytes = 4 << 20;
  /// Between GPUs, lists of at most 256 stretches that are all at least so long go by copy engine, too; 0:
  /// none do. In one call: of 16 MiB each 387 GB/s, where a call for each reaches 359 and the kernel 368 and
  /// 360; of 4 MiB 376 and 373 beside 366 and 360; of 1 MiB the kernel is quicker.
  std::uint64_t gpu_copy_bytes = 4 << 20;
  /// Off, as long as nobody asks for it: it occupies a multiprocessor.
  CourierSettings courier = {};
};

/// Whether a post comes behind what its stream has been given before, and before what comes later.
enum class Order { stream, none };

/// What a move reaches beside GPU memory.
enum class Touches { gpus, host };

/// What all moves of one device share. Any thread.
struct Mover {
  std::shared_ptr<const Kernels> kernels;
  std::shared_ptr<TablePool> tables;
  Stream uploads;
  MoveSettings settings;
  std::shared_ptr<Courier> courier;  ///< null: off

  ///   errors   exhausted, backend_failed
  [[nodiscard]] static Result<std::shared_ptr<const Mover>> make(std::shared_ptr<const Kernels> kernels,
                                                                 const MoveSettings& settings = {});
};

class PreparedMove {
 public:
  /// Where a region of the request begins, as the mover's device sees it.
  using AddressOf = std::function<cuda::Address(void* region)>;

  /// Reads the list, which may go afterwards.
  ///   errors   exhausted (memory for tables), backend_failed
  [[nodiscard]] static Result<PreparedMove> prepare(std::shared_ptr<const Mover> mover,
                                                    const headrace_prepare_v1& args, const AddressOf& local,
                                                    const AddressOf& remote, Touches touches = Touches::gpus);

  /// How many pages a regular list has on each side: numbers of pages are below these.
  struct PageLimits {
    std::uint64_t local = 0;
    std::uint64_t remote = 0;
  };
  /// One that is to lie in a graph: by kernel, whatever the list, and by the numbers of its pages if it is
  /// regular. It is recorded, not posted.
  ///   errors   as of prepare
  [[nodiscard]] static Result<PreparedMove> prepare_for_graph(std::shared_ptr<const Mover> mover,
                                                              const headrace_prepare_v1& args,
                                                              const PageLimits& limits,
                                                              const AddressOf& local,
                                                              const AddressOf& remote);

  [[nodiscard]] MoveMethod method() const noexcept { return method_; }
  /// How many parts the kernel or the copy engine is told, after neighbours were merged.
  [[nodiscard]] std::uint64_t parts() const noexcept { return parts_; }

  /// Whether the courier takes it where no order is asked for.
  [[nodiscard]] bool fits_courier() const noexcept { return !carried_.empty(); }

  /// Queues the move on a stream of the mover's device, or hands it to the courier if that takes it and no
  /// order is asked for. The last post has ended.
  [[nodiscard]] Result<void> post(cuda::Stream stream, Order order = Order::stream);
  /// Whether the last post has ended: then its bytes can be read, unless it was dropped. A load, no call.
  [[nodiscard]] bool poll_done() const {
    if (ticket_ != 0) return mover_->courier->look(ticket_) != Courier::State::pending;
    return method_ == MoveMethod::nothing || __atomic_load_n(word(), __ATOMIC_ACQUIRE) == posts_;
  }
  /// Of a post that has ended: whether it will never be made, for the courier could not go on.
  [[nodiscard]] bool was_dropped() const {
    return ticket_ != 0 && mover_->courier->look(ticket_) == Courier::State::dropped;
  }

  // Of one for a graph.

  /// Queues it on a stream that is being captured. Its launches, at every replay, come one after another.
  /// Waits until its table has arrived, some 10 us.
  [[nodiscard]] Result<void> record(cuda::Stream stream);
  /// How many of its launches have ended. A load, no call.
  [[nodiscard]] std::uint64_t replays() const noexcept { return __atomic_load_n(word(), __ATOMIC_ACQUIRE); }
  /// What a launch has told of a page that it passed over, as headrace_move_pages_v1 says; 0: nothing. Told
  /// once.
  [[nodiscard]] std::uint64_t take_refused() noexcept {
    return __atomic_exchange_n(word() + refused_word, 0, __ATOMIC_ACQUIRE);
  }
  /// Of a regular list: where the device reads what may change between launches.
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
  Result<void> write_parts(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote);
  Result<void> write_batch(const headrace_prepare_v1& args, const AddressOf& local, const AddressOf& remote);
  Result<void> take_table(std::uint64_t bytes);
  Result<void> upload(std::uint64_t bytes);
  Result<void> after_upload(cuda::Stream stream);
  cuda::Outcome launch(cuda::Stream stream);
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
  std::uint64_t parts_ = 0;
  std::uint64_t posts_ = 0;             // on streams
  std::vector<Courier::Part> carried_;  // what the courier is told; empty: it does not take the list
  Courier::Ticket ticket_ = 0;          // of the last post; 0: it went by stream
  // Begins with the words that the device writes on the host's side, and on the device's with the kernel's
  // state; then the bounds; columns follow.
  TablePool::Table table_;
  std::unique_ptr<Event> uploaded_;  // until it has been seen
  std::vector<Copy> copies_;
  /// As the driver takes it.
  struct Batch {
    std::vector<cuda::Address> targets, sources;
    std::vector<std::size_t> bytes;
  } batch_;
  headrace_move_few_v1 few_{};
  headrace_move_pages_v1 pages_{};
  headrace_move_grids_v1 grids_{};
  headrace_move_parts_v1 part_list_{};
  std::optional<Changeable> changeable_;

  static constexpr std::size_t refused_word = 1;  // behind that of the end
};

}  // namespace headrace::gpu
