// SPDX-License-Identifier: Apache-2.0
// A channel's traffic to and from GPU memory.
//
// Receiving: the reader is given places in the ring, a part at a time; a part that has come is unpacked while
// the next one is received, and a frame is told when its last part has been unpacked. Sending: chunks and
// answers are staged, that is gathered into the ring, ahead of the one that is being sent, and handed to the
// writer in order.
//
// No thread waits for a GPU, save at the end of a link and where a region goes: whoever finds nothing else to
// do leaves the channel to its I/O thread's looks.
#include "backends/tcp/channel_gpu.hpp"

#include "backends/tcp/link.hpp"
#include "base/clock.hpp"

#include <algorithm>

namespace headrace::tcp {
namespace {

// How long a thread looks for the end of a small move before it leaves it to the I/O thread's looks: a launch
// and its word take some 6 us, handing over to another thread takes longer.
constexpr std::uint64_t small_move_ns = 20'000;
// Staged at most by one look at the queues, so that no thread launches for long.
constexpr int most_staged_at_once = 16;
// As in channel.cpp: a batch is closed once it has this much.
constexpr std::uint64_t gpu_batch_bytes = 256 * 1024;

/// Looks until `ended()`, for a short while.
template <class Ended>
bool soon(Ended ended) {
  const std::uint64_t until = headrace::now_ns() + small_move_ns;
  while (!ended())
    if (headrace::now_ns() >= until) return false;
  return true;
}

}  // namespace

// ------------------------------------------------------------------ receiving

/// Of the regions that a frame names the first that is a GPU's; null: there is none, or some of it cannot be
/// reached.
const Region* Channel::find_gpu_region(Regions::View& view, const RangeList& ranges, Access access) const {
  const Region* of_gpu = nullptr;
  for (std::uint32_t i = 0; i < ranges.size(); ++i) {
    const auto found = view.find(ranges[i], access);
    if (found.region == nullptr) return nullptr;
    if (of_gpu == nullptr && found.region->of_gpu()) of_gpu = found.region;
  }
  return of_gpu;
}

void Channel::begin_placing() {
  if (gpu_in_ == nullptr) gpu_in_ = std::make_unique<GpuIncoming>(context_.settings);
  GpuIncoming& in = *gpu_in_;
  in.receiving = true;
  ++in.frame;
  in.stretches.clear();
  in.next = 0;
  in.skip = in.placed = 0;
  reader_.place_more_later();  // feed_gpu does, when it is known what the frame is made of
}

void Channel::add_placed_run(const Region& region, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes > 0) gpu_in_->stretches.push_back({&region, offset, bytes});
}

/// Gives the reader places for the next part of the frame; the host's memory is a place itself. False: the
/// ring is full.
bool Channel::place_more() {
  GpuIncoming& in = *gpu_in_;
  const std::uint64_t most = context_.settings.gpu_chunk_bytes;
  const auto rest = [&in](std::size_t i, std::uint64_t skip) {
    const Stretch& whole = in.stretches[i];
    return Stretch{whole.region, whole.offset + skip, whole.bytes - skip};
  };
  in.part.clear();
  std::uint64_t bytes = 0, skip = in.skip;
  for (std::size_t i = in.next; i < in.stretches.size() && bytes < most; ++i, skip = 0) {
    Stretch stretch = rest(i, skip);
    if (!stretch.region->of_gpu()) continue;
    stretch.bytes = std::min(stretch.bytes, most - bytes);
    bytes += stretch.bytes;
    in.part.push_back(stretch);
  }
  std::byte* ring = nullptr;
  if (!in.part.empty()) {
    auto taken = in.lane.take(in.part, *in.part.front().region->gpu->gpu());
    if (taken && *taken == nullptr) return false;
    if (!taken) {
      incoming_.code = taken.code();
      incoming_.good_bytes = in.placed;
      in.why = std::move(taken).error().message;
      if (reader_.header().type == FrameType::write) calls_->refused_chunk();
      reader_.discard();
      return true;
    }
    (*taken)->frame = in.frame;
    (*taken)->at = in.placed;
    ring = (*taken)->bytes.data();
  }
  for (std::uint64_t left = bytes; in.next < in.stretches.size(); ++in.next, in.skip = 0) {
    const Stretch stretch = rest(in.next, in.skip);
    if (!stretch.region->of_gpu()) {
      reader_.place(stretch.at(), stretch.bytes);
      in.placed += stretch.bytes;
      continue;
    }
    const std::uint64_t now = std::min(stretch.bytes, left);
    if (now > 0) reader_.place(ring, now, FrameReader::Memory::ours);
    ring += now;
    left -= now;
    in.placed += now;
    if (now < stretch.bytes) {
      in.skip += now;
      break;
    }
  }
  return true;
}

