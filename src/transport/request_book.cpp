// SPDX-License-Identifier: Apache-2.0
#include "transport/request_book.hpp"

#include "transport/region_table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::transport {

// ------------------------------------------------------------------ the beginning

Status RequestBook::begin(Request& request, std::uint64_t token, std::optional<PostMessage> message,
                          HostCalls& calls) {
  if (request.posted_) return {Code::invalid_argument};
  if (message) {
    if (!outbox_.knows(message->channel)) return {Code::invalid_argument};
    if (!outbox_.has_room(message->channel, message->bytes.size())) return {Code::would_block};
    request.message_ = outbox_.add(message->channel, std::move(message->bytes), OutMessage::State::waiting);
    request.message_->counted = message->counted;
  }
  start(request, token);
  if (request.cut_all_) {
    end_if_done(request, calls);
  } else {
    queue_of(request).push_back(&request);
  }
  return {};
}

void RequestBook::start(Request& request, std::uint64_t token) {
  request.posted_ = true;
  request.canceling_ = false;
  request.token_ = token;
  request.wire_id_ = next_wire_id_++;
  request.next_ = skip_empty_pages(request.args, {0, 0});
  request.cut_all_ = request.next_.page >= request.args.count || request.args.bytes == 0;
  request.uncut_bytes_ = request.args.bytes;
  request.chunks_ = 0;
  request.unanswered_ = 0;
  request.status_ = {};
  request.text_.clear();
  uncut_bytes_ += request.uncut_bytes_;
  posted_.emplace(request.wire_id_, &request);
}

// ------------------------------------------------------------------ chunks

Request* RequestBook::find(std::uint64_t wire_id) const {
  const auto at = posted_.find(wire_id);
  return at == posted_.end() ? nullptr : at->second;
}

Request* RequestBook::next(bool reads, bool writes, bool reads_first) const {
  reads = reads && !reads_.empty();
  writes = writes && !writes_.empty();
  if (reads && (reads_first || !writes)) return reads_.front();
  return writes ? writes_.front() : nullptr;
}

void RequestBook::cut(Request& request, const Chunk& chunk) {
  ++request.chunks_;
  ++request.unanswered_;
  uncut_bytes_ -= chunk.bytes;
  request.uncut_bytes_ -= chunk.bytes;
  request.next_ = skip_empty_pages(request.args, chunk.to);
  auto& queue = queue_of(request);
  queue.pop_front();
  if (request.next_.page < request.args.count) {
    queue.push_back(&request);  // others have their turn
    return;
  }
  request.cut_all_ = true;
  if (!request.is_write() || request.message_ == nullptr) return;
  request.message_->request = request.wire_id_;
  request.message_->chunks = request.chunks_;
  request.message_->state = OutMessage::State::ready;
  messages_changed_ = true;
}

void RequestBook::stop_cutting(Request& request) {
  if (request.cut_all_) return;
  std::erase(queue_of(request), &request);
  uncut_bytes_ -= std::exchange(request.uncut_bytes_, 0);
  request.cut_all_ = true;
  if (request.status_.ok()) request.status_.code = Code::canceled;
}

void RequestBook::refuse(Request& request, Status status, std::string text, HostCalls& calls) {
  stop_cutting(request);
  if (request.status_.ok() || request.status_.code == Code::canceled) {
    request.status_ = status;
    request.text_ = std::move(text);
  }
  end_if_done(request, calls);
}

void RequestBook::answered(std::uint64_t wire_id, const Chunk& chunk, const Answer& answer,
                           HostCalls& calls) {
  Request* const request = find(wire_id);
  if (request == nullptr || request->unanswered_ == 0) return;
  --request->unanswered_;
  if (!answer.status.ok() && (request->status_.ok() || request->canceling_)) fail(*request, chunk, answer);
  end_if_done(*request, calls);
}

void RequestBook::fail(Request& request, const Chunk& chunk, const Answer& answer) {
  stop_cutting(request);
  Status& status = request.status_ = answer.status;
  if (answer.good_bytes < chunk.bytes)
    status.page = position_at_byte(request.args, answer.good_bytes, chunk.from).page;
  request.text_ = answer.why.empty() ? fmt::format("peer {} refused page {}: {}", peer_name_, status.page,
                                                   why_refused(status.code))
                                     : fmt::format("page {} of {}: {}", status.page, peer_name_, answer.why);
  if (status.code == Code::not_supported)
    status.code = Code::invalid_argument;  // no other path may write it either
}

// ------------------------------------------------------------------ cancel

std::uint64_t RequestBook::cancel(Request& request, std::uint64_t now_ns, HostCalls& calls) {
  if (!request.posted_ || request.canceling_) return 0;
  request.canceling_ = true;
  request.cancel_ns_ = now_ns;
  ++canceling_;
  stop_cutting(request);
  end_if_done(request, calls);
  return request.posted_ && !request.is_write() ? request.wire_id_ : 0;
}

void RequestBook::abandoned(std::uint64_t wire_id) {
  Request* const request = find(wire_id);
  if (request == nullptr || request->unanswered_ == 0) return;
  --request->unanswered_;
  will_be_canceled(wire_id);
}

void RequestBook::will_be_canceled(std::uint64_t wire_id) {
  if (Request* const request = find(wire_id); request != nullptr && request->status_.ok())
    request->status_.code = Code::canceled;
}

std::optional<std::uint64_t> RequestBook::oldest_cancel_ns() const {
  if (canceling_ == 0) return std::nullopt;
  std::uint64_t oldest = UINT64_MAX;
  for (const auto& [wire_id, request] : posted_)
    if (request->canceling_) oldest = std::min(oldest, request->cancel_ns_);
  return oldest;
}

// ------------------------------------------------------------------ the end

void RequestBook::end_if_done(std::uint64_t wire_id, HostCalls& calls) {
  if (Request* const request = find(wire_id); request != nullptr) end_if_done(*request, calls);
}

void RequestBook::end_if_done(Request& request, HostCalls& calls) {
  if (!request.cut_all_ || request.unanswered_ > 0) return;
  if (request.canceling_) --canceling_;
  if (request.message_ != nullptr) release_message(request);
  posted_.erase(request.wire_id_);
  request.posted_ = false;
  calls.completed(request.token_, request.status_, std::move(request.text_));
}

/// The message of a post that ends goes out, or its place in the order is given up.
void RequestBook::release_message(Request& request) {
  const auto message = std::exchange(request.message_, nullptr);
  messages_changed_ = true;
  if (request.status_.ok()) {
    message->state = OutMessage::State::ready;
    return;
  }
  if (request.is_write()) {  // it may have chunks over there that announced the message
    message->request = request.wire_id_;
    message->chunks = request.chunks_;
  }
  message->state = OutMessage::State::dropped;
}

bool RequestBook::writes_are_under_way() const {
  return std::ranges::any_of(
      posted_, [](const auto& entry) { return entry.second->is_write() && entry.second->chunks() > 0; });
}

void RequestBook::end_all(Status status, const std::string& text, HostCalls& calls) {
  reads_.clear();
  writes_.clear();
  uncut_bytes_ = 0;
  canceling_ = 0;
  for (const auto& [wire_id, request] : std::exchange(posted_, {})) {
    request->message_ = nullptr;
    request->posted_ = false;
    calls.completed(request->token_, request->canceling_ ? Status{Code::canceled} : status, text);
  }
}

}  // namespace headrace::transport
