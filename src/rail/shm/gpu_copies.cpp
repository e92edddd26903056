// SPDX-License-Identifier: Apache-2.0
// Copies of a stream of this host in which memory of GPUs takes part: what was shown over the socket is
// opened, and a stream of a GPU copies.
#include "gpu/event.hpp"
#include "gpu/gpus.hpp"
#include "rail/shm/stream.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace headrace::rail::shm {
namespace {

using gpu::WorkingGpu;
using stream::Source;

/// A piece of a copy, with addresses of this process.
struct Step {
  std::byte* to = nullptr;
  std::uint64_t from = 0;
  std::uint64_t bytes = 0;
};

constexpr std::uint64_t gpu_step_bytes = 256ULL << 20;
constexpr std::uint64_t bounce_bytes = 1 << 20;  // of host memory of the peer, on its way to a GPU
constexpr std::size_t most_host_pieces = 64;
constexpr std::uint32_t looks_before_asking = 1024;  // a GPU that has failed stores no word

/// What a copy needs until it is done.
class Kept {
 public:
  /// Pages of one memory come one after the other.
  void keep(std::shared_ptr<const void> mapping) {
    if (mapping != nullptr && (kept_.empty() || kept_.back() != mapping)) kept_.push_back(std::move(mapping));
  }
  /// Of host memory of the peer.
  std::byte* bounce(std::uint64_t bytes) {
    bounces_.push_back(std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes)));
    return bounces_.back().get();
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> bounces_;
  std::vector<std::shared_ptr<const void>> kept_;
};

/// Copies that the driver makes one by one, for host memory that no kernel reaches, and the mark behind them.
class QueuedCopies final : public stream::RunningCopy {
 public:
  QueuedCopies(std::shared_ptr<const WorkingGpu> gpu, gpu::Event event, Kept kept)
      : gpu_(std::move(gpu)), event_(std::move(event)), kept_(std::move(kept)) {}
  ~QueuedCopies() override {
    if (recorded_ && event_.wait_reached()) return;
    static_cast<void>(gpu_->stream.wait_idle());  // a GPU that has failed writes nothing any more
  }
  Result<bool> ended() override { return event_.poll_reached(); }

  Result<void> queue(const Step& copy) {
    const cuda::DriverTable& driver = gpu_->device->driver();
    const gpu::ContextGuard guard(*gpu_->device);
    HEADRACE_CUDA_TRY(driver,
                      driver.memcpy_async(reinterpret_cast<cuda::Address>(copy.to), copy.from,
                                          static_cast<std::size_t>(copy.bytes), gpu_->stream.handle()),
                      "copy {} bytes from a peer on GPU {}", copy.bytes, gpu_->device->ordinal());
    return {};
  }
  Result<void> mark() {
    HEADRACE_TRY_VOID(event_.record(gpu_->stream.handle()));
    recorded_ = true;
    return {};
  }

 private:
  std::shared_ptr<const WorkingGpu> gpu_;
  gpu::Event event_;
  bool recorded_ = false;
  Kept kept_;
};

/// A copy between memories of GPUs: one launch for all its pieces, or a copy engine for long ones.
class LaunchedCopy final : public stream::RunningCopy {
 public:
  static Result<std::unique_ptr<LaunchedCopy>> begin(std::shared_ptr<const WorkingGpu> gpu,
                                                     std::span<const Step> steps, Kept kept) {
    const std::vector<std::uint64_t> sources = column(steps, &Step::from),
                                     lengths = column(steps, &Step::bytes);
    std::vector<std::uint64_t> targets;
    for (const Step& step : steps) targets.push_back(reinterpret_cast<cuda::Address>(step.to));
    void* const anywhere = nullptr;  // the offsets are addresses
    const headrace_side_v1 local = side(targets, lengths, &anywhere),
                           remote = side(sources, lengths, &anywhere);
    headrace_prepare_v1 args{};
    args.struct_size = sizeof args;
    args.op = HEADRACE_READ;
    args.count = steps.size();
    args.bytes = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
    args.local = &local;
    args.remote = &remote;
    const auto begin_of = [](void*) { return cuda::Address{0}; };
    HEADRACE_TRY(move, gpu::PreparedMove::prepare(gpu->mover, args, begin_of, begin_of));
    auto begun = std::make_unique<LaunchedCopy>(std::move(gpu), std::move(move), std::move(kept));
    HEADRACE_TRY_VOID(begun->move_.post(begun->gpu_->stream.handle()));
    return begun;
  }
  LaunchedCopy(std::shared_ptr<const WorkingGpu> gpu, gpu::PreparedMove move, Kept kept)
      : gpu_(std::move(gpu)), move_(std::move(move)), kept_(std::move(kept)) {}
  ~LaunchedCopy() override {
    if (!move_.poll_done()) static_cast<void>(gpu_->stream.wait_idle());
  }
  Result<bool> ended() override {
    if (move_.poll_done()) return true;
    if (++looks_ % looks_before_asking != 0) return false;
    HEADRACE_TRY(idle, gpu_->stream.poll_idle());
    return idle && move_.poll_done();
  }