/// The part that was placed last has come whole.
void Channel::launch_received() {
  GpuLane& lane = gpu_in_->lane;
  if (!lane.parts().empty() && lane.newest().state == GpuPart::State::taken) lane.launch(lane.newest());
}

/// The part that was placed last will not come whole.
void Channel::drop_received() {
  if (gpu_in_ == nullptr) return;
  GpuLane& lane = gpu_in_->lane;
  if (!lane.parts().empty() && lane.newest().state == GpuPart::State::taken) lane.drop_newest();
}

/// Goes on with a frame whose rest had no place, as far as there is room.
Result<void> Channel::feed_gpu() {
  for (;;) {
    HEADRACE_TRY_VOID(reader_.go_on(*this));
    if (!reader_.starved()) break;
    launch_received();
    collect_unpacked();
    if (reader_.starved() && !place_more()) break;
  }
  starved_.store(reader_.starved());
  return {};
}

/// A frame has come whole. True: it is told later, when GPUs have unpacked it and what came before;
/// acknowledgements keep the order of the writes.
bool Channel::lands_later(const FrameHeader& header, const Unanswered& answered) {
  GpuIncoming& in = *gpu_in_;
  const bool of_gpu = std::exchange(in.receiving, false);
  if (of_gpu) launch_received();
  if (!of_gpu && (answered.request != nullptr || header.type == FrameType::read_data || in.quiet()))
    return false;
  if (!of_gpu) ++in.frame;
  in.landings.push_back({in.frame, header, answered, incoming_.code, incoming_.good_bytes});
  return true;
}

/// Gives back the room of parts that GPUs have ended.
void Channel::collect_unpacked() {
  GpuIncoming& in = *gpu_in_;
  while (!in.lane.parts().empty() && in.lane.ended(in.lane.oldest())) {
    const GpuPart& part = in.lane.oldest();
    if (part.state == GpuPart::State::failed) {
      in.why = in.lane.fault();
      const auto landing = std::ranges::find(in.landings, part.frame, &GpuIncoming::Landing::frame);
      if (landing != in.landings.end()) {
        landing->good_bytes = landing->code == Code::ok ? part.at : std::min(part.at, landing->good_bytes);
        landing->code = Code::backend_failed;
      } else if (in.receiving && part.frame == in.frame && incoming_.code == Code::ok) {
        incoming_.code = Code::backend_failed;
        incoming_.good_bytes = part.at;
        drop_received();
        reader_.discard();
      }
    }
    in.lane.release_oldest();
  }
}

/// Tells the frames that have landed. Whether there were any.
bool Channel::settle() {
  GpuIncoming& in = *gpu_in_;
  collect_unpacked();
  bool any = false;
  while (!in.landings.empty() &&
         (in.lane.parts().empty() || in.lane.oldest().frame > in.landings.front().frame)) {
    tell(in);
    any = true;
  }
  return any;
}

void Channel::tell(GpuIncoming& in) {
  const GpuIncoming::Landing landing = in.landings.front();
  in.landings.pop_front();
  if (landing.header.type == FrameType::write) {
    if (auto told = landed(landing.header, landing.code, landing.good_bytes); !told) {
      receiving_ = false;
      calls_->lose({told.error().code}, std::move(told.error().message));
    }
    return;
  }
  if (landing.answered.request == nullptr) return;
  const std::scoped_lock lock(link_->mutex_);
  link_->answered(*landing.answered.request, *calls_, {landing.code}, landing.good_bytes,
                  landing.answered.chunk, in.why);
}

