// SPDX-License-Identifier: Apache-2.0
#include "gpu/prepared_move.hpp"

#include "memory/page_cursor.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>

namespace headrace::gpu {
namespace {

// Of a table: the size of its head, which comes before the columns, and the offset of the bounds in it.
constexpr std::uint64_t head_bytes = 64;
constexpr std::uint64_t bounds_at = 16;
static_assert(sizeof(headrace_move_state_v1) <= bounds_at &&
              bounds_at + sizeof(headrace_move_bounds_v1) <= head_bytes);

// One warp moves one run of a table. Long runs are cut so that each warp gets several, but none is below a
// tile.
constexpr std::uint64_t wanted_runs = 4096;
constexpr std::uint64_t tile_bytes = 4096;
constexpr std::uint64_t longest_run_bytes = 256 * 1024;

std::uint64_t run_bytes_for(std::uint64_t bytes) {
  const std::uint64_t even = (bytes / wanted_runs + tile_bytes - 1) / tile_bytes * tile_bytes;
  return std::clamp(even, tile_bytes, longest_run_bytes);
}

constexpr std::uint64_t most_copies = 64;
constexpr std::uint64_t most_copies_of_batch = 256;  // the largest number that was measured

/// Whether no run is shorter than `least`, and there are at most `most` of them.
bool are_long(const headrace_prepare_v1& args, std::uint64_t least, std::uint64_t most) {
  PageCursor cursor(args);
  std::uint64_t count = 0;
  for (PageRun run; cursor.next(run);)
    if (run.bytes < least || ++count > most) return false;
  return true;
}

/// Whether page i is at base + index * stride, in one region.
bool is_regular(const headrace_side_v1& side) {
  return side.columns.offsets == nullptr && side.columns.region_of == nullptr;
}

struct Ends {
  cuda::Address source;
  cuda::Address target;
};

Ends ends_of(const headrace_prepare_v1& args, const PageRun& run, const PreparedMove::AddressOf& local,
             const PreparedMove::AddressOf& remote) {
  const cuda::Address here = local(run.local_region) + run.local_offset;
  const cuda::Address there = remote(run.remote_region) + run.remote_offset;
  return args.op == HEADRACE_READ ? Ends{there, here} : Ends{here, there};
}

/// Whether the index alone determines each page.
bool is_by_number(const headrace_prepare_v1& args) {
  return common_page_bytes(args) != 0 && is_regular(*args.local) && is_regular(*args.remote);
}

/// Of a launch that moves grids: runs have 31-bit numbers.
constexpr std::uint64_t most_runs = (std::uint64_t{1} << 31) - 1;

Result<void> check_runs(const headrace_prepare_v1& args) {
  if (args.grid == nullptr || args.count <= most_runs / args.grid->runs) return {};
  return make_error(
      Code::not_supported,
      "the request has {} pages of {} runs each, and one GPU launch moves {} at most: make several requests",
      args.count, args.grid->runs, most_runs);
}

/// Bytes of a side's columns in a table: an index for each page, and also an address if the index alone does
/// not determine the page.
std::uint64_t column_bytes(const headrace_prepare_v1& args, const headrace_side_v1& side) {
  const std::uint64_t a_page =
      is_regular(side) ? sizeof(std::uint32_t) : sizeof(std::uint32_t) + sizeof(std::uint64_t);
  return args.count * a_page + alignof(std::uint64_t);
}

template <class T>
struct Column {
  std::span<T> values;        // to be filled
  cuda::Address address = 0;  // on the GPU
  [[nodiscard]] const T* on_gpu() const { return reinterpret_cast<const T*>(address); }
};

/// Columns, one after another, in a table.
class TableColumns {
 public:
  explicit TableColumns(const TablePool::Table& table) : table_(table) {}
  /// Adds room for `count` values.
  template <class T>
  Column<T> add(std::uint64_t count) {
    at_ = (at_ + alignof(T) - 1) / alignof(T) * alignof(T);
    const Column<T> column{{reinterpret_cast<T*>(table_.host() + at_), count}, table_.device() + at_};
    at_ += count * sizeof(T);
    return column;
  }
  [[nodiscard]] std::uint64_t end() const { return at_; }

 private:
  const TablePool::Table& table_;
  std::uint64_t at_ = head_bytes;
};

/// Makes the sides of a request such as kernels read: what is an array goes into the table.
class SidesForKernels {
 public:
  /// `all_indices`: also of a side whose page i has the index i.
  SidesForKernels(const headrace_prepare_v1& args, TableColumns& table, bool all_indices)
      : args_(args), table_(table), all_indices_(all_indices) {}

