// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/link.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <thread>

namespace headrace::tcp {
namespace {

// A canceled write waits for the peer's word this long, then the link goes: well before the second that the
// contract allows.
constexpr std::uint64_t cancel_patience_ns = 600'000'000;

// How long the posts of a lost link wait for their end after its sockets were reset: a peer that still places
// a write sees the reset within a millisecond of running (Receiver::writes_have_ended).
constexpr auto end_of_writes = std::chrono::milliseconds(5);

// What a socket may take at least, however little is left: enough to keep it busy over the way there and back
// inside a machine (4 GB/s for half a millisecond), and so that the last chunk of one is no long wait for
// all.
constexpr std::uint64_t least_window_bytes = 2 << 20;
constexpr std::uint64_t least_chunk_bytes = 256 * 1024;

// From so many links on, the pings of several fall on one wake-up of an I/O thread (Heartbeat::due_ns).
constexpr unsigned many_links = 16;

/// How the posts of a link end that was lost for this reason.
Code code_for_posts(Code loss) {
  switch (loss) {
    case Code::canceled:
      return Code::backend_failed;  // closed for another's sake
    case Code::not_supported:
    case Code::corrupt:
    case Code::backend_failed:
      return loss;
    default:
      return Code::peer_lost;
  }
}

/// Of a post or message on a link that is not ready.
Code code_of_refusal(Link::State state) {
  if (state == Link::State::connecting) return Code::would_block;
  return state == Link::State::lost ? Code::peer_lost : Code::canceled;
}

}  // namespace

// ------------------------------------------------------------------ Link

Link::Link(Context& context, std::string peer_name, std::uint64_t peer_incarnation, std::uint64_t id,
           std::uint64_t token, unsigned sockets)
    : transport::HostCalls::Link(context.host),
      context_(context),
      peer_name_(std::move(peer_name)),
      peer_incarnation_(peer_incarnation),
      id_(id),
      sockets_(sockets),
      accepted_(token == 0),
      limits_{context.settings.chunk_bytes, max_ranges},
      token_(token),
      mutex_(context.settings.cores > 2),
      state_(token == 0 ? State::ready : State::connecting),
      channels_(sockets) {
  context_.links.fetch_add(1, std::memory_order_relaxed);
}

Link::~Link() { context_.links.fetch_sub(1, std::memory_order_relaxed); }

std::chrono::nanoseconds Link::ping_after() const {
  const Settings& settings = context_.settings;
  if (accepted_) return settings.heartbeat_interval;
  if (context_.links.load(std::memory_order_relaxed) >= many_links)
    return settings.heartbeat_interval * 15 / 16;
  return std::min(settings.heartbeat_interval * 5 / 4,
                  (settings.heartbeat_interval + settings.heartbeat_timeout) / 2);
}

bool Link::connecting() const {
  const std::scoped_lock lock(mutex_);
  return state_ == State::connecting;
}

bool Link::alive() const {
  const std::scoped_lock lock(mutex_);
  return state_ == State::connecting || state_ == State::ready;
}

std::vector<std::shared_ptr<Channel>> Link::channels() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<Channel>> all;
  for (const auto& channel : channels_)
    if (channel != nullptr) all.push_back(channel);
  return all;
}

bool Link::is_small(const RemoteRequest& request) const {
  return request.args.bytes <= context_.settings.direct_bytes;
}

Status Link::post(RemoteRequest& request, const headrace_post_v1& args) {
  if (args.has_message != 0 && !transport::may_be_sent(args.channel, args.message.length))
    return {Code::invalid_argument};
  auto message = transport::message_of(args);
  // Questions are short, whatever they ask for: sent from here they spare a wake-up of each I/O thread, one
  // after the other, before the peer hears of any. What more there is to ask is for the I/O threads, which
  // wake meanwhile.
  const bool from_here = is_small(request) || !request.is_write();
  HostCalls calls(*this);
  std::vector<std::shared_ptr<Channel>> helpers;
  {
    const std::scoped_lock lock(mutex_);
    if (state_ != State::ready) return {code_of_refusal(state_)};
    const Status begun = requests_.begin(request, args.token, std::move(message), calls);
    if (!begun.ok()) return begun;
    messages_changed();
    helpers = claim_for(request);
  }
  for (const auto& channel : helpers) {
    if (from_here) {
      channel->pump(calls, Driver::caller);
    } else {
      channel->kick();
    }
  }
  return {};
}

