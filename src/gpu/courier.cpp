// SPDX-License-Identifier: Apache-2.0
#include "gpu/courier.hpp"

#include <algorithm>
#include <utility>

namespace headrace::gpu {
namespace {

constexpr std::size_t ring_at = 4096;  // after the words of the courier, on pages that only the host writes
constexpr std::size_t memory_bytes = ring_at + HEADRACE_COURIER_SLOTS * sizeof(headrace_courier_job_v1);

static_assert(1 + 3 * HEADRACE_COURIER_RUNS_MOST <= HEADRACE_COURIER_WORDS);
static_assert(HEADRACE_COURIER_HEAD_WORDS == 1 + 3, "a job of one run consists of its first words");

}  // namespace

Result<std::shared_ptr<Courier>> Courier::make(const std::shared_ptr<const Kernels>& kernels,
                                               const CourierSettings& settings) {
  HEADRACE_TRY(kernel, KernelFamily<headrace_courier_v1>::of(kernels, HEADRACE_COURIER_FAMILY,
                                                             HEADRACE_COURIER_FAMILY_VERSION));
  const auto& device = kernels->shared_device();
  // High priority: when it is launched, a job waits already.
  HEADRACE_TRY(stream, Stream::make(device, Priority::high));
  HEADRACE_TRY(memory, PinnedMemory::allocate(device, memory_bytes));
  return std::shared_ptr<Courier>(
      new Courier(std::move(kernel), settings, std::move(stream), std::move(memory)));
}

Courier::~Courier() {
  if (!has_left() && posted_ - finished() < HEADRACE_COURIER_SLOTS) write_job(posted_ + 1, {});
  (void)stream_.wait_idle();  // after a failure of the context nothing runs any more
}

bool Courier::takes(std::span<const Run> runs) const noexcept {
  if (runs.empty() || runs.size() > most_runs) return false;
  std::uint64_t bytes = 0;
  for (const Run& run : runs) {
    if (run.bytes > settings_.most_bytes) return false;
    bytes += run.bytes;
    const std::uint64_t highest =
        std::max(run.source, run.source + run.bytes) | std::max(run.target, run.target + run.bytes);
    if (highest >> HEADRACE_COURIER_NUMBER_SHIFT != 0) return false;
  }
  return bytes <= settings_.most_bytes;
}

std::optional<Courier::Ticket> Courier::post(std::span<const Run> runs) {
  const std::scoped_lock lock(mutex_);
  if (is_broken_.load(std::memory_order_relaxed) || posted_ - finished() >= HEADRACE_COURIER_SLOTS) return {};
  write_job(posted_ + 1, runs);
  ++posted_;
  if (!has_left() || launch()) return posted_;
  --posted_;  // the courier has not seen the job
  return {};
}

Courier::State Courier::look(Ticket ticket) {
  if (finished() >= ticket) return State::done;
  return has_left() ? launch_for(ticket) : State::pending;
}

/// The courier has left, possibly before this job.
Courier::State Courier::launch_for(Ticket ticket) {
  const std::scoped_lock lock(mutex_);
  // Read after `left`, which the courier writes last: so this is all that it did.
  if (finished() >= ticket) return State::done;
  if (!has_left()) return State::pending;  // another thread has launched it already
  if (is_broken_.load(std::memory_order_relaxed)) return State::dropped;
  return launch() ? State::pending : State::dropped;
}

std::optional<Error> Courier::take_failure() {
  if (!is_broken_.load(std::memory_order_relaxed)) return {};
  const std::scoped_lock lock(mutex_);
  return std::exchange(failure_, {});
}

headrace_courier_told_v1& Courier::told() const noexcept {
  return *reinterpret_cast<headrace_courier_told_v1*>(memory_.bytes().data());
}

std::uint64_t Courier::finished() const noexcept {
  return __atomic_load_n(&told().finished, __ATOMIC_ACQUIRE);
}

/// Whether no launch reads the ring: the last one has left, or there was none.
bool Courier::has_left() const noexcept {
  return __atomic_load_n(&told().left, __ATOMIC_ACQUIRE) == launches_.load(std::memory_order_relaxed);
}

/// Writes the first words every time, so that words of an older job with the same number bits cannot be taken
/// for this job's. Writes words of further runs only if there are any: the GPU held every cache line last,
/// so each line costs. Word 0 is last: a reader that sees it must see the words written before.
void Courier::write_job(std::uint64_t number, std::span<const Run> runs) noexcept {
  auto* const ring = reinterpret_cast<headrace_courier_job_v1*>(memory_.bytes().data() + ring_at);
  std::uint64_t* const words = ring[number % HEADRACE_COURIER_SLOTS].words;
  const auto write = [&](std::size_t word, std::uint64_t value, int order) {
    __atomic_store_n(&words[word], HEADRACE_COURIER_WORD(number, value), order);
  };
  for (std::size_t i = std::max(runs.size(), std::size_t{1}); i-- > 0;) {
    const Run run = i < runs.size() ? runs[i] : Run{};
    write(1 + 3 * i, run.source, __ATOMIC_RELAXED);
    write(2 + 3 * i, run.target, __ATOMIC_RELAXED);
    write(3 + 3 * i, run.bytes, __ATOMIC_RELAXED);
  }
  write(0, runs.size(), __ATOMIC_RELEASE);
}

/// Requires mutex_, and that no launch reads the ring.
bool Courier::launch() {
  const Device& device = stream_.device();
  const ContextGuard guard(device);
  headrace_courier_launch_v1 args{};
  args.struct_size = sizeof args;
  args.told = memory_.address();
  args.jobs = memory_.address() + ring_at;
  args.first = finished() + 1;
  args.launch = launches_.load(std::memory_order_relaxed) + 1;
  args.idle_ns = static_cast<std::uint64_t>(settings_.idle.count());
  args.stay_ns = static_cast<std::uint64_t>(settings_.stay.count());
  const cuda::Outcome outcome = kernel_.launch<&headrace_courier_v1::run>(args, stream_.handle());
  if (outcome != cuda::Outcome::success) {
    failure_ = cuda::driver_error(device.driver(), outcome, "launch the courier on GPU {}", device.ordinal());
    is_broken_.store(true, std::memory_order_relaxed);
    return false;
  }
  launches_.store(args.launch, std::memory_order_relaxed);
  return true;
}

}  // namespace headrace::gpu