/// What has come is on its way to GPUs, or there: looks for the end of a small one, and leaves the rest to
/// the I/O thread.
bool Channel::after_receive() {
  GpuIncoming& in = *gpu_in_;
  bool any = settle();
  const auto small = [&] {
    return in.lane.parts().size() == 1 && in.lane.oldest().state == GpuPart::State::running &&
           in.lane.oldest().bytes.size() <= context_.settings.direct_bytes;
  };
  if (small() && soon([&] { return in.lane.ended(in.lane.oldest()); })) any = settle() || any;
  landing_.store(in.waits());
  starved_.store(reader_.starved());
  if (landing_.load() || starved_.load()) thread_.look_after(shared_from_this());
  return any;
}

/// The read whose data are being received is abandoned. What of it GPUs still write it waits for.
void Channel::cancel_received() {
  if (gpu_in_ == nullptr || !std::exchange(gpu_in_->receiving, false)) return;
  GpuIncoming& in = *gpu_in_;
  drop_received();
  if (in.lane.parts().empty() || in.lane.newest().frame != in.frame) return;
  const std::scoped_lock state(link_->mutex_);
  Unanswered& front = reads_.front();
  if (front.request == nullptr) return;
  if (front.request->status.ok()) front.request->status.code = Code::canceled;
  in.landings.push_back({in.frame, reader_.header(), front, Code::ok, UINT64_MAX});
  front.request = nullptr;
  landing_.store(true);
  thread_.look_after(shared_from_this());
}

/// Until GPUs touch nothing any more. Messages of writes that came whole are still delivered.
void Channel::wait_for_unpacking() {
  GpuIncoming& in = *gpu_in_;
  in.lane.wait();
  in.receiving = false;
  drop_received();
  collect_unpacked();
  const std::scoped_lock state(link_->mutex_);
  for (const GpuIncoming::Landing& landing : in.landings)
    if (landing.header.type == FrameType::write && (landing.header.flags & flag_bound) != 0)
      (void)link_->inbox_.chunk(landing.header.request, landing.code == Code::ok);
}

Watched::Look Channel::on_look() {
  HostCalls calls(*link_);
  bool moved = false;
  const bool starved = starved_.load();
  if (starved) {
    moved = receive(calls, Driver::io_thread);
  } else if (landing_.load()) {
    const std::scoped_lock lock(receive_);
    if (receiving_ && gpu_in_ != nullptr) {
      calls_ = &calls;
      moved = settle();
      landing_.store(gpu_in_->waits());
      calls_ = nullptr;
    }
  }
  const bool gathered = gathering_.load();
  if (moved || gathered || starved || deaf_.load() != starved_.load()) pump(calls, Driver::io_thread);
  moved = moved || (gathered && !gathering_.load());
  if (gathering_.load() || landing_.load() || starved_.load()) return moved ? Look::moved : Look::idle;
  return Look::over;
}

// ------------------------------------------------------------------ sending

bool Channel::mid_frame() const { return gpu_out_ != nullptr && gpu_out_->mid_frame; }
bool Channel::holds_answers() const { return gpu_out_ != nullptr && gpu_out_->answers > 0; }
bool Channel::anything_staged() const {
  return gpu_out_ != nullptr && (!gpu_out_->staged.empty() || gpu_out_->open);
}

/// Takes what is to be gathered into the ring, while there is room: answers and chunks of our own in turn.
void Channel::stage_work(HostCalls& calls) {
  for (int i = 0; i < most_staged_at_once; ++i) {
    const bool answers_first = gpu_out_ != nullptr && gpu_out_->answers_turn;
    if (!(answers_first ? stage_answer() || stage_write(calls) : stage_write(calls) || stage_answer()))
      return;
    gpu_out_->answers_turn = !answers_first;
  }
}