bool Link::poll(RemoteRequest& request) {
  if (!is_small(request)) return false;  // the I/O threads are better at it
  HostCalls calls(*this);
  std::shared_ptr<Channel> channel;
  {
    const std::scoped_lock lock(mutex_);
    if (!request.posted() || state_ != State::ready || request.chunks() == 0) return false;
    channel = channels_[request.last_channel];
  }
  if (channel == nullptr || !channel->receive(calls, Driver::caller)) return false;
  calls.flush();  // the sooner the better: the end may be what the caller waits for
  channel->pump(calls, Driver::caller);
  return true;
}

void Link::cancel(RemoteRequest& request) {
  const std::uint64_t now = context_.host.now_ns();
  HostCalls calls(*this);
  std::uint64_t read = 0;
  std::shared_ptr<Channel> first;
  {
    const std::scoped_lock lock(mutex_);
    read = requests_.cancel(request, now, calls);
    messages_changed();
    first = channels_.front();
  }
  if (read == 0) {  // a write ends with the peer's word, or with the link: check_cancels
    if (first != nullptr) first->hurry();
    return;
  }
  // Its data may come whenever they like once they are kept out of the memory.
  for (const auto& channel : channels()) channel->abandon(read);
  const std::scoped_lock lock(mutex_);
  requests_.end_if_done(read, calls);
  messages_changed();
}

Status Link::notify(std::uint32_t channel, std::string_view bytes) {
  if (!transport::may_be_sent(channel, bytes.size())) return {Code::invalid_argument};
  HostCalls calls(*this);
  std::shared_ptr<Channel> first;
  {
    const std::scoped_lock lock(mutex_);
    if (state_ != State::ready) return {code_of_refusal(state_)};
    const auto number = static_cast<std::uint16_t>(channel);
    if (!outbox_.knows(number)) return {Code::invalid_argument};
    if (!outbox_.has_room(number, bytes.size())) return {Code::would_block};
    outbox_.add(number, std::string(bytes), transport::OutMessage::State::ready);
    if (channels_[0] != nullptr && channels_[0]->claim()) first = channels_[0];
  }
  if (first != nullptr) first->pump(calls, Driver::caller);
  return {};
}

std::uint64_t Link::unsent() const {
  const std::scoped_lock lock(mutex_);
  return outbox_.unsent();
}

void Link::detach(const Region& region) {
  for (const auto& channel : channels()) channel->detach(region);
}

// ------------------------------------------------------------------ work for channels

/// An idle channel, which the caller must pump.
std::shared_ptr<Channel> Link::claim_idle(unsigned first) {
  if (state_ != State::ready) return nullptr;
  for (unsigned i = 0; i < sockets_; ++i) {
    const auto& channel = channels_[(first + i) % sockets_];
    if (channel != nullptr && channel->claim()) return channel;
  }
  return nullptr;
}

/// An idle channel for a small request, which the caller must pump: the one that the last small request had,
/// if that has its answer, since its threads still look for more work at both ends. Of several at once each
/// has a channel.
std::shared_ptr<Channel> Link::claim_awake() {
  const auto quiet = [&](unsigned index) {
    const auto& channel = channels_[index];
    return channel != nullptr && channel->quiet();
  };
  for (unsigned i = 0; i < sockets_; ++i)
    if (const unsigned index = (last_small_ + i) % sockets_; quiet(index))
      return claim_idle(last_small_ = index);
  return claim_idle(next_channel_++);
}

