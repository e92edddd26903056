// SPDX-License-Identifier: Apache-2.0
#include "host_link/link.hpp"

#include "base/errors.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

namespace headrace::host_link {
namespace {

constexpr int messages_a_turn = 64;  // so that one talkative peer does not keep the others waiting
// More than a socket holds, so that all is seen that was there when a turn began, and no flood is waited out.
constexpr int packets_a_turn = 512;
constexpr int last_turns = 1024;  // a lost link's ring is read to its end, but a ring holds only so much

}  // namespace

// ------------------------------------------------------------------ making

Link::Link(Site& site, Side side, UnixSocket socket, PeerProcess process)
    : site_(site), side_(side), serial_(site.next_serial()), process_(std::move(process)) {
  socket_.emplace(site.protocol, std::move(socket));
  const auto patience =
      static_cast<std::uint64_t>(std::max<std::int64_t>(site.link_settings.handshake_timeout.count(), 0));
  handshake_deadline_ns_ = site.host.now_ns() + patience;
}

Result<void> Link::begin(const headrace_connect_v1& args) {
  peer_name_ = args.peer_name;
  peer_incarnation_ = args.peer_incarnation;
  link_token_ = args.link_token;
  HEADRACE_TRY(pipe, MessagePipe::create(site_.link_settings.ring_bytes, site_.link_settings.queue_bytes));
  pipe_ = std::move(pipe);
  const std::lock_guard lock(control_mutex_);
  if (!watch(socket_->fd(), EPOLLIN, Watched::socket) ||
      !watch(pipe_->bell(), EPOLLIN | EPOLLET, Watched::bell)) {
    const int why = errno;
    unwatch_all();
    return os_error(why, "watch the link to peer {}", peer_name_);
  }
  (void)watch(process_.pidfd(), EPOLLIN, Watched::process);  // without one the socket tells, a little later
  return {};
}

Result<void> Link::begin() {
  peer_name_ = "of " + process_.text();  // until its hello
  const std::lock_guard lock(control_mutex_);
  if (!watch(socket_->fd(), EPOLLIN, Watched::socket)) return os_error(errno, "watch a link that came in");
  return {};
}

bool Link::watch(int fd, std::uint32_t events, Watched what) {
  if (fd < 0 || !site_.epoll().add(fd, events, watch_key(serial_, what))) return false;
  (what == Watched::socket ? watching_socket_
   : what == Watched::bell ? watching_bell_
                           : watching_process_) = true;
  return true;
}

void Link::unwatch_all() {
  if (std::exchange(watching_socket_, false)) (void)site_.epoll().remove(socket_->fd());
  if (std::exchange(watching_bell_, false)) (void)site_.epoll().remove(pipe_->bell());
  if (std::exchange(watching_process_, false)) (void)site_.epoll().remove(process_.pidfd());
}

// ------------------------------------------------------------------ what copies and requests ask

std::string Link::peer_text() const { return fmt::format("peer {} ({})", peer_name_, process_.text()); }

Outcome Link::why_lost() const {
  if (state() == LinkState::lost) {
    const std::lock_guard lock(state_mutex_);
    // Nothing was moved: the host may take another path.
    const bool never_was = lost_status_.code == Code::not_supported || lost_status_.code == Code::exhausted;
    return {{never_was ? lost_status_.code : Code::peer_lost, lost_status_.os_error}, lost_text_};
  }
  if (closing_.load(std::memory_order_acquire))
    return {{Code::canceled}, fmt::format("the link to peer {} was closed", peer_name_)};
  return {{Code::peer_lost}, peer_text() + " has ended"};
}

Status Link::check_usable() const {
  if (usable()) return {};
  const bool early = state() == LinkState::connecting && !closing_.load(std::memory_order_acquire);
  return {early ? Code::would_block : why_lost().status.code};
}

Status Link::notify(std::uint32_t channel, std::string_view bytes) {
  if (bytes.size() > max_message_bytes || channel == count_channel) return {Code::invalid_argument};
  if (const Status usable = check_usable(); !usable.ok()) return usable;
  const Status sent = messages().send(channel, bytes);
  if (sent.code == Code::corrupt) attend();  // nothing else would bring the progress thread to end it
  return sent;
}

bool Link::has_hung_up() {
  const std::lock_guard lock(control_mutex_);
  if (!socket_) return true;
  read_socket();
  update_interest();
  return state() == LinkState::lost;
}

bool Link::add_active(Post* post) {
  const std::lock_guard lock(posts_mutex_);
  in_flight_.fetch_add(1);
  post->place_in_link = active_.size();
  if (!usable()) return false;
  post->ref();
  active_.push_back(post);
  return true;
}

void Link::remove_active(Post* post) {
  {
    const std::lock_guard lock(posts_mutex_);
    const std::size_t place = post->place_in_link;
    if (place >= active_.size() || active_[place] != post) return;
    active_[place] = active_.back();
    active_[place]->place_in_link = place;
    active_.pop_back();
  }
  post->unref();
}

void Link::post_finished() {
  if (in_flight_.fetch_sub(1) == 1) in_flight_.notify_all();
}

// ------------------------------------------------------------------ for the site

void Link::introduce() {
  const std::lock_guard lock(control_mutex_);
  if (!socket_) return;
  if (side_ == Side::connecting) {
    const auto pipe = pipe_->descriptors();
    // The peer's view: the end with which it rings comes second, the end that it waits for third.
    socket_->send(Hello{site_.incarnation, peer_incarnation_, greeting(), site_.name},
                  {pipe[0], pipe[1], pipe[2], site_.live().fd()}, pipe_->ends_to_send());
    pipe_->forget_ends();
  } else {
    socket_->send(Welcome{site_.incarnation, greeting(), site_.name}, {site_.live().fd()});
  }
  say_first();
  socket_->send(Settled{});
  introduced_ = true;
  update_interest();
}

void Link::send(const ControlMessage& message, std::vector<int> descriptors, std::vector<SharedFd> kept,
                MessageName name) {
  if (!socket_) return;
  socket_->send(message, std::move(descriptors), std::move(kept), name);
  update_interest();
}

bool Link::take_back(MessageName name) {
  if (!socket_ || !socket_->take_back(name)) return false;
  update_interest();
  return true;
}

// ------------------------------------------------------------------ the socket

void Link::update_interest() {
  wants_retry_.store(socket_->out_of_descriptors(), std::memory_order_release);
  if (socket_->out_of_descriptors()) site_.wake();  // the progress thread winds the timer
  if (!watching_socket_ || socket_->blocked() == wants_write_) return;
  wants_write_ = socket_->blocked();
  (void)site_.epoll().modify(socket_->fd(), wants_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN,
                             watch_key(serial_, Watched::socket));
}

void Link::read_socket() {
  bool ended = false;
  for (int packets = 0; packets < packets_a_turn && state() != LinkState::lost; ++packets) {
    auto received = socket_->receive();
    if (received) {
      handle(std::move(received).value());
      continue;
    }
    Error& error = received.error();
    if (error.code == Code::would_block) return;
    // A peer that left with packets of ours unread is told as a reset before its own last packets, which say
    // why: look on.
    if (error.code == Code::peer_lost && !std::exchange(ended, true)) continue;
    if (error.code == Code::not_supported) {
      refuse(error.code, error.message);
    } else if (error.code == Code::exhausted) {
      refuse(error.code, fmt::format("agent {}: {}", site_.name, error.message));
    } else if (error.code == Code::peer_lost) {
      lose({Code::peer_lost}, peer_text() + " has ended or closed the link");
    } else {
      lose({Code::corrupt}, fmt::format("from {}: {}", peer_text(), error.message));
    }
  }
}

void Link::handle(ControlSocket::Received received) {
  const auto out_of_place = [&] {
    lose({Code::corrupt}, peer_text() + " sent a control message out of place");
  };
  if (auto* const hello = std::get_if<Hello>(&received.message)) {
    if (side_ != Side::accepting || greeted_) return out_of_place();
    return on_hello(*hello, std::move(received.descriptors));
  }
  if (auto* const welcome = std::get_if<Welcome>(&received.message)) {
    if (side_ != Side::connecting || greeted_) return out_of_place();
    return on_welcome(*welcome, std::move(received.descriptors));
  }
  if (auto* const refusal = std::get_if<Refusal>(&received.message))
    return lose({refusal->code}, fmt::format("{} refused the link: {}", peer_text(), refusal->text));
  if (std::holds_alternative<Goodbye>(received.message))
    return lose({Code::peer_lost}, peer_text() + " closed the link");
  if (!greeted_) return out_of_place();
  if (auto* const other = std::get_if<Other>(&received.message)) {
    const auto taken = on_other(*other, std::move(received.descriptors));
    if (!taken) lose({Code::corrupt}, fmt::format("from {}: {}", peer_text(), taken.error().message));
    return;
  }
  on_settled();
}

void Link::refuse(Code code, std::string text) {
  socket_->send(Refusal{code, text});
  lose({code}, std::move(text));
}

void Link::on_hello(const Hello& hello, std::vector<UniqueFd> descriptors) {
  peer_name_ = hello.name;
  peer_incarnation_ = hello.incarnation;
  if (process_.uid() != ::geteuid()) {
    return refuse(Code::not_supported,
                  fmt::format("agent {} runs as user {} and agent {} as user {}: {} links agents of one user",
                              hello.name, process_.uid(), site_.name, ::geteuid(), site_.protocol.backend));
  }
  if (hello.expected_incarnation != 0 && hello.expected_incarnation != site_.incarnation) {
    return refuse(Code::peer_lost,
                  fmt::format("agent {} has incarnation {:016x} here and {:016x} was looked for: it was "
                              "restarted, fetch its metadata again",
                              site_.name, site_.incarnation, hello.expected_incarnation));
  }
  if (const auto enough = site_.check_descriptors(); !enough)
    return refuse(enough.code(), enough.error().message);
  // The sender's order is: file, the end that rings its bell, the end of ours that waits, its live table.
  auto pipe = MessagePipe::adopt(std::move(descriptors[0]), std::move(descriptors[1]),
                                 std::move(descriptors[2]), site_.link_settings.queue_bytes);
  if (!pipe) return refuse(Code::corrupt, pipe.error().message);
  auto live = LiveView::open(std::move(descriptors[3]));
  if (!live) return refuse(Code::corrupt, live.error().message);
  pipe_ = std::move(pipe).value();
  live_ = std::move(live).value();
  if (!watch(pipe_->bell(), EPOLLIN | EPOLLET, Watched::bell))
    return refuse(Code::exhausted, "no room to watch the link's bell: " + os_error_text(errno));
  (void)watch(process_.pidfd(), EPOLLIN, Watched::process);
  greeted(hello.greeting);
  greeted_ = true;
}

void Link::on_welcome(const Welcome& welcome, std::vector<UniqueFd> descriptors) {
  if (peer_incarnation_ != 0 && welcome.incarnation != peer_incarnation_) {
    return lose({Code::peer_lost}, fmt::format("{} has incarnation {:016x} and {:016x} was looked for: it "
                                               "was restarted, fetch its metadata again",
                                               peer_text(), welcome.incarnation, peer_incarnation_));
  }
  if (welcome.name != peer_name_) {
    return lose({Code::peer_lost},
                fmt::format("{} is agent {}: the metadata of agent {} leads to another agent, "
                            "fetch it from that agent itself",
                            process_.text(), welcome.name, peer_name_));
  }
  auto live = LiveView::open(std::move(descriptors[0]));
  if (!live) return lose({Code::corrupt}, fmt::format("from {}: {}", peer_text(), live.error().message));
  live_ = std::move(live).value();
  greeted(welcome.greeting);
  greeted_ = true;
}

void Link::on_settled() {
  if (side_ == Side::accepting) {
    wanted_ = true;
    attend();
    return;
  }
  was_ready_.store(true, std::memory_order_release);
  auto connecting = LinkState::connecting;
  state_.compare_exchange_strong(connecting, LinkState::ready, std::memory_order_acq_rel);
  settled_.store(true, std::memory_order_release);
  attend();
}

// ------------------------------------------------------------------ changes of state

void Link::lose(Status status, std::string text) {
  {
    const std::lock_guard lock(state_mutex_);
    if (state() == LinkState::lost) return;
    lost_status_ = status;
    lost_text_ = std::move(text);
    state_.store(LinkState::lost, std::memory_order_release);
  }
  settled_.store(true, std::memory_order_release);
  attend();
}

bool Link::enter() {
  busy_.store(1, std::memory_order_seq_cst);
  if (!closing_.load(std::memory_order_seq_cst)) return true;
  leave();
  return false;
}

void Link::leave() {
  busy_.store(0, std::memory_order_seq_cst);
  if (closing_.load(std::memory_order_seq_cst)) busy_.notify_all();
}

bool Link::has_work() const {
  if (attention_.load(std::memory_order_acquire)) return true;
  return told_ready_ && !told_lost_ && (!pipe_->reader().empty() || pipe_->wants_room());
}

std::uint32_t Link::progress() {
  if (!has_work() || !enter()) return 0;
  std::uint32_t done = 0;
  if (attention_.exchange(false, std::memory_order_acq_rel)) {
    done += tell_changes();
    done += attended();
  }
  if (told_ready_ && !told_lost_) {
    done += deliver();
    if (pipe_->wants_room()) done += pipe_->flush();
    if (pipe_->broken()) lose({Code::corrupt}, peer_text() + " wrote nonsense into the message ring");
  }
  leave();
  return done;
}

std::uint32_t Link::tell_changes() {
  if (told_lost_) return 0;
  if (state() == LinkState::lost) {
    const bool intact = told_ready_ && lost_status_.code != Code::corrupt;
    for (int turn = 0; intact && turn < last_turns && deliver() > 0; ++turn) {
    }
    told_lost_ = true;
    {
      const std::lock_guard lock(control_mutex_);
      if (socket_) unwatch_all();
    }
    end_posts(why_lost());
    if (link_token_ == 0) {
      abandoned_ = true;
    } else {
      site_.host.link_event(link_token_, HEADRACE_LINK_LOST, lost_status_, lost_text_);
    }
    return 1;
  }
  if (told_ready_) return 0;
  if (side_ == Side::accepting) {
    if (!wanted_) return 0;
    announce_to_host();
    return 1;
  }
  if (state() != LinkState::ready) return 0;
  told_ready_ = true;
  site_.host.link_event(link_token_, HEADRACE_LINK_READY, {}, fmt::format("linked to {}", peer_text()));
  return 1;
}

void Link::announce_to_host() {
  // Ready first: another thread of the host may use the link before `accepted` returns.
  was_ready_.store(true, std::memory_order_release);
  auto connecting = LinkState::connecting;
  if (!state_.compare_exchange_strong(connecting, LinkState::ready, std::memory_order_acq_rel))
    return attend();
  settled_.store(true, std::memory_order_release);
  link_token_ = site_.host.accepted(handle(), peer_name_, peer_incarnation_);
  if (link_token_ == 0) {
    const std::lock_guard lock(control_mutex_);
    refuse(Code::peer_lost, fmt::format("agent {} does not want it", site_.name));
    return;
  }
  told_ready_ = true;
  site_.introduce(*this);
}

std::uint32_t Link::deliver() {
  RingReader& reader = pipe_->reader();
  RingReader::Message message;
  std::uint32_t count = 0;
  for (; count < messages_a_turn; ++count) {
    const RingReader::Pop popped = reader.pop(message);
    if (popped == RingReader::Pop::empty) break;
    if (popped == RingReader::Pop::corrupt || !deliver(message)) {
      lose({Code::corrupt}, peer_text() + " wrote nonsense into the message ring");
      break;
    }
  }
  if (count > 0) pipe_->settle();
  return count;
}

/// False: it is no count, though it is on their channel.
bool Link::deliver(const RingReader::Message& message) {
  if (message.channel != count_channel) {
    site_.host.received(link_token_, message.channel, message.bytes);
    return true;
  }
  CountRecord count;
  if (message.bytes.size() != sizeof count) return false;
  std::memcpy(&count, message.bytes.data(), sizeof count);
  site_.host.counted(link_token_, count.immediate, count.posts);
  return true;
}

void Link::end_posts(const Outcome& outcome) {
  std::vector<Post*> active;
  {
    const std::lock_guard lock(posts_mutex_);
    active = active_;
    for (Post* const post : active) post->ref();
  }
  for (Post* const post : active) {
    post->end_early(outcome);
    post->unref();
  }
}

void Link::on_event(Watched what, std::uint32_t events) {
  if (!enter()) return;
  if (what == Watched::process) lose({Code::peer_lost}, peer_text() + " has ended");
  if (what == Watched::socket) {
    const std::lock_guard lock(control_mutex_);
    if (socket_ && watching_socket_) {
      if ((events & EPOLLOUT) != 0) socket_->flush();
      read_socket();
      update_interest();
    }
  }
  leave();
}

void Link::on_timer(std::uint64_t now_ns) {
  if (!settled_.load(std::memory_order_acquire) && now_ns >= handshake_deadline_ns_) {
    lose({Code::timed_out}, fmt::format("{} did not answer within {} ms: is it stopped?", peer_text(),
                                        std::chrono::duration_cast<std::chrono::milliseconds>(
                                            site_.link_settings.handshake_timeout)
                                            .count()));
  }
  if (wants_retry_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(control_mutex_);
    if (!socket_) return;
    socket_->flush();
    update_interest();
  }
}

void Link::await_posts() {
  if (const std::uint32_t left = in_flight_.load(); left != 0) in_flight_.wait(left);
}

bool Link::arm() {
  if (attention_.load(std::memory_order_acquire)) return true;
  return pipe_ != nullptr && !pipe_->arm() && told_ready_ && !told_lost_;
}

void Link::disarm() {
  if (pipe_ != nullptr) pipe_->reader().disarm();
}

void Link::close() {
  closing_.store(true, std::memory_order_seq_cst);
  while (busy_.load(std::memory_order_seq_cst) != 0) busy_.wait(1);
  end_posts(why_lost());
  while (in_flight_.load() != 0) await_posts();
  const std::lock_guard lock(control_mutex_);
  if (!socket_) return;
  if (state() != LinkState::lost) socket_->send(Goodbye{});
  unwatch_all();
  socket_.reset();
  closed();
}

}  // namespace headrace::host_link