bool Channel::stage_answer() {
  if (gpu_out_ != nullptr && gpu_out_->open) return stage_open_part();
  if (answers_.empty()) return false;
  std::shared_ptr<const gpu::RegisteredMemory> memory;
  {
    Regions::View view(context_.regions);
    const Answer& answer = answers_.front();
    const Region* const region =
        find_gpu_region(view, RangeList(answer.header, answer.ranges.data()), Access::read);
    if (region == nullptr) return false;
    memory = region->gpu;
  }
  if (gpu_out_ == nullptr) gpu_out_ = std::make_unique<GpuOutgoing>(context_.settings);
  gpu_out_->open.emplace(GpuOutgoing::Open{std::move(answers_.front()), memory->gpu()});
  ++gpu_out_->answers;
  answers_.pop_front();
  answer_ranges_ -= gpu_out_->open->answer.header.ranges;
  return stage_open_part();
}

/// The next part of the answer that is open, mostly the only one.
bool Channel::stage_open_part() {
  GpuOutgoing& out = *gpu_out_;
  GpuOutgoing::Open& open = *out.open;
  GpuOutgoing::Staged staged;
  staged.header = open.answer.header;
  staged.first = open.staged == 0;
  const RangeList ranges(open.answer.header, open.answer.ranges.data());
  out.part.clear();
  std::uint64_t bytes = 0, skip = open.skip;
  std::uint32_t next = open.next;
  // Looked up for each part: until it is staged, its memory may go.
  Regions::View view(context_.regions);
  while (next < ranges.size() && bytes < context_.settings.gpu_chunk_bytes) {
    const Range range = ranges[next];
    const auto found = view.find(range, Access::read);
    if (found.region == nullptr) {
      staged.code = found.code;
      break;
    }
    const std::uint64_t now = std::min(range.length - skip, context_.settings.gpu_chunk_bytes - bytes);
    if (now > 0) out.part.push_back({found.region, range.offset + skip, now});
    bytes += now;
    skip += now;
    if (skip < range.length) break;
    ++next;
    skip = 0;
  }
  staged.last = staged.code != Code::ok || next == ranges.size();
  if (staged.code == Code::ok) {
    auto taken = out.lane.take(out.part, *open.gpu);
    if (taken && *taken == nullptr) return false;
    if (taken) {
      staged.part = *taken;
    } else {
      staged.code = taken.code();
      staged.last = true;
    }
  }
  staged.good_bytes = open.staged;
  open.next = next;
  open.skip = skip;
  open.staged += bytes;
  out.staged.push_back(staged);
  if (staged.last) out.open.reset();
  return true;
}

bool Channel::stage_write(HostCalls& calls) {
  const std::size_t staged = gpu_out_ == nullptr ? 0 : gpu_out_->staged.size();
  const bool may = write_bytes_ < window_now() && writes_.size() + staged < max_unanswered_frames;
  RemoteRequest* const request = link_->next_work(false, may, false);
  if (request == nullptr || !request->of_gpu()) return false;
  if (gpu_out_ == nullptr) gpu_out_ = std::make_unique<GpuOutgoing>(context_.settings);
  GpuOutgoing& out = *gpu_out_;
  Chunk chunk = cut_chunk(request->args, request->next, limits_of(*request));
  out.part.clear();
  PageCursor cursor(request->args, chunk.from, chunk.to);
  for (PageRun run; cursor.next(run);)
    out.part.push_back({static_cast<const Region*>(run.local_region), run.local_offset, run.bytes});
  auto taken = out.lane.take(out.part, *request->gpu);
  if (!taken) {
    link_->refuse(*request, calls, {taken.code()}, taken.error().message);
    return true;
  }
  if (*taken == nullptr) return false;
  chunk.number = request->chunks;
  write_bytes_ += chunk.bytes;
  GpuOutgoing::Staged frame;
  frame.part = *taken;
  frame.request = request;
  frame.chunk = chunk;
  out.staged.push_back(frame);
  link_->took_chunk(*request, chunk, index_);
  return true;
}

/// Without the link's lock: others need not wait for the driver.
void Channel::launch_staged() {
  GpuLane& lane = gpu_out_->lane;
  for (const GpuOutgoing::Staged& frame : gpu_out_->staged)
    if (frame.part != nullptr && frame.part->state == GpuPart::State::taken) lane.launch(*frame.part);
}

