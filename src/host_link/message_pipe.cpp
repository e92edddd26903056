// SPDX-License-Identifier: Apache-2.0
#include "host_link/message_pipe.hpp"

#include <bit>
#include <new>

namespace headrace::host_link {
namespace {

constexpr std::uint32_t pipe_magic = 0x50535248;  // "HRSP"
constexpr std::uint32_t pipe_version = 1;
constexpr std::uint64_t header_bytes =
    64 * 1024;  // so that the rings begin on a page, however large pages are here
constexpr std::uint64_t control_offset = 1024;
static_assert(control_offset + 2 * sizeof(RingControl) <= header_bytes);

std::uint64_t file_bytes(std::uint64_t ring_bytes) { return header_bytes + 2 * ring_bytes; }

}  // namespace

Result<std::unique_ptr<MessagePipe>> MessagePipe::create(std::uint64_t ring_bytes,
                                                         std::uint64_t queue_bytes) {
  HEADRACE_TRY(file, create_memory_file("headrace-messages", file_bytes(ring_bytes)));
  HEADRACE_TRY_VOID(seal_memory_file(file.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  HEADRACE_TRY(ours, BellPair::create());
  HEADRACE_TRY(theirs, BellPair::create());
  std::unique_ptr<MessagePipe> pipe(
      new MessagePipe(std::move(file), std::move(ours.waits), std::move(theirs.rings), queue_bytes));
  pipe->to_send_ = {std::make_shared<const UniqueFd>(std::move(ours.rings)),
                    std::make_shared<const UniqueFd>(std::move(theirs.waits))};
  HEADRACE_TRY(header, Mapping::of_file(pipe->file_.get(), 0, header_bytes, Mapping::Access::read_write));
  new (header.data()) PipeHeader{pipe_magic, pipe_version, ring_bytes};
  pipe->header_ = std::move(header);
  HEADRACE_TRY_VOID(pipe->map(ring_bytes, true));
  return pipe;
}

Result<std::unique_ptr<MessagePipe>> MessagePipe::adopt(UniqueFd file, UniqueFd their_bell, UniqueFd our_bell,
                                                        std::uint64_t queue_bytes) {
  HEADRACE_TRY(found, inspect_memory_file(file.get()));
  HEADRACE_TRY_VOID(check_bell(our_bell));
  HEADRACE_TRY_VOID(check_bell(their_bell));
  std::unique_ptr<MessagePipe> pipe(
      new MessagePipe(std::move(file), std::move(our_bell), std::move(their_bell), queue_bytes));
  if (found.size_bytes < header_bytes || found.page_bytes > header_bytes) {
    return make_error(Code::corrupt, "the message file of a link has {} bytes in pages of {}",
                      found.size_bytes, found.page_bytes);
  }
  HEADRACE_TRY(header, Mapping::of_file(pipe->file_.get(), 0, header_bytes, Mapping::Access::read_write));
  pipe->header_ = std::move(header);
  const PipeHeader said = *reinterpret_cast<const PipeHeader*>(pipe->header_.data());
  if (said.magic != pipe_magic || said.version != pipe_version || !std::has_single_bit(said.ring_bytes) ||
      said.ring_bytes < 2 * max_message_bytes || said.ring_bytes > found.size_bytes ||
      file_bytes(said.ring_bytes) != found.size_bytes) {
    return make_error(Code::corrupt,
                      "the message file of a link begins with {:#x}, version {}, rings of {} bytes in {}",
                      said.magic, said.version, said.ring_bytes, found.size_bytes);
  }
  HEADRACE_TRY_VOID(pipe->map(said.ring_bytes, false));
  return pipe;
}

Result<void> MessagePipe::map(std::uint64_t ring_bytes, bool connecting) {
  std::array<RingMemory, 2> rings;
  for (std::size_t i = 0; i < 2; ++i) {
    HEADRACE_TRY(data, Mapping::of_file_twice(file_.get(), header_bytes + i * ring_bytes, ring_bytes));
    data_[i] = std::move(data);
    auto* const control = reinterpret_cast<RingControl*>(header_.data() + control_offset) + i;
    rings[i] = {control, data_[i].data(), ring_bytes};
  }
  writer_ = RingWriter(rings[connecting ? 0 : 1]);
  reader_ = RingReader(rings[connecting ? 1 : 0], max_message_bytes);
  return {};
}

bool MessagePipe::arm() {
  if (may_have_rung_.fetch_add(1, std::memory_order_relaxed) < bell_rings) return reader_.arm();
  may_have_rung_.store(0, std::memory_order_relaxed);
  // Rings that are drained here may be for work that nobody has seen yet: the caller looks at all once more.
  // An idle pipe has none: of many pipes there is always one that comes to its bound, and a caller that had
  // to look at all each time would never sleep.
  return !drain_bell(our_bell_) && reader_.arm();
}

RingWriter::Push MessagePipe::push_locked(std::uint32_t channel, std::string_view bytes) {
  const auto pushed = writer_.push_or_wait_for_room(channel, bytes);
  if (pushed == RingWriter::Push::done && writer_.reader_sleeps()) ring_bell(their_bell_);
  if (pushed == RingWriter::Push::full) may_have_rung_.fetch_add(1, std::memory_order_relaxed);
  if (pushed == RingWriter::Push::corrupt) broken_.store(true, std::memory_order_release);
  return pushed;
}

MessagePipe::Lane& MessagePipe::lane_locked(std::uint32_t channel) {
  for (Lane& lane : lanes_)
    if (lane.channel == channel) return lane;
  lanes_.push_back({channel, {}});
  return lanes_.back();
}

std::uint32_t MessagePipe::flush_locked() {
  std::uint32_t moved = 0;
  bool full = false;
  for (Lane& lane : lanes_) {
    while (!full && !lane.waiting.empty() && lane.waiting.front().filled) {
      const std::string& bytes = lane.waiting.front().bytes;
      full = push_locked(lane.channel, bytes) != RingWriter::Push::done;
      if (full) break;
      reserved_ -= RingWriter::record_bytes(bytes.size());
      lane.waiting.pop_front();
      ++moved;
    }
  }
  wants_room_.store(full, std::memory_order_release);
  return moved;
}

Status MessagePipe::send(std::uint32_t channel, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (wants_room()) (void)flush_locked();
  if (wants_room()) return {broken() ? Code::corrupt : Code::would_block};
  Lane& lane = lane_locked(channel);
  if (lane.waiting.empty()) {
    switch (push_locked(channel, bytes)) {
      case RingWriter::Push::done:
        return {};
      case RingWriter::Push::full:
        return {Code::would_block};
      case RingWriter::Push::corrupt:
        return {Code::corrupt};
    }
  }
  const std::uint64_t record = RingWriter::record_bytes(bytes.size());
  if (reserved_ + record > queue_bytes_) return {Code::would_block};
  reserved_ += record;
  lane.waiting.push_back({std::string(bytes), true});
  return {};
}

Status MessagePipe::reserve(std::uint64_t message_bytes) {
  const std::uint64_t record = RingWriter::record_bytes(message_bytes);
  const std::lock_guard lock(mutex_);
  if (reserved_ + record > queue_bytes_) return {Code::would_block};
  reserved_ += record;
  return {};
}

void MessagePipe::cancel_reservation(std::uint64_t message_bytes) {
  const std::lock_guard lock(mutex_);
  reserved_ -= RingWriter::record_bytes(message_bytes);
}

void MessagePipe::send_reserved(std::uint32_t channel, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  Lane& lane = lane_locked(channel);
  if (lane.waiting.empty() && !wants_room() && push_locked(channel, bytes) == RingWriter::Push::done) {
    reserved_ -= RingWriter::record_bytes(bytes.size());
    return;
  }
  lane.waiting.push_back({std::string(bytes), true});
  (void)flush_locked();
}

void MessagePipe::send_beyond(std::uint32_t channel, std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    reserved_ += RingWriter::record_bytes(bytes.size());
  }
  send_reserved(channel, bytes);
}

MessagePipe::Place MessagePipe::take_place(std::uint32_t channel) {
  const std::lock_guard lock(mutex_);
  Lane& lane = lane_locked(channel);
  return lane.waiting.emplace(lane.waiting.end());
}

void MessagePipe::fill_place(Place place, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  place->bytes = bytes;
  place->filled = true;
  (void)flush_locked();
}

void MessagePipe::give_up_place(std::uint32_t channel, Place place, std::uint64_t message_bytes) {
  const std::lock_guard lock(mutex_);
  reserved_ -= RingWriter::record_bytes(message_bytes);
  lane_locked(channel).waiting.erase(place);
  (void)flush_locked();
}

std::uint64_t MessagePipe::waiting() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t all = 0;
  for (const Lane& lane : lanes_) all += lane.waiting.size();
  return all;
}

std::uint32_t MessagePipe::flush() {
  const std::lock_guard lock(mutex_);
  return flush_locked();
}

}  // namespace headrace::host_link
