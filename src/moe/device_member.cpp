// SPDX-License-Identifier: Apache-2.0
#include "moe/device_member.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "moe/votes.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <thread>

namespace headrace::moe {
namespace {

std::uint64_t address_of_memory(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

/// A text in a head, which ends with a zero.
std::string text_at(const Window& head, std::uint64_t offset, std::size_t most) {
  std::string text(reinterpret_cast<const char*>(head.at(offset)), most);
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

template <class Memory>
Tensor tensor_in(Memory memory, TensorView view, const void* data) {
  view.data = data;
  return {view, new Memory(std::move(memory)), [](void* gone) { delete static_cast<Memory*>(gone); }};
}

Result<TensorView> view_of(DType dtype, const Shape& shape, headrace::Device device) {
  for (std::size_t i = 0; i < shape.rank(); ++i)
    if (shape[i] < 0)
      return make_error(Code::invalid_argument, "a tensor of shape {} is wanted: give no negative lengths",
                        shape_text(shape));
  TensorView view;
  view.dtype = dtype, view.shape = shape, view.device = device;
  return view;
}

bool sends(Halves halves) { return halves != Halves::receive; }
bool receives(Halves halves) { return halves != Halves::send; }

/// Whether calls of this rank are in an order in which operations can be.
Result<void> may_queue(const UnderWay& count, std::string_view operation, Halves halves,
                       std::uint64_t sent_with) {
  if (halves == Halves::both) return none_under_way(count, operation);
  return sends(halves) ? may_send(count, operation) : may_receive(count, sent_with, operation);
}

void count_queued(UnderWay& count, Halves halves, std::uint64_t& sent_with) {
  if (sends(halves)) sent_with = ++count.sent;
  if (!receives(halves)) return;
  ++count.received;
  sent_with = 0;
}

}  // namespace

// --- opening and joining

Result<std::unique_ptr<DeviceMember>> DeviceMember::open(Agent& agent, const MoEConfig& config,
                                                         gpu::LoadedKernels& gpus) {
  HEADRACE_TRY(kernels, gpus.on(config.device));
  HEADRACE_TRY(stream, gpu::Stream::make(kernels->shared_device()));
  std::unique_ptr<DeviceMember> made(new DeviceMember(agent, config, std::move(kernels), std::move(stream)));
  HEADRACE_TRY_VOID(made->offer_window());
  return made;
}

Result<void> DeviceMember::offer_window() {
  HEADRACE_TRY(memory, gpu::ShareableMemory::allocate(kernels_->shared_device(), layout_.bytes()));
  window_ = std::make_shared<gpu::ShareableMemory>(std::move(memory));
  MemoryRange range;
  range.address = reinterpret_cast<void*>(window_->address());
  range.length_bytes = window_->bytes();
  range.kind = MemoryKind::vram;
  range.device = config_.device;
  RegisterOptions options;
  options.name = region_name(config_);
  options.keep_alive = window_;
  auto region = agent_.register_memory(range, options);
  if (!region)
    return std::move(region).error().within(fmt::format(
        "offer the window on GPU {}, which needs an agent with backend cuda_ipc", config_.device));
  region_ = *std::move(region);
  mappings_.resize(layout_.ranks);
  return {};
}

DeviceMember::~DeviceMember() {
  if (rank_) {
    rank_->abort();
    static_cast<void>(kernels_->device().wait_idle());  // of a stream that is captured nothing runs
  }
  rank_.reset();
  mappings_.clear();
  // A rank that is stopped does not answer; then the window stays until the agent ends.
  if (region_) static_cast<void>(agent_.deregister(region_->id, std::chrono::seconds(1)));
}

Result<void> DeviceMember::map(int peer, const std::string& agent, RegionId region, Deadline deadline,
                               const std::function<bool()>& interrupted) {
  auto mapping = agent_.map(agent, region, std::chrono::nanoseconds(deadline.remaining_ns()), config_.device,
                            interrupted);
  if (!mapping) {
    Error error = std::move(mapping).error();
    if (error.code == Code::not_supported)
      error.message += ". A MoE on GPUs needs GPUs of one host that reach one another's memory";
    return std::move(error).within(fmt::format("its window for GPU {}", config_.device));
  }
  if (mapping->bytes().size() < layout_.bytes())
    return make_error(Code::corrupt, "its window on a GPU has {} bytes, expected {}", mapping->bytes().size(),
                      layout_.bytes());
  mappings_[static_cast<std::size_t>(peer)] = *std::move(mapping);
  return {};
}

Result<void> DeviceMember::join(std::span<std::byte* const> heads, Deadline deadline) {
  heads_.clear();
  for (std::byte* const head : heads) heads_.emplace_back(head, layout_);
  HEADRACE_TRY(rank, DeviceRank::open(config_, {kernels_, ranks_on_this_gpu(), config_.blocks}));
  std::vector<std::uint64_t> windows;
  for (const auto& mapping : mappings_)
    windows.push_back(mapping ? address_of_memory(mapping->bytes().data()) : window_->address());
  rank.join(windows);
  HEADRACE_TRY_VOID(wait_for_all(deadline));
  given_ = mask_of_all(layout_.ranks);
  const std::scoped_lock lock(abort_mutex_);
  rank_.emplace(std::move(rank));
  if (aborted_) rank_->abort();
  return {};
}

int DeviceMember::ranks_on_this_gpu() const {
  return static_cast<int>(std::ranges::count_if(heads_, [this](const Window& head) {
    return gpu_of_window(text_at(head, WindowLayout::config_at, WindowLayout::config_bytes)) == gpu();
  }));
}

Result<void> DeviceMember::wait_for_all(Deadline deadline) const {
  for (const Window& head : heads_) head.tell(layout_.words_at(self()) + offsetof(PeerWords, ready), 1);
  for (std::uint32_t peer = 0; peer < layout_.ranks; ++peer)
    HEADRACE_TRY_VOID(still_waits_for(peer, deadline));
  return {};
}

Result<void> DeviceMember::still_waits_for(std::uint32_t peer, Deadline deadline) const {
  constexpr auto pause = std::chrono::milliseconds(1);
  constexpr int looks_between = 100;  // of those whether the caller is interrupted
  const std::uint64_t word = layout_.words_at(peer) + offsetof(PeerWords, ready);
  for (int looks = 1; heads_[self()].load(word) == 0; ++looks) {
    if (const std::string reason = reason_of(peer); !reason.empty())
      return make_error(Code::invalid_argument, "rank {} could not join: {}", peer, reason);
    if (peer != self() && !mappings_[peer]->alive())
      return make_error(Code::peer_lost, "rank {} is gone, which had not joined yet", peer);
    if (aborted_ || (looks % looks_between == 0 && config_.interrupted && config_.interrupted()))
      return make_error(Code::canceled, "rank {} was interrupted by its caller", self());
    if (deadline.expired())
      return make_error(Code::timed_out,
                        "rank {} has not joined: on GPUs all ranks call join at the same time. Has it ended "
                        "with an error? Look at what it printed",
                        peer);
    std::this_thread::sleep_for(pause);
  }
  return {};
}

std::string DeviceMember::reason_of(std::uint32_t peer) const {
  const Window& head = heads_[peer];
  if (head.load(WindowLayout::refused_at) == 0) return {};
  return name_text(text_at(head, WindowLayout::reason_at, WindowLayout::reason_bytes));
}

// --- memory

Result<DeviceMember::Routing> DeviceMember::new_routing() const {
  HEADRACE_TRY(memory, rank_->new_routing());
  return Routing{std::move(memory)};
}

Result<Tensor> DeviceMember::new_tensor(DType dtype, const Shape& shape) const {
  const auto& device = kernels_->shared_device();
  HEADRACE_TRY(view, view_of(dtype, shape, {headrace::Device::Kind::cuda, device->ordinal()}));
  const std::size_t bytes = view.bytes();
  if (bytes == 0) return Tensor(view, nullptr, nullptr);
  HEADRACE_TRY(memory, gpu::DeviceMemory::allocate(device, bytes));
  const gpu::ContextGuard current(*device);
  HEADRACE_CUDA_TRY(device->driver(),
                    device->driver().memset_d8_async(memory.address(), 0, bytes, stream_.handle()),
                    "clear {} bytes", bytes);
  HEADRACE_TRY_VOID(stream_.wait_idle());
  const auto* const data = reinterpret_cast<const void*>(memory.address());
  return tensor_in(std::move(memory), view, data);
}

Result<Tensor> DeviceMember::new_host_tensor(DType dtype, const Shape& shape) const {
  HEADRACE_TRY(view, view_of(dtype, shape, {}));
  const std::size_t bytes = view.bytes();
  if (bytes == 0) return Tensor(view, nullptr, nullptr);
  HEADRACE_TRY(memory, gpu::PinnedMemory::allocate(kernels_->shared_device(), bytes));
  const void* const data = memory.bytes().data();
  return tensor_in(std::move(memory), view, data);
}

// --- operations

Result<void> DeviceMember::dispatch(const MoETokens& tokens, const MoERows& rows, Routing& routing,
                                    Halves halves, cuda::Stream stream) {
  HEADRACE_TRY_VOID(not_ended());
  HEADRACE_TRY_VOID(may_queue(dispatches_, "dispatch", halves, routing.dispatch_sent));
  if (receives(halves) && rows.host_counts != nullptr && rows.counts == nullptr)
    return make_error(Code::invalid_argument,
                      "host_counts are given without counts, of which they are a copy");
  HEADRACE_TRY_VOID(follow_votes(stream));
  HEADRACE_TRY_VOID(rank_->dispatch(tokens, rows, routing.memory, halves, stream));
  count_queued(dispatches_, halves, routing.dispatch_sent);
  if (receives(halves)) HEADRACE_TRY_VOID(copy_counts(rows, stream));
  return check();
}

Result<void> DeviceMember::copy_counts(const MoERows& rows, cuda::Stream stream) const {
  const auto bytes = static_cast<std::size_t>(config_.local_experts()) * sizeof(std::int32_t);
  if (rows.host_counts == nullptr || bytes == 0) return {};
  const gpu::Device& device = kernels_->device();
  const gpu::ContextGuard current(device);
  HEADRACE_CUDA_TRY(device.driver(),
                    device.driver().memcpy_async(address_of_memory(rows.host_counts),
                                                 address_of_memory(rows.counts), bytes, stream),
                    "copy the counts of a dispatch to the host");
  return {};
}

Result<void> DeviceMember::combine(const MoEResults& results, const MoESums& sums, Routing& routing,
                                   Halves halves, cuda::Stream stream) {
  HEADRACE_TRY_VOID(not_ended());
  HEADRACE_TRY_VOID(may_queue(combines_, "combine", halves, routing.combine_sent));
  HEADRACE_TRY_VOID(follow_votes(stream));
  HEADRACE_TRY_VOID(rank_->combine(results, sums, routing.memory, halves, stream));
  count_queued(combines_, halves, routing.combine_sent);
  return check();
}

Result<void> DeviceMember::combine_memory(std::span<MoEWindowRows> of_ranks, Routing& routing,
                                          cuda::Stream stream) {
  HEADRACE_TRY_VOID(not_ended());
  if (of_ranks.size() != layout_.ranks)
    return make_error(Code::invalid_argument, "there is room for {} ranks, expected {}", of_ranks.size(),
                      layout_.ranks);
  HEADRACE_TRY_VOID(may_send(combines_, "combine"));
  HEADRACE_TRY_VOID(follow_votes(stream));
  HEADRACE_TRY_VOID(rank_->combine_memory(of_ranks.data(), routing.memory, stream));
  return check();
}

Result<void> DeviceMember::follow_votes(cuda::Stream stream) {
  const Mask mask = active();
  if (mask == given_ || (mask & bit_of(self())) == 0) return {};  // check tells a rank that is out
  if (stream != nullptr) {
    cuda::CaptureStatus capture{};
    const gpu::Device& device = kernels_->device();
    const gpu::ContextGuard current(device);
    HEADRACE_CUDA_TRY(device.driver(), device.driver().stream_is_capturing(stream, &capture),
                      "look at the stream of an operation");
    if (capture != cuda::CaptureStatus::none) return {};  // a graph reads the mask that is there
  }
  HEADRACE_TRY_VOID(rank_->set_active(mask, stream));
  given_ = mask;
  return {};
}

// --- ranks that are left out

Mask DeviceMember::active() const {
  const Mask all = mask_of_all(layout_.ranks);
  return heads_.empty() ? all : all & ~voted_out();
}

Result<void> DeviceMember::set_active(Mask ranks, cuda::Stream stream) {
  HEADRACE_TRY_VOID(not_ended());
  const Mask gone = active() & ~ranks;
  if ((vote_out(gone) & bit_of(self())) != 0) return left_out();
  told_ |= gone;
  return follow_votes(stream);
}

Mask DeviceMember::vote_out(Mask ranks) {
  Mask out = voted_out();
  while (after_vote(out, self(), ranks) != out) {
    const Mask after = after_vote(out, self(), ranks);
    if (heads_[0].exchange(WindowLayout::voted_out_at, out, after)) return after;
  }
  return out;
}

Result<void> DeviceMember::not_ended() {
  if (aborted_ && !ended_) ended_ = fmt::format("rank {} was aborted by its caller", self());
  if (!ended_) return {};
  return make_error(Code::canceled, "{}: open a new MoE on all ranks", *ended_);
}

Result<void> DeviceMember::check() {
  HEADRACE_TRY_VOID(not_ended());
  if (auto found = rank_->check(); !found) return settle(std::move(found).error());
  return tell_news(voted_out());
}

/// The status has the first of what launches have to say, the windows have all ranks that were missed.
Result<void> DeviceMember::settle(Error found) {
  const auto failure = rank_->failure();
  if (found.code == Code::canceled) {
    if (failure) failure_ = failure;
    return end(std::move(found.message));
  }
  const auto by = rank_->left_out_by();
  if (!by) return end(by.error().message);
  if (*by != 0) return left_out();
  if (found.code != Code::timed_out && found.code != Code::corrupt) return found;
  const auto gone = rank_->left_out();
  if (!gone) return end(gone.error().message);
  return tell_news(vote_out(*gone), *failure);
}

/// Each rank that is out is told once: with what a launch has seen of it, if one has.
Result<void> DeviceMember::tell_news(Mask out, MoEFailure seen) {
  if ((out & bit_of(self())) != 0) return left_out();
  const Mask news = out & ~told_;
  if (news == 0) return {};
  told_ |= news;
  if (seen.peer < 0 || (news & bit_of(static_cast<std::uint32_t>(seen.peer))) == 0) {
    seen = MoEFailure();
    seen.code = Code::peer_lost, seen.waiter = config_.rank, seen.peer = std::countr_zero(news);
    seen.operation = "dispatch", seen.number = dispatches_.sent, seen.voted = true;
  }
  const auto peer = static_cast<std::uint32_t>(seen.peer);
  seen.reason = reason_of(peer);
  if (seen.code == Code::timed_out && peer != self() && !mappings_[peer]->alive())
    seen.code = Code::peer_lost;
  failure_ = std::move(seen);
  return Error{failure_->code, failure_->text()};
}

/// By the votes, or by words in this rank's window.
Error DeviceMember::left_out() {
  const auto by = rank_->left_out_by();
  MoEFailure failure;
  failure.code = Code::canceled, failure.waiter = config_.rank;
  failure.peer = by && *by != 0 ? std::countr_zero(*by) : 0;
  failure.operation = "dispatch", failure.number = dispatches_.sent;
  failure_ = std::move(failure);
  return end(failure_->text());
}

/// Launches do nothing any more, and no rank waits for this one.
Error DeviceMember::end(std::string why) {
  vote_out(bit_of(self()));
  rank_->abort();
  ended_ = std::move(why);
  return Error{Code::canceled, *ended_};
}

void DeviceMember::abort() {
  const std::scoped_lock lock(abort_mutex_);
  aborted_ = true;
  if (!rank_) return;
  rank_->abort();
  vote_out(bit_of(self()));
}

}  // namespace headrace::moe
