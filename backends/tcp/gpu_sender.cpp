// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/gpu_sender.hpp"

#include "backends/tcp/context.hpp"
#include "backends/tcp/link.hpp"

#include <algorithm>

namespace headrace::tcp {
namespace {

// Staged at most by one look at the queues, so that no thread launches for long.
constexpr int most_staged_at_once = 16;

}  // namespace

GpuSender::GpuSender(ChannelState& state, Batch& batch)
    : state_(state),
      batch_(batch),
      lane_(GpuLane::Way::gather, state.context.settings.gpu_ring_bytes,
            state.context.settings.gpu_chunk_bytes) {}

// ------------------------------------------------------------------ gathering

void GpuSender::stage(HostCalls& calls) {
  for (int i = 0; i < most_staged_at_once; ++i) {
    const bool answers_first = answers_turn_;
    if (!(answers_first ? stage_answer() || stage_write(calls) : stage_write(calls) || stage_answer()))
      return;
    answers_turn_ = !answers_first;
  }
}

bool GpuSender::stage_answer() {
  if (open_) return stage_open_part();
  if (state_.answers.empty()) return false;
  std::shared_ptr<const gpu::RegisteredMemory> memory;
  {
    Regions::View view(state_.context.regions);
    const Answer& answer = state_.answers.front();
    const Region* const region =
        find_gpu_region(view, RangeList(answer.header, answer.ranges.data()), Access::read);
    if (region == nullptr) return false;
    memory = region->gpu;
  }
  open_.emplace(Open{std::move(state_.answers.front()), memory->gpu()});
  ++answers_;
  state_.answers.pop_front();
  state_.answer_ranges -= open_->answer.header.ranges;
  return stage_open_part();
}

/// Puts the memory of the piece into part_.
GpuSender::Piece GpuSender::choose_piece(Regions::View& view, const RangeList& ranges) {
  const std::uint64_t most = state_.context.settings.gpu_chunk_bytes;
  Piece piece{open_->next, open_->skip};
  part_.clear();
  while (piece.next < ranges.size() && piece.bytes < most) {
    const Range range = ranges[piece.next];
    const auto found = view.find(range, Access::read);
    if (found.region == nullptr) {
      piece.code = found.code;
      break;
    }
    const std::uint64_t now = std::min(range.length - piece.skip, most - piece.bytes);
    if (now > 0) part_.push_back({found.region, range.offset + piece.skip, now});
    piece.bytes += now;
    piece.skip += now;
    if (piece.skip < range.length) break;
    ++piece.next;
    piece.skip = 0;
  }
  return piece;
}

/// The next part of the answer that is open, mostly the only one.
bool GpuSender::stage_open_part() {
  Staged staged;
  staged.header = open_->answer.header;
  staged.first = open_->staged == 0;
  const RangeList ranges(open_->answer.header, open_->answer.ranges.data());
  // Looked up for each part: until it is staged, its memory may go.
  Regions::View view(state_.context.regions);
  const Piece piece = choose_piece(view, ranges);
  staged.code = piece.code;
  staged.last = piece.code != Code::ok || piece.next == ranges.size();
  if (piece.code == Code::ok) {
    auto taken = lane_.take(part_, *open_->gpu);
    if (taken && *taken == nullptr) return false;
    if (taken) {
      staged.part = *taken;
    } else {
      staged.code = taken.code();
      staged.last = true;
    }
  }
  staged.good_bytes = open_->staged;
  open_->next = piece.next;
  open_->skip = piece.skip;
  open_->staged += piece.bytes;
  staged_.push_back(staged);
  if (staged.last) open_.reset();
  return true;
}

bool GpuSender::stage_write(HostCalls& calls) {
  const bool may = state_.writes.bytes() + state_.staged_bytes < state_.link->window_now() &&
                   state_.writes.size() + staged_.size() < max_unanswered_frames;
  RemoteRequest* const request = state_.link->next_work(false, may, false);
  if (request == nullptr || !request->of_gpu()) return false;
  transport::Chunk chunk =
      transport::cut_chunk(request->args, request->next(), state_.link->limits_of(*request));
  part_.clear();
  PageCursor cursor(request->args, chunk.from, chunk.to);
  for (PageRun run; cursor.next(run);)
    part_.push_back({&Handles::region(run.local_region), run.local_offset, run.bytes});
  auto taken = lane_.take(part_, *request->gpu);
  if (!taken) {
    state_.link->refuse(*request, calls, {taken.code()}, taken.error().message);
    return true;
  }
  if (*taken == nullptr) return false;
  chunk.number = request->chunks();
  state_.staged_bytes += chunk.bytes;
  Staged frame;
  frame.part = *taken;
  frame.request = request;
  frame.chunk = chunk;
  staged_.push_back(frame);
  state_.link->took_chunk(*request, chunk, state_.index);
  return true;
}

void GpuSender::launch() {
  for (const Staged& frame : staged_)
    if (frame.part != nullptr && frame.part->state == GpuPart::State::taken) lane_.launch(*frame.part);
}

bool GpuSender::gathered_soon() {
  if (staged_.empty()) return false;
  GpuPart* const part = staged_.front().part;
  if (part == nullptr || part->bytes.size() > state_.context.settings.direct_bytes) return part == nullptr;
  return lane_.ended_soon(*part);
}

void GpuSender::watch() {
  state_.gathering.store(anything_staged());
  if (state_.gathering.load()) state_.look_after();
}

// ------------------------------------------------------------------ handing to the writer

bool GpuSender::put(HostCalls& calls) {
  bool any = false;
  while (!staged_.empty() && batch_.has_bytes_left()) {
    const Staged& frame = staged_.front();
    if (frame.part != nullptr && (frame.part->state == GpuPart::State::taken || !lane_.ended(*frame.part)))
      break;
    if (!(frame.request != nullptr ? put_write(calls) : put_answer(calls))) break;
    if (frame.part != nullptr) ++lent_;
    staged_.pop_front();
    any = true;
  }
  return any;
}

bool GpuSender::put_write(HostCalls& calls) {
  const Staged& frame = staged_.front();
  if (frame.part->state == GpuPart::State::failed) {
    // The peer may have been told to expect it.
    calls.lose({Code::backend_failed},
               fmt::format("what was to be sent could not be gathered: {}", lane_.fault()));
    return false;
  }
  if (!batch_.fits(*frame.request, frame.chunk)) return false;
  const std::uint32_t ranges = batch_.put_chunk(*frame.request, frame.chunk);
  batch_.writer.lend(frame.part->bytes.data(), frame.part->bytes.size());
  state_.staged_bytes -= frame.chunk.bytes;
  state_.writes.add({frame.request, frame.request->wire_id(), frame.chunk, ranges});
  return true;
}

bool GpuSender::put_answer(HostCalls& calls) {
  const Staged& frame = staged_.front();
  if (!batch_.writer.fits(frame_header_bytes + 8)) return false;
  const bool failed = frame.part == nullptr || frame.part->state == GpuPart::State::failed;
  if (failed && !(frame.first && frame.last)) {
    calls.lose({Code::backend_failed},
               fmt::format("a long answer that had begun cannot be ended: {}",
                           frame.part == nullptr ? "its memory has gone" : lane_.fault()));
    return false;
  }
  if (frame.first) put_answer_header(frame, failed);
  if (!failed) batch_.writer.lend(frame.part->bytes.data(), frame.part->bytes.size());
  mid_frame_ = !frame.last;
  if (frame.last) --answers_;
  return true;
}

void GpuSender::put_answer_header(const Staged& frame, bool failed) {
  FrameHeader header;
  header.type = FrameType::read_data;
  header.request = frame.header.request;
  header.chunk = frame.header.chunk;
  header.payload = failed ? 8 : frame.header.payload;
  if (failed)
    header.code = static_cast<std::uint32_t>(frame.part == nullptr ? frame.code : Code::backend_failed);
  batch_.writer.put(header);
  if (failed) batch_.writer.put(&frame.good_bytes, 8);
}

void GpuSender::release_sent() {
  for (; lent_ > 0; --lent_) lane_.release_oldest();
}

}  // namespace headrace::tcp
