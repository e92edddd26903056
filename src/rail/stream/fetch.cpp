// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/fetch.hpp"

#include "memory/peer_memory_access.hpp"

#include <algorithm>
#include <cstring>

namespace headrace::rail::stream {
namespace {

constexpr std::size_t most_fetched_pieces = 64;
constexpr std::uint64_t fetch_step_bytes = 256 * 1024;  // deregistering waits for so much

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
  static_assert(sizeof(Source) == source_bytes);
  return {reinterpret_cast<const char*>(sources.data()), sources.size() * source_bytes};
}

Result<std::vector<Source>> read_sources(std::string_view payload, std::uint64_t bytes) {
  std::vector<Source> sources(payload.size() / source_bytes);
  if (!sources.empty()) std::memcpy(sources.data(), payload.data(), sources.size() * source_bytes);
  std::uint64_t left = bytes;
  for (const Source& source : sources) {
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

Result<Fetch::State> Fetch::step(Stream& stream, const Memories& memories) {
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
  places_.advance(copied);
  while (copied > 0) {
    Source& source = sources_[at_];
    const auto step = std::min<std::uint64_t>(copied, source.bytes);
    source.address += step;
    source.bytes -= step;
    copied -= step;
    if (source.bytes == 0) ++at_;
  }
  return places_.left() == 0 ? State::done : State::under_way;
}

}  // namespace headrace::rail::stream
