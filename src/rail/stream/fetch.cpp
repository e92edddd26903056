// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/fetch.hpp"

#include "memory/peer_memory_access.hpp"
#include "wire/byte_writer.hpp"
#include "wire/packet_reader.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace headrace::rail::stream {
namespace {

constexpr std::size_t most_fetched_pieces = 64;
constexpr std::size_t most_pieces_of_gpu = max_ranges;     // one launch copies them
constexpr std::uint64_t gpu_bit = std::uint64_t{1} << 63;  // of a length: the place is a GPU's
constexpr std::uint64_t fetch_step_bytes = 256 * 1024;     // deregistering waits for so much

/// Shortens the list to that many bytes; returns how many it has.
std::uint64_t cut_to(std::vector<iovec>& pieces, std::uint64_t most) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].iov_len = static_cast<std::size_t>(std::min<std::uint64_t>(pieces[i].iov_len, most - sum));
    sum += pieces[i].iov_len;
    if (sum == most) pieces.resize(i + 1);
  }
  return sum;
}

}  // namespace

std::string encode(const std::vector<Source>& sources) {
  wire::ByteWriter out;
  out.reserve(sources.size() * source_bytes);
  for (const Source& source : sources) {
    out.number(source.address);
    out.number(source.bytes | (source.gpu ? gpu_bit : 0));
  }
  return std::move(out).take();
}

Result<std::vector<Source>> read_sources(std::string_view payload, std::uint64_t bytes) {
  std::vector<Source> sources(payload.size() / source_bytes);
  wire::PacketReader in(payload);
  std::uint64_t left = bytes;
  for (Source& source : sources) {
    source.address = in.number<std::uint64_t>();
    const auto length = in.number<std::uint64_t>();
    source.bytes = length & ~gpu_bit;
    source.gpu = (length & gpu_bit) != 0;
    if (source.bytes == 0 || source.bytes > left)
      return make_error(Code::corrupt,
                        "bytes at {} places are to be fetched, and one of {} is among them for {}",
                        sources.size(), source.bytes, bytes);
    left -= source.bytes;
  }
  if (left > 0) return make_error(Code::corrupt, "{} of {} bytes to be fetched have no place", left, bytes);
  return sources;
}

void Fetch::gather_sources(std::uint64_t bytes) {
  from_.clear();
  for (std::size_t i = at_; i < sources_.size() && bytes > 0 && from_.size() < most_fetched_pieces; ++i) {
    const std::uint64_t step = std::min(bytes, sources_[i].bytes);
    from_.push_back({reinterpret_cast<void*>(static_cast<std::uintptr_t>(sources_[i].address)),
                     static_cast<std::size_t>(step)});
    bytes -= step;
  }
}

void Fetch::advance(std::uint64_t bytes) {
  places_.advance(bytes);
  while (bytes > 0) {
    Source& source = sources_[at_];
    const std::uint64_t step = std::min(bytes, source.bytes);
    source.address += step;
    source.bytes -= step;
    bytes -= step;
    if (source.bytes == 0) ++at_;
  }
}

Result<Fetch::State> Fetch::step(Stream& stream, const Memories& memories) {
  return gpu_ ? step_gpu(stream, memories) : step_host(stream, memories);
}

Result<Fetch::State> Fetch::step_host(Stream& stream, const Memories& memories) {
  std::size_t copied = 0;
  {
    Memories::View view(memories);
    to_.clear();
    if (!places_.gather(view, to_, most_fetched_pieces)) return State::refused;
    gather_sources(cut_to(to_, fetch_step_bytes));
    std::uint64_t there = 0;
    for (const iovec& piece : from_) there += piece.iov_len;
    cut_to(to_, there);
    const PeerMemoryAccess access;
    HEADRACE_TRY(n, stream.fetch(to_, from_));
    copied = n;
  }
  advance(copied);
  return state();
}

/// Begins a copy, or looks whether the one that has begun is done.
Result<Fetch::State> Fetch::step_gpu(Stream& stream, const Memories& memories) {
  if (running_ != nullptr) {
    HEADRACE_TRY(ended, running_->ended());
    if (!ended) return State::under_way;
    running_.reset();
    HEADRACE_TRY_VOID(stream.check_peer());
    return state();
  }
  HEADRACE_TRY(allowed, begin(stream, memories));
  return allowed ? State::under_way : State::refused;
}

/// False: its place is no longer registered. What has begun may write there until the copies of the NIC are
/// waited for, which who deregisters does.
Result<bool> Fetch::begin(Stream& stream, const Memories& memories) {
  Memories::View view(memories);
  to_.clear();
  std::optional<int> gpu;
  if (!places_.gather_alike(view, to_, most_pieces_of_gpu, gpu)) return false;
  const auto from = std::span(sources_).subspan(at_);
  const PeerMemoryAccess access;
  HEADRACE_TRY(begun, stream.begin_copy(to_, from, gpu));
  running_ = std::move(begun.copy);
  advance(begun.bytes);
  return true;
}

}  // namespace headrace::rail::stream
