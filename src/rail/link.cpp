// SPDX-License-Identifier: Apache-2.0
// The life of a request on a link: a number, chunks, ends, one end.
#include "rail/link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headrace::rail {
namespace {

template <class Region>
bool lacks_a_nic(const headrace_side_v1* side) {
  if (side == nullptr) return false;
  for (std::uint64_t i = 0; i < side->region_count; ++i) {
    const auto& keys = static_cast<const Region*>(side->regions[i])->keys;
    if (std::find(keys.begin(), keys.end(), no_key) != keys.end()) return true;
  }
  return false;
}

/// Whether there is a NIC that does not reach all memory of the request. One without bytes may have no
/// regions.
bool is_partial(const headrace_prepare_v1& args) {
  if (args.bytes == 0) return false;
  return lacks_a_nic<LocalRegion>(args.local) || lacks_a_nic<RemoteRegion>(args.remote);
}

/// Of copies by a GPU, which are cheap by the byte: each has to be begun by one side and seen by the other.
constexpr std::uint64_t gpu_chunk_bytes = 128 << 20;

bool is_of_gpu(const headrace_prepare_v1& args) {
  return args.local->region_count > 0 &&
         static_cast<const LocalRegion*>(args.local->regions[0])->memory.device.has_value();
}

}  // namespace

Link::Link(Setup setup, Nics& nics, Receives& receives, LinkEvents& events, const LinkOptions& options)
    : setup_(std::move(setup)),
      nics_(nics),
      events_(events),
      options_(options),
      rails_(setup_.rails),
      numbers_(first_number(setup_.id)),
      arrivals_(first_number(setup_.id)),
      told_below_(first_number(setup_.id)),
      sends_(nics),
      deliveries_(*this, receives, events, setup_.peer_nics) {
  for (std::uint32_t index = 0; index < setup_.rails; ++index) {
    rails_[index].index = index;
    if (setup_.pairs.empty()) continue;
    rails_[index].nic = setup_.pairs[index].here;
    rails_[index].peer_nic = setup_.pairs[index].there;
  }
}

Status Link::post(Request& request, const PostPlan& plan) {
  if (request.posted_ || (plan.counted && !request.is_write())) return {Code::invalid_argument};
  if (lost_) return {Code::peer_lost};
  const std::uint64_t counts = counts_of(request, plan);
  if (counts > UINT32_MAX) return {Code::invalid_argument};
  request.plan_ = plan;
  if (plan.counted) request.plan_.counted->amount = static_cast<std::uint32_t>(counts);
  request.posted_ = true;
  request.cut_all_ = request.settled_ = false;
  request.next_ = transport::skip_empty_pages(request.args, {0, 0});
  request.chunks_ = 0;
  request.unended_ = 0;
  request.number_ = 0;
  request.status_ = {};
  request.why_.clear();
  request.reason_at_ = 0;
  request.canceling_ = false;
  request.partial_ = is_partial(request.args);
  if (request.partial_) ++partials_;
  request.post_ = next_post_++;
  posted_.emplace(request.post_, &request);
  if (plan.counted) {
    without_number_.push_back(&request);
    give_numbers();
  } else {
    begin_cutting(request);
  }
  return {};
}

/// Above 32 bits: too many.
std::uint64_t Link::counts_of(const Request& request, const PostPlan& plan) const {
  if (!plan.counted) return 0;
  std::uint64_t parts = 1;
  if (plan.count_by == CountBy::page) parts = request.args.count;
  if (plan.count_by == CountBy::shard) parts = plan.shards != 0 ? plan.shards : rails();
  return parts > UINT32_MAX ? parts : parts * plan.counted->amount;
}

void Link::give_numbers() {
  while (!without_number_.empty() && numbers_.has_room()) {
    Request& request = *without_number_.front();
    without_number_.pop_front();
    const CountedAt& counted = *request.plan_.counted;
    request.number_ = numbers_.add(counted.scope, counted.immediate, counted.amount);
    begin_cutting(request);
  }
}

/// Without bytes a counted request is one empty chunk: its end says that the peer has the mark.
void Link::begin_cutting(Request& request) {
  const bool has_bytes = request.next_.page < request.args.count && request.args.bytes > 0;
  if (has_bytes || (request.number_ != 0 && request.number_ >= settle_below_)) {
    uncut_.push_back(&request);
    return;
  }
  cut_all(request);
  finish_if_done(request);
}

/// The next chunk of the request, the front of `uncut_`, over that rail. False: the NIC takes none now.
bool Link::cut(Request& request, Rail& rail, std::uint64_t now_ns) {
  const ProviderInfo& info = nics_[rail.nic]->provider().info();
  Piece piece{&request, {request.next_, {request.args.count, 0}, 0, 0}};
  if (request.args.bytes > 0)
    piece.chunk = transport::cut_chunk(
        request.args, request.next_,
        {info.near && is_of_gpu(request.args) ? gpu_chunk_bytes : options_.chunk_bytes, info.max_moves});
  piece.chunk.number = request.chunks_;
  const bool marked = request.number_ != 0 && request.number_ >= settle_below_ && !request.settled_ &&
                      request.chunks_ < most_marked_chunks;
  std::optional<std::uint32_t> mark;
  if (marked) mark = mark_of(request.number_, request.chunks_);
  if (!marked && piece.chunk.bytes == 0) {  // a rail has died meanwhile: only its announcement is left
    request.settled_ = true;
    after_cut(request, piece.chunk);
    piece_ended(piece, {}, rail);
    return true;
  }
  const Status posted = post_piece(rail, piece, mark, now_ns);
  if (posted.code == Code::would_block || posted.code == Code::peer_lost) return false;
  if (!marked) request.settled_ = true;
  after_cut(request, piece.chunk);
  if (!posted.ok()) piece_ended(piece, posted, rail);
  return true;
}