 private:
  static headrace_side_v1 side(const std::vector<std::uint64_t>& addresses,
                               const std::vector<std::uint64_t>& lengths, void* const* regions) {
    headrace_side_v1 made{};
    made.struct_size = sizeof made;
    made.regions = regions;
    made.region_count = 1;
    made.columns.offsets = addresses.data();
    made.columns.lengths = lengths.data();
    return made;
  }
  static std::vector<std::uint64_t> column(std::span<const Step> steps, std::uint64_t Step::*field) {
    std::vector<std::uint64_t> values;
    for (const Step& step : steps) values.push_back(step.*field);
    return values;
  }

  std::shared_ptr<const WorkingGpu> gpu_;
  gpu::PreparedMove move_;
  Kept kept_;
  std::uint32_t looks_ = 0;
};

/// One place and one source of equal length.
struct Pair {
  std::byte* to = nullptr;
  Source from;
};

/// What one copy has. `launched`: all of it is memory of GPUs.
std::vector<Pair> pairs_of(std::span<const iovec> to, std::span<const Source> from, bool launched) {
  std::vector<Pair> pairs;
  std::uint64_t left = launched ? gpu_step_bytes : bounce_bytes;
  const std::size_t most = launched ? to.size() + from.size() : most_host_pieces;
  std::uint64_t done_to = 0, done_from = 0;
  for (std::size_t i = 0, j = 0; i < to.size() && j < from.size() && left > 0 && pairs.size() < most;) {
    const std::uint64_t bytes = std::min({to[i].iov_len - done_to, from[j].bytes - done_from, left});
    pairs.push_back({static_cast<std::byte*>(to[i].iov_base) + done_to,
                     {from[j].address + done_from, bytes, from[j].gpu}});
    left -= bytes;
    done_to += bytes;
    done_from += bytes;
    if (done_to == to[i].iov_len) ++i, done_to = 0;
    if (done_from == from[j].bytes) ++j, done_from = 0;
  }
  return pairs;
}

}  // namespace

// ------------------------------------------------------------------ what is shown

Result<void> ShmStream::send_packet(const cuda_ipc::ShowPacket& packet, std::span<const int> descriptors) {
  const std::string bytes = encode(packet);
  return socket_.send(std::as_bytes(std::span(bytes)), descriptors);
}

Result<void> ShmStream::show(const stream::RegisteredMemory& memory) {
  if (shown_.contains(memory.id)) return {};
  HEADRACE_TRY(gpu, ways_.gpus->open(*memory.device));
  const auto address = reinterpret_cast<cuda::Address>(memory.base);
  HEADRACE_TRY(shared, gpu::share_memory(*gpu->device, address, static_cast<std::size_t>(memory.length)));
  if (shared.pieces.size() > cuda_ipc::max_shown_pieces)
    return make_error(Code::not_supported, "{} bytes of GPU memory are in {} pieces, at most {} can be shown",
                      memory.length, shared.pieces.size(), cuda_ipc::max_shown_pieces);
  cuda_ipc::ShowPacket packet{.memory = memory.id,
                              .gpu = gpu::mark_of(gpu->device->info()),
                              .address = address,
                              .bytes = memory.length,
                              .offset = shared.offset,
                              .pieces = static_cast<std::uint32_t>(shared.pieces.size()),
                              .handle = shared.handle};
  std::size_t at = 0;
  do {
    std::vector<int> descriptors;
    packet.piece_bytes.clear();
    for (; at < shared.pieces.size() && descriptors.size() < UnixSocket::max_descriptors; ++at) {
      descriptors.push_back(shared.pieces[at].descriptor.get());
      packet.piece_bytes.push_back(shared.pieces[at].bytes);
    }
    HEADRACE_TRY_VOID(send_packet(packet, descriptors));
  } while (at < shared.pieces.size());
  shown_.insert(memory.id);
  return {};
}

