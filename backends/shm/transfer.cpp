// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/transfer.hpp"

#include "backends/shm/link.hpp"
#include "backends/shm/regions.hpp"
#include "host_link/attach.hpp"

#include <array>

namespace headrace::shm {
namespace {

using host_link::AttachResult;
using host_link::Direction;

constexpr std::size_t small_batch =
    4;  // what few pages need: setting up a large batch costs more than they do
constexpr std::size_t large_batch = 512;                   // pages a system call; more gain nothing
constexpr std::uint64_t prefetch_below_bytes = 32 * 1024;  // longer runs hide the first misses by themselves

std::byte* local_address(const PageRun& run) {
  return Handles::region(run.local_region).base + run.local_offset;
}
const RemoteRegion& remote_of(const PageRun& run) { return Handles::remote(run.remote_region); }

/// The page in which byte `byte` of a run lies.
std::uint64_t page_of(const headrace_prepare_v1& request, const PageRun& run, std::uint64_t byte) {
  return position_at_byte(request, byte, {run.first_page, run.first_page_skip}).page;
}

Outcome read_only(const PageRun& run) {
  return {
      {Code::invalid_argument, 0, run.first_page},
      fmt::format("page {}: region {} is registered read-only", run.first_page, remote_of(run).region_id())};
}

Outcome stale(const Transfer& transfer, const PageRun& run) {
  const RemoteRegion& region = remote_of(run);
  // A peer that leaves closes its links first and then deregisters: say what came first.
  if (transfer.link != nullptr && transfer.link->has_hung_up()) return transfer.link->why_lost();
  const char* const what = region.state() == RegionState::gone ? "was deregistered" : "was never registered";
  return {{Code::not_found, 0, run.first_page},
          fmt::format("region {} of peer {} {}: page {} cannot be moved; fetch the metadata again",
                      region.region_id(), transfer.link != nullptr ? transfer.link->peer_name() : "", what,
                      run.first_page)};
}

template <std::size_t N>
class Batch {
 public:
  explicit Batch(const Transfer& transfer) : transfer_(transfer) {}

  Outcome move(PagePosition from, PagePosition to) {
    PageCursor cursor(*transfer_.request, from, to);
    Outcome outcome;
    while ((count_ = cursor.fill(runs_)) > 0) {
      if (outcome = check_interrupted(transfer_); !outcome.status.ok()) return outcome;
      if (outcome = check_live(transfer_, runs()); !outcome.status.ok()) return outcome;
      copy_mapped();
      if (attached_ > 0) {
        if (outcome = copy_attached(); !outcome.status.ok()) return outcome;
      }
      host_link::copies_before_later_loads();
      if (outcome = check_live(transfer_, runs()); !outcome.status.ok()) return outcome;
    }
    return outcome;
  }

 private:
  [[nodiscard]] std::span<const PageRun> runs() const { return {runs_.data(), count_}; }

  void copy_mapped() {
    const bool read = transfer_.request->op == HEADRACE_READ;
    attached_ = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const PageRun& run = runs_[i];
      std::byte* const remote = remote_of(run).mapped();
      std::byte* const local = local_address(run);
      if (remote == nullptr) {
        collect(i, local);
        continue;
      }
      if (run.bytes < prefetch_below_bytes && i + 1 < count_) prefetch(runs_[i + 1], read);
      std::byte* const there = remote + run.remote_offset;
      if (read) {
        copy_bytes(local, there, run.bytes, transfer_.mode);
      } else {
        copy_bytes(there, local, run.bytes, transfer_.mode);
      }
    }
    if (transfer_.mode == CopyMode::streaming) finish_streaming();
  }

  void prefetch(const PageRun& next, bool read) const {
    const std::byte* const remote = remote_of(next).mapped();
    if (remote == nullptr) return;
    const std::byte* const local = local_address(next);
    const std::byte* const there = remote + next.remote_offset;
    prefetch_source(read ? there : local);
    if (transfer_.mode == CopyMode::cached) prefetch_target(read ? local : there);
  }