/// Puts frames that have been gathered. Whether there were any.
bool Channel::put_staged(HostCalls& calls) {
  GpuOutgoing& out = *gpu_out_;
  bool any = false;
  while (!out.staged.empty() && writer_.bytes() < gpu_batch_bytes) {
    const GpuOutgoing::Staged& frame = out.staged.front();
    if (frame.part != nullptr && (frame.part->state == GpuPart::State::taken || !out.lane.ended(*frame.part)))
      break;
    if (!(frame.request != nullptr ? put_staged_write(calls) : put_staged_answer(calls))) break;
    if (frame.part != nullptr) ++out.lent;
    out.staged.pop_front();
    any = true;
  }
  return any;
}

bool Channel::put_staged_write(HostCalls& calls) {
  const GpuOutgoing::Staged& frame = gpu_out_->staged.front();
  if (frame.part->state == GpuPart::State::failed) {
    // The peer may have been told to expect it.
    calls.lose({Code::backend_failed},
               fmt::format("what was to be sent could not be gathered: {}", gpu_out_->lane.fault()));
    return false;
  }
  if (!writer_.fits(frame_header_bytes + most_ranges(frame.request->args, frame.chunk) * range_bytes))
    return false;
  FrameHeader header;
  header.type = FrameType::write;
  header.request = frame.request->wire_id;
  header.chunk = frame.chunk.number;
  header.payload = frame.chunk.bytes;
  if (frame.request->message != nullptr) header.flags |= flag_bound;
  std::byte* const at = writer_.head(frame_header_bytes);
  const std::uint32_t ranges = put_ranges(*frame.request, frame.chunk, header);
  std::memcpy(at, &header, sizeof header);
  writer_.lend(frame.part->bytes.data(), frame.part->bytes.size());
  writes_.push_back({frame.request, header.request, frame.chunk, ranges});
  return true;
}

bool Channel::put_staged_answer(HostCalls& calls) {
  GpuOutgoing& out = *gpu_out_;
  const GpuOutgoing::Staged& frame = out.staged.front();
  if (!writer_.fits(frame_header_bytes + 8)) return false;
  const bool failed = frame.part == nullptr || frame.part->state == GpuPart::State::failed;
  if (failed && !(frame.first && frame.last)) {
    calls.lose({Code::backend_failed},
               fmt::format("a long answer that had begun cannot be ended: {}",
                           frame.part == nullptr ? "its memory has gone" : out.lane.fault()));
    return false;
  }
  if (frame.first) {
    FrameHeader header;
    header.type = FrameType::read_data;
    header.request = frame.header.request;
    header.chunk = frame.header.chunk;
    header.payload = failed ? 8 : frame.header.payload;
    if (failed)
      header.code = static_cast<std::uint32_t>(frame.part == nullptr ? frame.code : Code::backend_failed);
    writer_.put(header);
    if (failed) writer_.put(&frame.good_bytes, 8);
  }
  if (!failed) writer_.lend(frame.part->bytes.data(), frame.part->bytes.size());
  out.mid_frame = !frame.last;
  if (frame.last) --out.answers;
  return true;
}

/// The writer is empty: the ring has room again.
void Channel::release_sent() {
  for (; gpu_out_->lent > 0; --gpu_out_->lent) gpu_out_->lane.release_oldest();
}

/// There is nothing to be sent yet. Whether that changed while a small move was looked at.
bool Channel::gathered_soon() {
  if (gpu_out_ == nullptr || gpu_out_->staged.empty()) return false;
  GpuPart* const part = gpu_out_->staged.front().part;
  if (part == nullptr || part->bytes.size() > context_.settings.direct_bytes) return part == nullptr;
  return soon([&] { return gpu_out_->lane.ended(*part); });
}

/// Leaves what is being gathered to the I/O thread's looks.
void Channel::watch_gathering() {
  gathering_.store(anything_staged());
  if (gathering_.load()) thread_.look_after(shared_from_this());
}

}  // namespace headrace::tcp