void ShmStream::hide(std::uint32_t memory) {
  if (shown_.erase(memory) == 0) return;
  hidden_.insert(memory);
  tell(memory, cuda_ipc::ShowPacket::Says::gone);
}

void ShmStream::tell_closed() {
  for (const std::uint32_t memory : closed_->take()) tell(memory, cuda_ipc::ShowPacket::Says::closed);
}

void ShmStream::tell(std::uint32_t memory, cuda_ipc::ShowPacket::Says says) {
  untold_.push_back({.memory = memory, .says = says});
  send_untold();
}

/// What a full socket does not take goes with a later poll. A peer that takes nothing of so much is lost.
void ShmStream::send_untold() {
  while (!untold_.empty() && send_packet(untold_.front(), {})) untold_.pop_front();
  if (untold_.size() > cuda_ipc::max_shown_memories) hung_up_ = true;
}

/// Takes one packet of the peer; false: there is none. One that cannot be ends it.
bool ShmStream::take_packet() {
  std::array<std::byte, cuda_ipc::max_show_bytes> bytes;
  auto came = socket_.receive(bytes);
  if (!came && came.code() == Code::would_block) return false;
  if (came && ways_.gpus != nullptr) {
    auto packet = cuda_ipc::read_show_packet({reinterpret_cast<const char*>(bytes.data()), came->bytes},
                                             came->descriptors.size());
    if (packet && packet->says == cuda_ipc::ShowPacket::Says::closed) {
      hidden_.erase(packet->memory);
      return true;
    }
    if (packet && shown_to_us_.take(std::move(*packet), std::move(came->descriptors))) return true;
  }
  hung_up_ = true;
  return false;
}

// ------------------------------------------------------------------ copies

/// The GPU that copies: ours, if one takes part, else one like the peer's.
Result<std::shared_ptr<const WorkingGpu>> ShmStream::gpu_for(std::span<const Source> from,
                                                             std::optional<int> gpu) {
  if (gpu) return ways_.gpus->open(*gpu);
  for (const Source& source : from)
    if (source.gpu) return ways_.gpus->like(shown_to_us_.gpu_of(source.address, source.bytes).value_or(0));
  return ways_.gpus->open(0);
}

Result<stream::Stream::Begun> ShmStream::begin_copy(std::span<const iovec> to, std::span<const Source> from,
                                                    std::optional<int> gpu) {
  if (ways_.gpus == nullptr) return make_error(Code::not_supported, "this NIC copies host memory alone");
  while (take_packet()) {  // what is named was shown before
  }
  HEADRACE_TRY(copier, gpu_for(from, gpu));
  const bool launched =
      gpu && std::all_of(from.begin(), from.end(), [](const Source& source) { return source.gpu; });
  Kept kept;
  std::vector<Step> steps;
  std::uint64_t bytes = 0;
  for (const Pair& pair : pairs_of(to, from, launched)) {
    Step step{pair.to, 0, pair.from.bytes};
    if (pair.from.gpu) {
      HEADRACE_TRY(reached, shown_to_us_.reach(copier->device, ways_.gpus->closer(), pair.from.address,
                                               pair.from.bytes));
      step.from = reached.address;
      kept.keep(std::move(reached.mapping));
    } else {
      HEADRACE_TRY(bounced, fetch_whole(kept.bounce(pair.from.bytes), pair.from));
      step.from = reinterpret_cast<std::uintptr_t>(bounced);
    }
    steps.push_back(step);
    bytes += step.bytes;
  }
  if (launched) {
    HEADRACE_TRY(begun, LaunchedCopy::begin(std::move(copier), steps, std::move(kept)));
    return Begun{std::move(begun), bytes};
  }
  HEADRACE_TRY(event, gpu::Event::make(copier->device));
  auto copies = std::make_unique<QueuedCopies>(copier, std::move(event), std::move(kept));
  for (const Step& step : steps) HEADRACE_TRY_VOID(copies->queue(step));
  HEADRACE_TRY_VOID(copies->mark());
  return Begun{std::move(copies), bytes};
}

/// All bytes of a place in the peer's host memory.
Result<std::byte*> ShmStream::fetch_whole(std::byte* to, const Source& from) {
  for (std::uint64_t done = 0; done < from.bytes;) {
    const auto left = static_cast<std::size_t>(from.bytes - done);
    const iovec here{to + done, left};
    const iovec there{reinterpret_cast<void*>(static_cast<std::uintptr_t>(from.address + done)), left};
    HEADRACE_TRY(n, fetch({&here, 1}, {&there, 1}));
    done += n;
  }
  return to;
}

}  // namespace headrace::rail::shm