void Link::after_cut(Request& request, const transport::Chunk& chunk) {
  ++request.chunks_;
  ++request.unended_;
  request.next_ = transport::skip_empty_pages(request.args, chunk.to);
  uncut_.pop_front();  // it is the front
  if (request.next_.page < request.args.count) {
    uncut_.push_back(&request);  // others have their turn
  } else {
    cut_all(request);
  }
}

void Link::cut_all(Request& request) {
  request.cut_all_ = true;
  if (request.number_ == 0 || request.settled_ || request.number_ < settle_below_ || request.chunks_ == 0 ||
      request.chunks_ > most_marked_chunks)
    return;
  Announcement announcement = numbers_.announcement(request.number_);
  announcement.chunks = request.chunks_;
  say(announcement);
}

void Link::cancel(Request& request, std::uint64_t now_ns) {
  if (!request.posted_ || std::exchange(request.canceling_, true)) return;
  canceling_.push_back({&request, now_ns});
  std::erase(without_number_, &request);
  stop_cutting(request, {Code::canceled}, "it was canceled");
  finish_if_done(request);
}

void Link::fail(Request& request, Status status, const std::string& why) const {
  if (!request.status_.ok()) return;
  request.status_ = status;
  request.why_ = fmt::format("{} of {} bytes {} {}: ", request.is_write() ? "write" : "read",
                             request.args.bytes, request.is_write() ? "to" : "from", peer_name());
  request.reason_at_ = request.why_.size();
  request.why_ += why;
}

namespace {

std::string_view refusal(Code code) {
  if (code == Code::not_found) return "the peer refuses the range, or has no such memory";
  if (code == Code::corrupt) return "the descriptor of the peer's memory is damaged";
  if (code == Code::invalid_argument)
    return "the range is outside of the memory here, or the descriptor is for other NICs";
  return code_sentence(code);
}

/// Which pages: the end of a chunk is where the next one begins.
std::string pages_of(const transport::Chunk& chunk) {
  const std::uint64_t last = chunk.to.skip > 0 ? chunk.to.page : chunk.to.page - 1;
  if (last == chunk.from.page) return fmt::format("page {}", last);
  return fmt::format("pages {} to {}", chunk.from.page, last);
}

}  // namespace

void Link::stop_cutting(Request& request, Status status, const std::string& why) {
  fail(request, status, why);
  request.cut_all_ = true;
  std::erase(uncut_, &request);
}

/// A piece of the request has ended: with ok, or with what no other rail could mend.
void Link::piece_ended(const Piece& piece, Status status, const Rail& rail) {
  Request& request = *piece.request;
  --request.unended_;
  if (!status.ok())
    stop_cutting(request, status,
                 fmt::format("{} over {}: {}", pages_of(piece.chunk), nics_[rail.nic]->provider().info().name,
                             refusal(status.code)));
  finish_if_done(request);
}

void Link::finish_if_done(Request& request) {
  if (!request.cut_all_ || request.unended_ > 0) return;
  if (request.number_ != 0) use_up_number(request);
  posted_.erase(request.post_);
  if (request.partial_) --partials_;
  if (request.canceling_)
    std::erase_if(canceling_, [&](const Canceling& each) { return each.request == &request; });
  request.posted_ = false;
  tell_end(request, request.status_);
}

void Link::tell_end(Request& request, Status status) {
  if (request.message == 0) {
    events_.ended(*this, request, status);
  } else if (const auto taken = deliveries_.read_ended(request, status); !taken) {
    lie_ = taken.error().message;
  }
}

Status Link::send(const OutMessage& message) {
  if (lost_) return {Code::peer_lost};
  return sends_.post(message);
}

void Link::tell_sent() {
  while (!sends_.ended.empty())
    for (const Sends::Ended& each : std::exchange(sends_.ended, {}))
      events_.sent(*this, each.token, each.status, each.why);
}

/// All pieces have ended. If marks do not tell the peer, an announcement without marks does.
void Link::use_up_number(Request& request) {
  const bool by_marks =
      request.status_.ok() && !request.settled_ && request.number_ >= settle_below_ && request.chunks_ > 0;
  if (request.status_.ok()) {
    numbers_.placed(request.number_);
  } else {
    numbers_.failed(request.number_);
  }
  if (!by_marks && !numbers_.counted(request.number_)) say(numbers_.announcement(request.number_));
}

bool Link::sends() const {
  const bool on_rails = std::any_of(rails_.begin(), rails_.end(), [](const Rail& rail) {
    return !rail.flights.empty() || !rail.unfinished.empty();
  });
  return on_rails || !posted_.empty() || !repeats_.empty() || !outgoing_.empty();
}

std::size_t Link::held() const {
  std::size_t count = posted_.size() + repeats_.size() + outgoing_.size() + arrivals_.open() + sends_.size() +
                      deliveries_.open();
  for (const Rail& rail : rails_) count += rail.flights.size() + rail.unfinished.size();
  return count;
}

}  // namespace headrace::rail