  void collect(std::size_t run_index, std::byte* local) {
    const PageRun& run = runs_[run_index];
    const auto there = static_cast<std::uintptr_t>(remote_of(run).owner_address() + run.remote_offset);
    here_[attached_] = {local, run.bytes};
    there_[attached_] = {reinterpret_cast<void*>(there), run.bytes};
    run_of_[attached_++] = static_cast<std::uint16_t>(run_index);
  }

  [[nodiscard]] Outcome copy_attached() const {
    const host_link::PeerProcess& process = transfer_.link->process();
    if (!process.still_there()) return transfer_.link->why_lost();
    std::size_t total = 0;
    for (std::size_t i = 0; i < attached_; ++i) total += here_[i].iov_len;
    const Direction direction =
        transfer_.request->op == HEADRACE_READ ? Direction::from_peer : Direction::to_peer;
    const AttachResult result =
        attach_copy(process.pid(), direction, {here_.data(), attached_}, {there_.data(), attached_}, total);
    if (result.os_error == 0) return {};
    return attach_failed(result);
  }

  [[nodiscard]] Outcome attach_failed(const AttachResult& result) const {
    Link& link = *transfer_.link;
    if (result.os_error == ESRCH || link.has_hung_up() || link.owner_closed() || link.process().dying())
      return link.why_lost();
    std::size_t at = 0;
    std::size_t into = result.bytes;
    while (at + 1 < attached_ && into >= here_[at].iov_len) into -= here_[at++].iov_len;
    const PageRun& run = runs_[run_of_[at]];
    if (!remote_of(run).live()) return stale(transfer_, run);
    const std::uint64_t page = page_of(*transfer_.request, run, into);
    const Code code = result.os_error == ENOMEM ? Code::exhausted : Code::backend_failed;
    const char* const advice =
        result.os_error == EFAULT
            ? "; has the owner unmapped memory that it registered, or have we? Deregister before unmapping"
            : "";
    return {{code, result.os_error, page},
            fmt::format("page {}: cross-memory attach to region {} of peer {} (process {}) at {:#x}: {}{}",
                        page, remote_of(run).region_id(), link.peer_name(), link.process().pid(),
                        reinterpret_cast<std::uintptr_t>(there_[at].iov_base) + into,
                        os_error_text(result.os_error), advice)};
  }

  const Transfer& transfer_;
  std::array<PageRun, N> runs_;
  std::size_t count_ = 0;
  std::size_t attached_ = 0;
  std::array<iovec, N> here_;
  std::array<iovec, N> there_;
  std::array<std::uint16_t, N> run_of_;
};

}  // namespace

Outcome check_interrupted(const Transfer& transfer) {
  if (transfer.stop != nullptr && transfer.stop->load(std::memory_order_relaxed))
    return {{Code::canceled}, {}};
  if (transfer.link != nullptr && !transfer.link->usable()) return transfer.link->why_lost();
  return {};
}

Outcome check_live(const Transfer& transfer, std::span<const PageRun> runs) {
  const void* last = nullptr;
  for (const PageRun& run : runs) {
    if (run.remote_region == last) continue;
    last = run.remote_region;
    const RemoteRegion& region = remote_of(run);
    if (!region.live()) return stale(transfer, run);
    if (transfer.request->op == HEADRACE_WRITE && !region.writable()) return read_only(run);
  }
  // The owner marks itself closed before it gives its memory up.
  if (transfer.link != nullptr && transfer.link->owner_closed()) return transfer.link->why_lost();
  return {};
}

Outcome move_part(const Transfer& transfer, PagePosition from, PagePosition to) {
  static_assert(large_batch <= host_link::attach_vector_limit);
  if (to.page - from.page < small_batch && transfer.request->grid == nullptr)
    return Batch<small_batch>(transfer).move(from, to);
  return Batch<large_batch>(transfer).move(from, to);
}

const std::byte* first_target(const headrace_prepare_v1& request, PagePosition from, PagePosition to) {
  PageCursor cursor(request, from, to);
  PageRun run;
  if (!cursor.next(run)) return nullptr;
  if (request.op == HEADRACE_READ) return local_address(run);
  const std::byte* const mapped = remote_of(run).mapped();
  return mapped == nullptr ? nullptr : mapped + run.remote_offset;
}

}  // namespace headrace::shm