  headrace_move_side_v1 make(const headrace_side_v1& side, const PreparedMove::AddressOf& address_of) {
    headrace_move_side_v1 made =
        is_regular(side) ? by_index(side.columns, address_of(side.regions[0])) : by_address(side, address_of);
    made.columns.page_bytes = common_page_bytes(args_);
    return made;
  }
  /// Of the launch that moves the sides made so far.
  [[nodiscard]] std::uint32_t flags() const {
    return all_addresses_ % 16 == 0 ? HEADRACE_MOVE_BASES_ALIGNED : 0;
  }

 private:
  headrace_move_side_v1 by_index(const headrace_columns_v1& columns, cuda::Address region) {
    headrace_move_side_v1 made{};
    made.columns.base_offset = region + columns.base_offset;
    made.columns.stride_bytes = columns.stride_bytes;
    if (columns.indices == nullptr && !all_indices_) return made;
    const auto column = table_.add<std::uint32_t>(args_.count);
    if (columns.indices != nullptr)
      std::memcpy(column.values.data(), columns.indices, column.values.size_bytes());
    else
      std::iota(column.values.begin(), column.values.end(), 0U);
    made.columns.indices = column.on_gpu();
    return made;
  }

  /// The kernel takes each page for a region of its own.
  headrace_move_side_v1 by_address(const headrace_side_v1& side, const PreparedMove::AddressOf& address_of) {
    const auto addresses = table_.add<std::uint64_t>(args_.count);
    const auto numbers = table_.add<std::uint32_t>(args_.count);
    for (std::uint64_t i = 0; i < args_.count; ++i)
      all_addresses_ |= addresses.values[i] = address_of(side_region(side, i)) + offset_of(side.columns, i);
    std::iota(numbers.values.begin(), numbers.values.end(), 0U);
    headrace_move_side_v1 made{};
    made.columns.region_of = numbers.on_gpu();
    made.bases = addresses.on_gpu();
    return made;
  }

