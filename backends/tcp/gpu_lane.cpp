// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/gpu_lane.hpp"

#include "base/clock.hpp"
#include "memory/faultless_copy.hpp"
#include "memory/peer_memory_access.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace headrace::tcp {
namespace {

// A warp moves an entry of a kernel's list: long stretches are cut so that many warps have one.
constexpr std::uint64_t entry_bytes = 8 * 1024;
// Up to here a part's list travels inside the launch, and one block moves it: the least time for a page.
constexpr std::uint64_t few_bytes = 64 * 1024;
// Stretches that are all so long go by copy engine, which takes no multiprocessor and reaches a little more;
// so does one short one by itself: a copy and its word take less time than a launch.
constexpr std::uint64_t copy_engine_bytes = 128 * 1024;
// What a kernel may occupy of the GPU: several channels' run at once, and 256 KiB on their way fill a PCIe
// link.
constexpr std::uint32_t multiprocessors = 4;
constexpr std::uint64_t list_bytes_an_entry = 2 * sizeof(std::uint64_t) + sizeof(std::uint32_t);
constexpr std::size_t track_table_bytes = 64;
// A GPU whose context has died writes no word: the driver is asked now and then. Asking costs a microsecond,
// looking nothing.
constexpr std::uint32_t looks_before_asking = 1024;
// How long a thread looks for the end of a small part before it leaves it to the I/O thread's looks: a launch
// and its word take some 6 us, handing over to another thread takes longer.
constexpr std::uint64_t small_part_ns = 20'000;
constexpr auto wait_step = std::chrono::microseconds(20);

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + ByteRing::alignment - 1) / ByteRing::alignment * ByteRing::alignment;
}
std::uint64_t entries_of(std::uint64_t bytes, std::uint64_t longest) {
  return (bytes + longest - 1) / longest;
}
cuda::Address address_of(const void* at) { return reinterpret_cast<cuda::Address>(at); }

struct Shape {
  std::uint64_t stretches = 0;  // of GPUs' memory
  std::uint64_t bytes = 0;
  std::uint64_t shortest = UINT64_MAX;
};

Shape shape_of(std::span<const Stretch> stretches) {
  Shape shape;
  for (const Stretch& stretch : stretches) {
    if (!stretch.region->of_gpu()) continue;
    ++shape.stretches;
    shape.bytes += stretch.bytes;
    shape.shortest = std::min(shape.shortest, stretch.bytes);
  }
  return shape;
}

}  // namespace

const Region* find_gpu_region(Regions::View& view, const RangeList& ranges, Access access) {
  const Region* of_gpu = nullptr;
  for (std::uint32_t i = 0; i < ranges.size(); ++i) {
    const auto found = view.find(ranges[i], access);
    if (found.region == nullptr) return nullptr;
    if (of_gpu == nullptr && found.region->of_gpu()) of_gpu = found.region;
  }
  return of_gpu;
}

// ------------------------------------------------------------------ memory

Result<void> GpuLane::open(const gpu::WorkingGpu& gpu) {
  const std::uint64_t lists =
      aligned((max_ranges + entries_of(part_bytes_, entry_bytes)) * list_bytes_an_entry);
  const std::uint64_t capacity = ring_bytes_ / part_bytes_ * (lists + aligned(part_bytes_));
  HEADRACE_TRY(memory, gpu::PinnedMemory::allocate(gpu.device, capacity));
  memory_ = std::move(memory);
  ring_.emplace(capacity);
  return {};
}

/// Opened at the first part that touches the GPU.
Result<std::size_t> GpuLane::track_of(const Region& region) {
  const std::shared_ptr<const gpu::WorkingGpu>& gpu = region.gpu->gpu();
  for (std::size_t i = 0; i < tracks_.size(); ++i)
    if (tracks_[i]->gpu == gpu) return i;
  HEADRACE_TRY(stream, gpu::Stream::make(gpu->device, gpu::Priority::high));
  HEADRACE_TRY(table, gpu->mover->tables->take(track_table_bytes));
  std::memset(table.host(), 0, track_table_bytes);
  const cuda::DriverTable& driver = gpu->device->driver();
  const gpu::ContextGuard current(*gpu->device);
  HEADRACE_CUDA_TRY(driver, driver.memset_d8_async(table.device(), 0, track_table_bytes, stream.handle()),
                    "clear the state of kernels on GPU {}", gpu->device->ordinal());
  tracks_.push_back(std::make_unique<Track>(Track{gpu, std::move(stream), std::move(table)}));
  return tracks_.size() - 1;
}

