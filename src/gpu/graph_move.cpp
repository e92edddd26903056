// SPDX-License-Identifier: Apache-2.0
#include "gpu/graph_move.hpp"

#include <algorithm>
#include <cstring>

namespace headrace::gpu {
namespace {

// Changes that a stream may be behind: a host is usually one or two steps ahead of its GPU.
constexpr std::size_t most_queued = 64;

}  // namespace

Result<std::unique_ptr<GraphMove>> GraphMove::prepare(std::shared_ptr<const Mover> mover,
                                                      const headrace_prepare_v1& args,
                                                      const PreparedMove::PageLimits& limits,
                                                      const PreparedMove::AddressOf& local,
                                                      const PreparedMove::AddressOf& remote) {
  HEADRACE_TRY(move, PreparedMove::prepare_for_graph(mover, args, limits, local, remote));
  HEADRACE_TRY(changed, Event::make(mover->kernels->shared_device()));
  return std::unique_ptr<GraphMove>(
      new GraphMove(std::move(mover), std::move(move), std::move(changed), args.count));
}

GraphMove::~GraphMove() { (void)changed_.wait_reached(); }

Result<void> GraphMove::record_indices(const headrace_indices_v1& indices) {
  HEADRACE_TRY_VOID(check(indices));
  if (indices.kind == HEADRACE_DRAM)
    return make_error(
        Code::invalid_argument,
        "page indices in host memory would be the same at every replay: make the request with them, "
        "change them outside the capture, or put them in GPU memory");
  return queue_from_gpu(indices);
}

Result<void> GraphMove::set_indices(const headrace_indices_v1& change) {
  HEADRACE_TRY_VOID(check(change));
  if (change.kind == HEADRACE_DRAM) return set_from_host(change);
  auto queued = queue_from_gpu(change);
  HEADRACE_TRY_VOID(changed_.record(static_cast<cuda::Stream>(change.stream)));
  return queued;
}

Result<void> GraphMove::check(const headrace_indices_v1& change) const {
  if (!move_.changeable())
    return make_error(
        Code::not_supported,
        "page indices can be changed only if each side has pages of one length at one stride in one "
        "region: prepare both lists as uniform pages");
  if (change.count > most_)
    return make_error(Code::invalid_argument, "the request has {} pages: it cannot move {}", most_,
                      change.count);
  return {};
}

Result<void> GraphMove::queue_from_gpu(const headrace_indices_v1& change) {
  return queue(change, reinterpret_cast<cuda::Address>(change.local),
               reinterpret_cast<cuda::Address>(change.remote));
}

Result<void> GraphMove::set_from_host(const headrace_indices_v1& change) {
  HEADRACE_TRY(staging, free_staging());
  std::uint64_t at = 0;
  const auto stage = [&](const std::uint32_t* numbers) -> cuda::Address {
    if (numbers == nullptr) return 0;
    std::memcpy(staging->table.host() + at, numbers, change.count * sizeof *numbers);
    const cuda::Address address = staging->table.mapped() + at;
    at += change.count * sizeof *numbers;
    return address;
  };
  const cuda::Address local = stage(change.local), remote = stage(change.remote);
  auto queued = queue(change, local, remote);
  // Also if a later step was refused: the queued steps use the memory.
  const auto stream = static_cast<cuda::Stream>(change.stream);
  HEADRACE_TRY_VOID(staging->read.record(stream));
  HEADRACE_TRY_VOID(changed_.record(stream));
  return queued;
}

Result<GraphMove::Staging*> GraphMove::free_staging() {
  for (Staging& staging : staging_) {
    HEADRACE_TRY(reached, staging.read.poll_reached());
    if (reached) return &staging;
  }
  if (staging_.size() == most_queued)
    return make_error(Code::would_block,
                      "{} changes of page indices are queued: wait until the stream has caught up",
                      most_queued);
  HEADRACE_TRY(table, mover_->tables->take(2 * most_ * sizeof(std::uint32_t)));
  HEADRACE_TRY(read, Event::make(mover_->kernels->shared_device()));
  staging_.push_back({std::move(table), std::move(read)});
  return &staging_.back();
}

Result<void> GraphMove::queue(const headrace_indices_v1& change, cuda::Address local, cuda::Address remote) {
  const cuda::DriverTable& driver = mover_->kernels->device().driver();
  const ContextGuard guard(mover_->kernels->device());
  const auto stream = static_cast<cuda::Stream>(change.stream);
  const PreparedMove::Changeable& table = *move_.changeable();
  const std::uint64_t bytes = change.count * sizeof(std::uint32_t);
  for (const auto& [target, source] : {std::pair{table.local, local}, std::pair{table.remote, remote}})
    if (source != 0 && bytes != 0)
      HEADRACE_CUDA_TRY(driver, driver.memcpy_async(target, source, bytes, stream), "change {} page indices",
                        change.count);
  HEADRACE_CUDA_TRY(driver,
                    driver.memset_d32_async(table.count, static_cast<std::uint32_t>(change.count), 1, stream),
                    "change the number of pages to {}", change.count);
  return {};
}

std::optional<GraphMove::Refused> GraphMove::take_refused() noexcept {
  const std::uint64_t told = move_.take_refused();
  if (told == 0) return std::nullopt;
  return Refused{(told - 1) / 2, (told - 1) % 2 != 0};
}

}  // namespace headrace::gpu