  const headrace_prepare_v1& args_;
  TableColumns& table_;
  const bool all_indices_;
  std::uint64_t all_addresses_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Mover>> Mover::make(std::shared_ptr<const Kernels> kernels,
                                                 const MoveSettings& settings) {
  HEADRACE_TRY(gather_scatter,
               KernelFamily<headrace_gather_scatter_v1>::of(kernels, HEADRACE_GATHER_SCATTER_FAMILY,
                                                            HEADRACE_GATHER_SCATTER_FAMILY_VERSION));
  HEADRACE_TRY(grids, KernelFamily<headrace_grids_v1>::of(kernels, HEADRACE_GRIDS_FAMILY,
                                                          HEADRACE_GRIDS_FAMILY_VERSION));
  auto device = kernels->shared_device();
  HEADRACE_TRY(uploads, Stream::make(device));
  std::shared_ptr<Courier> courier;
  if (settings.courier.on) {
    HEADRACE_TRY(made, Courier::make(kernels, settings.courier));
    courier = std::move(made);
  }
  return std::shared_ptr<const Mover>(new Mover{
      std::move(kernels), std::move(gather_scatter), std::move(grids),
      std::make_shared<TablePool>(std::move(device)), std::move(uploads), settings, std::move(courier)});
}

Result<PreparedMove> PreparedMove::prepare(std::shared_ptr<const Mover> mover,
                                           const headrace_prepare_v1& args, const AddressOf& local,
                                           const AddressOf& remote, Touches touches) {
  HEADRACE_TRY_VOID(check_runs(args));
  PreparedMove move(std::move(mover));
  const ContextGuard guard(move.mover_->kernels->device());
  HEADRACE_TRY_VOID(move.choose(args, local, remote, touches));
  if (move.mover_->courier != nullptr) move.offer_to_courier(args, local, remote);
  return move;
}

Result<PreparedMove> PreparedMove::prepare_for_graph(std::shared_ptr<const Mover> mover,
                                                     const headrace_prepare_v1& args,
                                                     const PageLimits& limits, const AddressOf& local,
                                                     const AddressOf& remote) {
  HEADRACE_TRY_VOID(check_runs(args));
  PreparedMove move(std::move(mover));
  const ContextGuard guard(move.mover_->kernels->device());
  if (args.count > 0 && is_by_number(args)) {
    HEADRACE_TRY_VOID(move.write_pages(args, local, remote, &limits));
  } else if (args.count > 0 && args.grid != nullptr) {
    HEADRACE_TRY_VOID(move.write_pages(args, local, remote, nullptr));
  } else {
    HEADRACE_TRY_VOID(move.write_runs(args, local, remote));
  }
  return move;
}

Result<void> PreparedMove::choose(const headrace_prepare_v1& args, const AddressOf& local,
                                  const AddressOf& remote, Touches touches) {
  std::array<PageRun, HEADRACE_MOVE_FEW_MOST + 1> runs;
  PageCursor cursor(args);
  const std::size_t count = cursor.fill(runs);
  const MoveSettings& settings = mover_->settings;
  if (count == 0) return {};
  if ((count == 1 && args.bytes >= settings.copy_engine_bytes) ||
      (touches == Touches::host && are_long(args, settings.host_copy_bytes, most_copies)))
    return tell_copies(args, local, remote);
  if (touches == Touches::gpus && settings.gpu_copy_bytes != 0 &&
      are_long(args, settings.gpu_copy_bytes, most_copies_of_batch))
    return write_batch(args, local, remote);
  if (count <= HEADRACE_MOVE_FEW_MOST && args.bytes <= settings.few_bytes) {
    method_ = MoveMethod::few;
    return tell_few(args, local, remote);
  }
  if (args.grid != nullptr || (count > HEADRACE_MOVE_FEW_MOST && is_by_number(args)))
    return write_pages(args, local, remote, nullptr);
  return write_runs(args, local, remote);
}

void PreparedMove::offer_to_courier(const headrace_prepare_v1& args, const AddressOf& local,
                                    const AddressOf& remote) {
  PageCursor cursor(args);
  std::vector<Courier::Run> runs;
  for (PageRun run; cursor.next(run) && runs.size() <= Courier::most_runs;) {
    const Ends ends = ends_of(args, run, local, remote);
    runs.push_back({ends.source, ends.target, run.bytes});
  }
  if (mover_->courier->takes(runs)) carried_ = std::move(runs);
}

Result<void> PreparedMove::tell_copies(const headrace_prepare_v1& args, const AddressOf& local,
                                       const AddressOf& remote) {
  method_ = MoveMethod::copy;
  PageCursor cursor(args);
  for (PageRun run; cursor.next(run); ++runs_) {
    const Ends ends = ends_of(args, run, local, remote);
    copies_.push_back({ends.target, ends.source, run.bytes});
  }
  return take_table(head_bytes);
}

Result<void> PreparedMove::tell_few(const headrace_prepare_v1& args, const AddressOf& local,
                                    const AddressOf& remote) {
  HEADRACE_TRY_VOID(take_table(head_bytes));
  few_.struct_size = sizeof few_;
  PageCursor cursor(args);
  for (PageRun run; cursor.next(run); ++runs_) {
    const Ends ends = ends_of(args, run, local, remote);
    few_.sources[runs_] = ends.source;
    few_.targets[runs_] = ends.target;
    few_.lengths[runs_] = run.bytes;
  }
  few_.count = runs_;
  return upload(head_bytes);
}

/// `limits`: for a list whose indices may change later; then the table has all of them. Pages of a list of
/// grids need not be determined by their indices: a column of addresses replaces base and stride.
Result<void> PreparedMove::write_pages(const headrace_prepare_v1& args, const AddressOf& local,
                                       const AddressOf& remote, const PageLimits* limits) {
  method_ = MoveMethod::pages;
  runs_ = args.count;
  HEADRACE_TRY_VOID(
      take_table(head_bytes + column_bytes(args, *args.local) + column_bytes(args, *args.remote)));
  TableColumns columns(table_);
  SidesForKernels sides(args, columns, limits != nullptr);
  const headrace_move_side_v1 here = sides.make(*args.local, local), there = sides.make(*args.remote, remote);
  pages_.struct_size = sizeof pages_;
  pages_.source = args.op == HEADRACE_READ ? there : here;
  pages_.target = args.op == HEADRACE_READ ? here : there;
  pages_.count = args.count;
  pages_.most_multiprocessors = mover_->settings.multiprocessors;
  pages_.flags = sides.flags();
  if (args.grid != nullptr) tell_grid(args);
  if (limits != nullptr) {
    write_bounds(args, *limits);
    changeable_ = {pages_.bounds + offsetof(headrace_move_bounds_v1, count),
                   reinterpret_cast<cuda::Address>(here.columns.indices),
                   reinterpret_cast<cuda::Address>(there.columns.indices)};
  }
  return upload(columns.end());
}

void PreparedMove::tell_grid(const headrace_prepare_v1& args) {
  static_assert(HEADRACE_GRID_MOST == HEADRACE_MOVE_GRID_MOST);
  const headrace_page_grid_v1& grid = *args.grid;
  method_ = MoveMethod::grids;
  grids_.struct_size = sizeof grids_;
  grids_.dimensions = grid.dimensions;
  grids_.run_bytes = grid.run_bytes;
  std::copy_n(grid.counts, grid.dimensions, grids_.counts);
  const bool reads = args.op == HEADRACE_READ;
  std::copy_n(reads ? grid.remote_strides : grid.local_strides, grid.dimensions, grids_.source_strides);
  std::copy_n(reads ? grid.local_strides : grid.remote_strides, grid.dimensions, grids_.target_strides);
}

void PreparedMove::write_bounds(const headrace_prepare_v1& args, const PageLimits& limits) {
  auto& bounds = *reinterpret_cast<headrace_move_bounds_v1*>(table_.host() + bounds_at);
  bounds.source_pages = args.op == HEADRACE_READ ? limits.remote : limits.local;
  bounds.target_pages = args.op == HEADRACE_READ ? limits.local : limits.remote;
  bounds.count = static_cast<std::uint32_t>(args.count);
  pages_.bounds = table_.device() + bounds_at;
  pages_.refused = table_.mapped() + refused_word * sizeof(std::uint64_t);
}

Result<void> PreparedMove::write_runs(const headrace_prepare_v1& args, const AddressOf& local,
                                      const AddressOf& remote) {
  method_ = MoveMethod::runs;
  const std::uint64_t longest = run_bytes_for(args.bytes);
  const std::uint64_t most =
      args.count + args.bytes / longest;  // each page ends one run at most, each cut adds one
  HEADRACE_TRY_VOID(take_table(head_bytes + most * (2 * sizeof(std::uint64_t) + sizeof(std::uint32_t))));
  TableColumns columns(table_);
  const auto sources = columns.add<std::uint64_t>(most), targets = columns.add<std::uint64_t>(most);
  const auto lengths = columns.add<std::uint32_t>(most);
  run_list_.struct_size = sizeof run_list_;
  run_list_.sources = sources.address;
  run_list_.targets = targets.address;
  run_list_.lengths = lengths.address;
  PageCursor cursor(args, longest);
  for (PageRun run; cursor.next(run); ++runs_) {
    const Ends ends = ends_of(args, run, local, remote);
    sources.values[runs_] = ends.source;
    targets.values[runs_] = ends.target;
    lengths.values[runs_] = static_cast<std::uint32_t>(run.bytes);
  }
  run_list_.count = runs_;
  run_list_.most_multiprocessors = mover_->settings.multiprocessors;
  return upload(columns.end());
}

/// The table is for posts on the legacy stream, which accepts no batch.
Result<void> PreparedMove::write_batch(const headrace_prepare_v1& args, const AddressOf& local,
                                       const AddressOf& remote) {
  HEADRACE_TRY_VOID(write_runs(args, local, remote));
  method_ = MoveMethod::batch;
  PageCursor cursor(args);
  for (PageRun run; cursor.next(run);) {
    const Ends ends = ends_of(args, run, local, remote);
    batch_.targets.push_back(ends.target);
    batch_.sources.push_back(ends.source);
    batch_.bytes.push_back(run.bytes);
  }
  return {};
}

Result<void> PreparedMove::take_table(std::uint64_t bytes) {
  HEADRACE_TRY(table, mover_->tables->take(bytes));
  table_ = std::move(table);
  std::memset(table_.host(), 0, head_bytes);
  return {};
}

Result<void> PreparedMove::upload(std::uint64_t bytes) {
  if (method_ == MoveMethod::copy || method_ == MoveMethod::few) return {};  // they read no table
  const Device& device = mover_->kernels->device();
  HEADRACE_TRY(uploaded, Event::make(mover_->kernels->shared_device()));
  HEADRACE_CUDA_TRY(
      device.driver(),
      device.driver().memcpy_async(table_.device(), table_.mapped(), bytes, mover_->uploads.handle()),
      "send a page table of {} bytes to GPU {}", bytes, device.ordinal());
  HEADRACE_TRY_VOID(uploaded.record(mover_->uploads.handle()));
  uploaded_ = std::make_unique<Event>(std::move(uploaded));
  return {};
}

Result<void> PreparedMove::after_upload(cuda::Stream stream) {
  if (uploaded_ == nullptr) return {};
  HEADRACE_TRY(reached, uploaded_->poll_reached());
  if (reached)
    uploaded_.reset();
  else
    HEADRACE_TRY_VOID(uploaded_->hold_back(stream));
  return {};
}

Result<void> PreparedMove::post(cuda::Stream stream, Order order) {
  if (method_ == MoveMethod::nothing) return {};
  ticket_ = 0;
  if (order == Order::none && fits_courier()) ticket_ = mover_->courier->post(carried_).value_or(0);
  if (ticket_ != 0) return {};
  const Device& device = mover_->kernels->device();
  const ContextGuard guard(device);
  HEADRACE_TRY_VOID(after_upload(stream));
  ++posts_;
  const cuda::Outcome outcome = launch(stream);
  if (outcome == cuda::Outcome::success) return {};
  __atomic_store_n(word(), posts_, __ATOMIC_RELEASE);  // it has ended, because it has not begun
  return cuda::driver_error(device.driver(), outcome, "move {} runs on GPU {}", runs_, device.ordinal());
}

Result<void> PreparedMove::record(cuda::Stream stream) {
  const Device& device = mover_->kernels->device();
  const ContextGuard guard(device);
  // A graph cannot wait for work that was queued outside it.
  if (uploaded_ != nullptr) HEADRACE_TRY_VOID(uploaded_->wait_reached());
  uploaded_.reset();
  // No post has been made: the launch counts to report its end.
  HEADRACE_CUDA_TRY(device.driver(), launch(stream), "record a move of {} runs on GPU {}", runs_,
                    device.ordinal());
  return {};
}

cuda::Outcome PreparedMove::launch(cuda::Stream stream) {
  switch (method_) {
    case MoveMethod::nothing:
      return cuda::Outcome::success;
    case MoveMethod::few:
      few_.done = done();
      return mover_->gather_scatter.launch<&headrace_gather_scatter_v1::move_few>(few_, stream);
    case MoveMethod::pages:
      pages_.done = done();
      return mover_->gather_scatter.launch<&headrace_gather_scatter_v1::move_pages>(pages_, stream);
    case MoveMethod::grids:
      grids_.pages = pages_;
      grids_.pages.done = done();
      return mover_->grids.launch<&headrace_grids_v1::move_grids>(grids_, stream);
    case MoveMethod::runs:
      return launch_runs(stream);
    case MoveMethod::copy:
      return copy(stream);
    case MoveMethod::batch:
      if (const cuda::Outcome outcome = copy_batch(stream); outcome != cuda::Outcome::not_supported)
        return outcome;
      return launch_runs(stream);
  }
  return cuda::Outcome::invalid_value;
}

cuda::Outcome PreparedMove::launch_runs(cuda::Stream stream) {
  run_list_.done = done();
  return mover_->gather_scatter.launch<&headrace_gather_scatter_v1::move_runs>(run_list_, stream);
}

cuda::Outcome PreparedMove::copy(cuda::Stream stream) {
  const cuda::DriverTable& driver = mover_->kernels->device().driver();
  cuda::Outcome outcome = cuda::Outcome::success;
  for (const Copy& run : copies_) {
    outcome = driver.memcpy_async(run.target, run.source, run.bytes, stream);
    if (outcome != cuda::Outcome::success) break;
  }
  return tell_end(outcome, stream);
}

/// not_supported: nothing was queued.
cuda::Outcome PreparedMove::copy_batch(cuda::Stream stream) {
  if (stream == nullptr || stream == cuda::legacy_stream) return cuda::Outcome::not_supported;
  const cuda::DriverTable& driver = mover_->kernels->device().driver();
  cuda::CopyAttributes attributes;
  attributes.flags = cuda::copy_prefer_overlap;
  std::size_t first = 0, failed = 0;
  const cuda::Outcome outcome =
      driver.memcpy_batch_async(batch_.targets.data(), batch_.sources.data(), batch_.bytes.data(),
                                batch_.bytes.size(), &attributes, &first, 1, &failed, stream);
  return outcome == cuda::Outcome::not_supported ? outcome : tell_end(outcome, stream);
}

/// Queues the store of the end word after the copies; returns the result.
cuda::Outcome PreparedMove::tell_end(cuda::Outcome copied, cuda::Stream stream) {
  const cuda::DriverTable& driver = mover_->kernels->device().driver();
  const cuda::Outcome outcome =
      copied != cuda::Outcome::success
          ? copied
          : driver.stream_write_value_64(stream, table_.mapped(), posts_, cuda::write_value_default);
  if (outcome != cuda::Outcome::success)
    (void)driver.stream_synchronize(stream);  // no copy must outlive the post
  return outcome;
}

}  // namespace headrace::gpu