/// One move for each GPU that the stretches are of.
Result<void> GpuLane::name_tracks(std::span<const Stretch> stretches, std::vector<GpuMove>& moves) {
  const Region* last = nullptr;
  for (const Stretch& stretch : stretches) {
    if (stretch.region == last || !stretch.region->of_gpu()) continue;
    last = stretch.region;
    if (!last->gpu->begins_as_before())
      return make_error(Code::not_found, "region {}: its memory was freed while it was registered", last->id);
    HEADRACE_TRY(track, track_of(*last));
    if (std::ranges::find(moves, track, &GpuMove::track) == moves.end()) moves.push_back({track});
  }
  return {};
}

Result<GpuPart*> GpuLane::take(std::span<const Stretch> stretches, const gpu::WorkingGpu& pins) {
  const Shape shape = shape_of(stretches);
  GpuPart part;
  HEADRACE_TRY_VOID(name_tracks(stretches, part.moves));
  if (!ring_) HEADRACE_TRY_VOID(open(pins));
  part.by_copy_engine =
      shape.shortest >= copy_engine_bytes || (shape.stretches == 1 && shape.bytes <= few_bytes);
  const bool few = shape.stretches <= HEADRACE_MOVE_FEW_MOST && shape.bytes <= few_bytes;
  const std::uint64_t longest = few || part.by_copy_engine ? part_bytes_ : entry_bytes;
  std::uint64_t entries = 0, bytes = 0;
  for (const Stretch& stretch : stretches) {
    if (stretch.region->of_gpu()) entries += entries_of(stretch.bytes, longest);
    bytes += stretch.bytes;
  }
  const std::uint64_t lists = aligned(entries * list_bytes_an_entry);
  const auto begin = ring_->take(lists + bytes);
  if (!begin) return nullptr;
  std::byte* const at = memory_.bytes().data() + *begin;
  part.sources = reinterpret_cast<std::uint64_t*>(at);
  part.targets = part.sources + entries;
  part.lengths = reinterpret_cast<std::uint32_t*>(part.targets + entries);
  part.bytes = {at + lists, bytes};
  write_lists(part, stretches, longest);
  parts_.push_back(std::move(part));
  return &parts_.back();
}

void GpuLane::write_lists(GpuPart& part, std::span<const Stretch> stretches, std::uint64_t longest) {
  std::uint64_t entry = 0;
  for (GpuMove& move : part.moves) {
    move.first = entry;
    std::uint64_t at = 0;
    for (const Stretch& stretch : stretches) {
      std::byte* const here = part.bytes.data() + at;
      at += stretch.bytes;
      if (!stretch.region->of_gpu() || stretch.region->gpu->gpu() != tracks_[move.track]->gpu) continue;
      for (std::uint64_t done = 0; done < stretch.bytes; done += longest, ++entry) {
        const cuda::Address ring = mapped(here + done), memory = address_of(stretch.at()) + done;
        part.sources[entry] = way_ == Way::gather ? memory : ring;
        part.targets[entry] = way_ == Way::gather ? ring : memory;
        part.lengths[entry] = static_cast<std::uint32_t>(std::min(longest, stretch.bytes - done));
      }
    }
    move.count = entry - move.first;
  }
  std::uint64_t at = 0;
  for (const Stretch& stretch : stretches) {
    if (!stretch.region->of_gpu()) part.from_host.emplace_back(stretch, part.bytes.data() + at);
    at += stretch.bytes;
  }
}

/// Where GPUs see a place in the ring.
cuda::Address GpuLane::mapped(const void* at) const {
  return memory_.address() +
         static_cast<cuda::Address>(static_cast<const std::byte*>(at) - memory_.bytes().data());
}

void GpuLane::release_oldest() {
  parts_.pop_front();
  ring_->release_oldest();
}

void GpuLane::drop_newest() {
  parts_.pop_back();
  ring_->release_newest();
}

// ------------------------------------------------------------------ work

void GpuLane::launch(GpuPart& part) {
  part.state = GpuPart::State::running;
  if (copy_from_host(part)) return queue(part);
  part.state = GpuPart::State::failed;
}

/// In the tracks' streams.
void GpuLane::queue(GpuPart& part) {
  bool begun = true;
  for (GpuMove& move : part.moves) {
    Track& track = *tracks_[move.track];
    const gpu::Device& device = *track.gpu->device;
    const gpu::ContextGuard current(device);
    ++track.launches;
    move.value = track.launches;
    const cuda::Outcome outcome = begin(track, part, move);
    if (outcome == cuda::Outcome::success) continue;
    --track.launches;
    move.value = 0;
    begun = false;
    fault_ = cuda::driver_error(device.driver(), outcome, "move {} bytes by GPU {}", part.bytes.size(),
                                device.ordinal())
                 .message;
    break;
  }
  if (begun) return;
  // What another GPU has begun of it must not outlive it.
  for (const GpuMove& move : part.moves)
    if (move.value != 0) (void)tracks_[move.track]->stream.wait_idle();
  part.state = GpuPart::State::failed;
}

