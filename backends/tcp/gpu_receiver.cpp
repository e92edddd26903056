// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/gpu_receiver.hpp"

#include "backends/tcp/context.hpp"
#include "backends/tcp/link.hpp"

#include <algorithm>

namespace headrace::tcp {

GpuReceiver::GpuReceiver(ChannelState& state, Receipt& receipt, FrameReader::Handler& handler)
    : state_(state),
      receipt_(receipt),
      handler_(handler),
      lane_(GpuLane::Way::unpack, state.context.settings.gpu_ring_bytes,
            state.context.settings.gpu_chunk_bytes) {}

void GpuReceiver::begin() {
  receiving_ = true;
  ++frame_;
  stretches_.clear();
  next_ = 0;
  skip_ = placed_ = 0;
  receipt_.reader.place_more_later();  // feed does, when it is known what the frame is made of
}

// ------------------------------------------------------------------ places

Stretch GpuReceiver::rest_of(std::size_t i, std::uint64_t skip) const {
  const Stretch& whole = stretches_[i];
  return {whole.region, whole.offset + skip, whole.bytes - skip};
}

/// Puts the GPU memory of the next part into part_. Returns its bytes.
std::uint64_t GpuReceiver::choose_part() {
  const std::uint64_t most = state_.context.settings.gpu_chunk_bytes;
  part_.clear();
  std::uint64_t bytes = 0, skip = skip_;
  for (std::size_t i = next_; i < stretches_.size() && bytes < most; ++i, skip = 0) {
    Stretch stretch = rest_of(i, skip);
    if (!stretch.region->of_gpu()) continue;
    stretch.bytes = std::min(stretch.bytes, most - bytes);
    bytes += stretch.bytes;
    part_.push_back(stretch);
  }
  return bytes;
}

/// Gives the reader places for the next part of the frame; the host's memory is a place itself. False: the
/// ring is full.
bool GpuReceiver::place_more() {
  const std::uint64_t bytes = choose_part();
  std::byte* ring = nullptr;
  if (!part_.empty()) {
    auto taken = lane_.take(part_, *part_.front().region->gpu->gpu());
    if (taken && *taken == nullptr) return false;
    if (!taken) {
      receipt_.code = taken.code();
      receipt_.good_bytes = placed_;
      why_ = std::move(taken).error().message;
      if (receipt_.reader.header().type == FrameType::write) receipt_.calls->refused_chunk();
      receipt_.reader.discard();
      return true;
    }
    (*taken)->frame = frame_;
    (*taken)->at = placed_;
    ring = (*taken)->bytes.data();
  }
  place_chosen(ring, bytes);
  return true;
}

/// Up to the end of the part, which has so many bytes of GPU memory; they go to the ring.
void GpuReceiver::place_chosen(std::byte* ring, std::uint64_t bytes) {
  for (std::uint64_t left = bytes; next_ < stretches_.size(); ++next_, skip_ = 0) {
    const Stretch stretch = rest_of(next_, skip_);
    if (!stretch.region->of_gpu()) {
      receipt_.reader.place(stretch.at(), stretch.bytes);
      placed_ += stretch.bytes;
      continue;
    }
    const std::uint64_t now = std::min(stretch.bytes, left);
    if (now > 0) receipt_.reader.place(ring, now, FrameReader::Memory::ours);
    ring += now;
    left -= now;
    placed_ += now;
    if (now < stretch.bytes) {
      skip_ += now;
      break;
    }
  }
}

Result<void> GpuReceiver::feed() {
  for (;;) {
    HEADRACE_TRY_VOID(receipt_.reader.go_on(handler_));
    if (!receipt_.reader.starved()) break;
    launch();
    collect();
    if (receipt_.reader.starved() && !place_more()) break;
  }
  state_.starved.store(receipt_.reader.starved());
  return {};
}

/// The part that was placed last has come whole.
void GpuReceiver::launch() {
  if (part_is_open()) lane_.launch(lane_.newest());
}

void GpuReceiver::drop() {
  if (part_is_open()) lane_.drop_newest();
}

// ------------------------------------------------------------------ landing

bool GpuReceiver::lands_later(const FrameHeader& header, const Unanswered& answered) {
  const bool of_gpu = std::exchange(receiving_, false);
  if (of_gpu) launch();
  if (!of_gpu && (answered.request != nullptr || header.type == FrameType::read_data || quiet()))
    return false;
  if (!of_gpu) ++frame_;
  landings_.push_back({frame_, header, answered, receipt_.code, receipt_.good_bytes});
  return true;
}

/// Gives back the room of parts that GPUs have ended.
void GpuReceiver::collect() {
  while (!lane_.parts().empty() && lane_.ended(lane_.oldest())) {
    if (lane_.oldest().state == GpuPart::State::failed) fail(lane_.oldest());
    lane_.release_oldest();
  }
}

/// The frame of a part fails, whether it has come whole or not.
void GpuReceiver::fail(const GpuPart& part) {
  why_ = lane_.fault();
  const auto landing = std::ranges::find(landings_, part.frame, &Landing::frame);
  if (landing != landings_.end()) {
    landing->good_bytes = landing->code == Code::ok ? part.at : std::min(part.at, landing->good_bytes);
    landing->code = Code::backend_failed;
  } else if (receiving_ && part.frame == frame_ && receipt_.code == Code::ok) {
    receipt_.code = Code::backend_failed;
    receipt_.good_bytes = part.at;
    drop();
    receipt_.reader.discard();
  }
}

bool GpuReceiver::settle() {
  collect();
  bool any = false;
  while (!landings_.empty() && (lane_.parts().empty() || lane_.oldest().frame > landings_.front().frame)) {
    tell();
    any = true;
  }
  return any;
}

void GpuReceiver::tell() {
  const Landing landing = landings_.front();
  landings_.pop_front();
  HostCalls& calls = *receipt_.calls;
  if (landing.header.type == FrameType::write) {
    auto told = state_.landed(calls, landing.header, landing.code, landing.good_bytes);
    if (!told) receipt_.fail(std::move(told).error());
    return;
  }
  if (landing.answered.request == nullptr) return;
  const std::scoped_lock lock(state_.link->mutex_);
  state_.link->answered(landing.answered, {{landing.code}, landing.good_bytes, why_}, calls);
}

bool GpuReceiver::small_one_runs() {
  return lane_.parts().size() == 1 && lane_.oldest().state == GpuPart::State::running &&
         lane_.oldest().bytes.size() <= state_.context.settings.direct_bytes;
}

bool GpuReceiver::after_receive() {
  bool any = settle();
  if (small_one_runs() && lane_.ended_soon(lane_.oldest())) any = settle() || any;
  state_.landing.store(waits());
  state_.starved.store(receipt_.reader.starved());
  if (state_.landing.load() || state_.starved.load()) state_.look_after();
  return any;
}

bool GpuReceiver::look() {
  const bool moved = settle();
  state_.landing.store(waits());
  return moved;
}

// ------------------------------------------------------------------ taking memory out of reach

void GpuReceiver::cancel() {
  if (!std::exchange(receiving_, false)) return;
  drop();
  if (lane_.parts().empty() || lane_.newest().frame != frame_) return;
  const std::scoped_lock lock(state_.link->mutex_);
  Unanswered& front = *state_.reads.find(state_.reads.front());
  if (front.request == nullptr) return;
  state_.link->requests_.will_be_canceled(front.wire_id);
  landings_.push_back({frame_, receipt_.reader.header(), front, Code::ok, UINT64_MAX});
  front.request = nullptr;
  state_.landing.store(true);
  state_.look_after();
}

void GpuReceiver::wait() {
  lane_.wait();
  receiving_ = false;
  drop();
  collect();
  const std::scoped_lock lock(state_.link->mutex_);
  for (const Landing& landing : landings_)
    if (landing.header.type == FrameType::write && (landing.header.flags & flag_bound) != 0)
      (void)state_.link->inbox_.chunk(landing.header.request, landing.code == Code::ok);
}

}  // namespace headrace::tcp