/// The channels that begin with a new post, which the caller must pump.
std::vector<std::shared_ptr<Channel>> Link::claim_for(const RemoteRequest& request) {
  std::vector<std::shared_ptr<Channel>> claimed;
  if (is_small(request)) {
    // A message goes over socket 0: best right behind its bytes.
    auto channel = request.has_message() ? claim_idle(0) : claim_awake();
    if (channel != nullptr) claimed.push_back(std::move(channel));
    return claimed;
  }
  for (std::uint64_t left = request.args.bytes; left > 0; left -= std::min(left, limits_.bytes)) {
    auto channel = claim_idle(next_channel_++);
    if (channel == nullptr) break;
    claimed.push_back(std::move(channel));
  }
  return claimed;
}

// Towards the end of the work no socket takes so much that the others wait for it.

std::uint64_t Link::window_now() const {
  return std::min(context_.settings.window_bytes,
                  std::max(least_window_bytes, requests_.uncut_bytes() / attached_));
}

transport::ChunkLimits Link::limits_of(const RemoteRequest& request) const {
  transport::ChunkLimits limits = limits_;
  limits.bytes = std::min(limits.bytes, std::max(least_chunk_bytes, requests_.uncut_bytes() / attached_ / 4));
  if (request.of_gpu()) limits.bytes = std::min(limits.bytes, context_.settings.gpu_chunk_bytes);
  return limits;
}

RemoteRequest* Link::next_work(bool reads, bool writes, bool reads_first) const {
  return static_cast<RemoteRequest*>(requests_.next(reads, writes, reads_first));
}

void Link::took_chunk(RemoteRequest& request, const transport::Chunk& chunk, unsigned channel) {
  request.last_channel = channel;
  requests_.cut(request, chunk);
  messages_changed();
}

void Link::refuse(RemoteRequest& request, HostCalls& calls, Status status, std::string text) {
  requests_.refuse(request, status, std::move(text), calls);
  messages_changed();
}

void Link::answered(const Unanswered& chunk, const transport::RequestBook::Answer& answer, HostCalls& calls) {
  requests_.answered(chunk.wire_id, chunk.chunk, answer, calls);
  messages_changed();
}

/// A message may have become ready: socket 0 takes it.
void Link::messages_changed() {
  if (!requests_.messages_changed()) return;
  const auto& first = channels_[0];
  if (state_ != State::ready || first == nullptr || !outbox_.anything_ready()) return;
  if (first->claim()) first->kick();
}

/// Gives the host the messages whose turn has come, in order: one thread at a time does it for all.
void Link::deliver() {
  std::unique_lock lock(mutex_);
  if (delivering_) return;  // that thread looks again before it leaves
  delivering_ = true;
  bool told = false;
  while (state_ != State::closed) {
    auto message = inbox_.next();
    while (auto ack = inbox_.acknowledgement()) {
      message_acks_.push_back(*ack);
      told = true;
    }
    if (!message) break;
    lock.unlock();
    transport::tell(context_.host, token_.load(), *message);
    lock.lock();
  }
  delivering_ = false;
  if (told && state_ == State::ready && channels_[0] != nullptr && channels_[0]->claim())
    channels_[0]->kick();
}

// ------------------------------------------------------------------ beginning and end

void Link::accepted(std::uint64_t token) { token_.store(token); }

/// Whether the channel is wanted, and whether it makes the link ready.
std::pair<bool, bool> Link::take_in(const std::shared_ptr<Channel>& channel, unsigned index) {
  const std::scoped_lock lock(mutex_);
  const bool open = state_ == State::connecting || state_ == State::ready;
  if (!open || index >= sockets_ || channels_[index] != nullptr) return {false, false};
  channels_[index] = channel;
  ++attached_;
  return {true, std::exchange(state_, State::ready) == State::connecting};
}