bool GpuLane::copy_from_host(const GpuPart& part) {
  const PeerMemoryAccess access;
  for (const auto& [stretch, here] : part.from_host) {
    if (copy_unless_it_faults(here, stretch.at(), stretch.bytes)) continue;
    fault_ = fmt::format(
        "{} bytes of region {} are not there: the memory was unmapped, or made unreadable, while it was "
        "registered",
        stretch.bytes, stretch.region->id);
    return false;
  }
  return true;
}

cuda::Outcome GpuLane::begin(Track& track, const GpuPart& part, const GpuMove& move) {
  if (part.by_copy_engine) return copy(track, part, move);
  const auto& kernels = track.gpu->mover->gather_scatter;
  const headrace_move_done_v1 done{track.table.mapped(), move.value, track.table.device()};
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < move.count; ++i) bytes += part.lengths[move.first + i];
  if (move.count <= HEADRACE_MOVE_FEW_MOST && bytes <= few_bytes) {
    headrace_move_few_v1 few{};
    few.struct_size = sizeof few;
    few.count = move.count;
    few.done = done;
    for (std::uint64_t i = 0; i < move.count; ++i) {
      few.sources[i] = part.sources[move.first + i];
      few.targets[i] = part.targets[move.first + i];
      few.lengths[i] = part.lengths[move.first + i];
    }
    const PeerMemoryAccess access;  // of a GPU that is fake: it does its work inside the call
    return kernels.launch<&headrace_gather_scatter_v1::move_few>(few, track.stream.handle());
  }
  headrace_move_runs_v1 runs{};
  runs.struct_size = sizeof runs;
  runs.sources = mapped(part.sources + move.first);
  runs.targets = mapped(part.targets + move.first);
  runs.lengths = mapped(part.lengths + move.first);
  runs.count = move.count;
  runs.done = done;
  runs.most_multiprocessors = multiprocessors;
  const PeerMemoryAccess access;  // as above
  return kernels.launch<&headrace_gather_scatter_v1::move_runs>(runs, track.stream.handle());
}

cuda::Outcome GpuLane::copy(Track& track, const GpuPart& part, const GpuMove& move) {
  const cuda::DriverTable& driver = track.gpu->device->driver();
  const cuda::Stream stream = track.stream.handle();
  cuda::Outcome outcome = cuda::Outcome::success;
  for (std::uint64_t i = move.first; i < move.first + move.count && outcome == cuda::Outcome::success; ++i) {
    const cuda::Address target = part.targets[i], source = part.sources[i];
    const std::uint32_t bytes = part.lengths[i];
    const PeerMemoryAccess access;  // as in `begin`
    outcome = driver.memcpy_async(target, source, bytes, stream);
  }
  if (outcome == cuda::Outcome::success)
    outcome =
        driver.stream_write_value_64(stream, track.table.mapped(), move.value, cuda::write_value_default);
  if (outcome != cuda::Outcome::success)
    (void)driver.stream_synchronize(stream);  // no copy may outlive the part
  return outcome;
}

/// Pairs with the release of the kernels' end and of the stream's write: the bytes are there.
bool GpuLane::done(const GpuMove& move) const {
  return __atomic_load_n(tracks_[move.track]->word(), __ATOMIC_ACQUIRE) >= move.value;
}

bool GpuLane::ended(GpuPart& part) {
  if (part.state != GpuPart::State::running) return part.state != GpuPart::State::taken;
  bool failed = false;
  for (const GpuMove& move : part.moves) {
    if (done(move)) continue;
    Track& track = *tracks_[move.track];
    if (!track.failed && ++track.looks % looks_before_asking == 0) ask(track);
    if (!track.failed) return false;
    failed = !done(move) || failed;
  }
  part.state = failed ? GpuPart::State::failed : GpuPart::State::done;
  return true;
}

bool GpuLane::ended_soon(GpuPart& part) {
  const std::uint64_t until = headrace::now_ns() + small_part_ns;
  while (!ended(part))
    if (headrace::now_ns() >= until) return false;
  return true;
}

void GpuLane::ask(Track& track) {
  const gpu::ContextGuard current(*track.gpu->device);
  const auto idle = track.stream.poll_idle();
  if (idle) return;
  track.failed = true;
  fault_ = idle.error().message;
}

void GpuLane::wait() {
  for (GpuPart& part : parts_) {
    while (part.state == GpuPart::State::running && !ended(part)) {
      for (const GpuMove& move : part.moves) ask(*tracks_[move.track]);
      if (!ended(part)) std::this_thread::sleep_for(wait_step);
    }
  }
}

}  // namespace headrace::tcp