bool Link::attach(unsigned index, UniqueFd fd, std::string_view early) {
  const auto channel =
      std::make_shared<Channel>(shared_from_this(), index, std::move(fd), context_.some_thread());
  if (auto watched = channel->watch(); !watched) {
    context_.log(HEADRACE_LOG_WARN, "socket {} to peer {}: {}", index, peer_name_, watched.error().message);
    if (index == 0) lose({watched.error().code}, watched.error().message);  // posts would wait for it
    return false;
  }
  HostCalls calls(*this);
  const auto [wanted, first] = take_in(channel, index);
  if (!wanted) {
    channel->close(
        true);  // with a goodbye: what the peer still hears over other sockets is not cut off by this one
    return false;
  }
  if (first)
    context_.host.link_event(token_.load(), HEADRACE_LINK_READY, {},
                             fmt::format("connected to peer {}", peer_name_));
  channel->start(calls, early);
  return true;
}

/// Returns when to check again.
std::uint64_t Link::check_cancels(std::uint64_t now_ns, HostCalls& calls) {
  const std::scoped_lock lock(mutex_);
  const auto since = requests_.oldest_cancel_ns();
  if (!since) return Watched::never;
  if (now_ns < *since + cancel_patience_ns) return *since + cancel_patience_ns;
  calls.lose({Code::canceled},
             fmt::format("closed to end a canceled request that it did not confirm within {} ms",
                         (now_ns - *since) / 1'000'000));
  return Watched::never;
}

/// Ends every post; no channel may be open any more.
void Link::end_all(HostCalls& calls, Status status, const std::string& text) {
  const std::scoped_lock lock(mutex_);
  requests_.end_all(status, text, calls);
  outbox_.clear();
  inbox_.clear();
}

/// What came in whole is still delivered, before the host hears of the end.
void Link::deliver_all() {
  for (bool busy = true; busy;) {
    deliver();
    {
      const std::scoped_lock lock(mutex_);
      busy = delivering_;  // another thread is at it
    }
    if (busy) std::this_thread::yield();
  }
}

void Link::lose(Status status, std::string why) {
  HostCalls calls(*this);
  {
    const std::scoped_lock lock(mutex_);
    if (state_ == State::lost || state_ == State::closed) return;
    state_ = State::lost;
  }
  for (const auto& channel : channels()) channel->close(false);
  // The caller may fill the memory of a write anew as soon as the write has ended.
  if (writes_are_under_way()) std::this_thread::sleep_for(end_of_writes);
  deliver_all();
  const std::string text = fmt::format("peer {}: {}", peer_name_, why);
  end_all(calls, {code_for_posts(status.code), status.os_error}, text);
  calls.flush();
  context_.host.count("links_lost", 1);
  context_.log(HEADRACE_LOG_INFO, "link lost, {}", text);
  bool closed = false;
  {
    const std::scoped_lock lock(mutex_);
    closed = state_ == State::closed;
  }
  if (const std::uint64_t token = token_.load(); token != 0 && !closed)
    context_.host.link_event(token, HEADRACE_LINK_LOST, status, text);
}

bool Link::writes_are_under_way() const {
  const std::scoped_lock lock(mutex_);
  return requests_.writes_are_under_way();
}

void Link::lose_if_closed() {
  const auto all = channels();
  if (std::ranges::any_of(all, &Channel::closed_by_peer))
    lose({Code::peer_lost}, "it has closed the link, and makes a new one");
}

void Link::disconnect() {
  {
    HostCalls calls(*this);
    bool ready = false;
    {
      const std::scoped_lock lock(mutex_);
      ready = std::exchange(state_, State::closed) == State::ready;
    }
    // A goodbye would come behind what the peer has still to read of writes that end here.
    const bool writes = writes_are_under_way();
    for (const auto& channel : channels()) channel->close(ready && !writes);
    if (writes) std::this_thread::sleep_for(end_of_writes);
    end_all(calls, {Code::canceled}, fmt::format("the link to peer {} was closed", peer_name_));
  }
  wait_for_host_calls();
  // Channels hold the link: let them go, or neither ever would.
  const std::scoped_lock lock(mutex_);
  channels_.assign(channels_.size(), nullptr);
}

}  // namespace headrace::tcp
