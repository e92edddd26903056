// SPDX-License-Identifier: Apache-2.0
#include "engine/links.hpp"

#include "base/errors.hpp"
#include "engine/request_core.hpp"
#include "wire/agent_message.hpp"

#include <algorithm>
#include <mutex>
#include <optional>

namespace headrace::engine {
namespace {

constexpr auto full_link_wait =
    std::chrono::milliseconds(1);                           // until a link with a full queue is asked again
constexpr auto closing_patience = std::chrono::seconds(1);  // with peers that do not take what was sent
constexpr auto look_again_after = std::chrono::milliseconds(1);  // a backend rings no bell when it has sent

std::string peer_of(const Link& link) {
  const auto life = link.life();
  return life ? life->name : "?";
}

/// What the peer's instance of this backend has said about how to reach it.
std::optional<std::string> connection_info(const PeerLife& life, const BackendInstance& backend) {
  const std::shared_lock lock(life.mutex);
  const int number = life.backend_number(backend.name());
  return number >= 0 ? life.backends[static_cast<std::size_t>(number)].info : std::nullopt;
}

}  // namespace

std::shared_ptr<Link> Links::find(std::uint64_t token) const {
  const std::shared_lock lock(mutex_);
  const auto at = links_.find(token);
  return at != links_.end() ? at->second : nullptr;
}

std::vector<std::shared_ptr<Link>> Links::all() const {
  const std::shared_lock lock(mutex_);
  std::vector<std::shared_ptr<Link>> all;
  all.reserve(links_.size());
  for (const auto& [token, link] : links_) all.push_back(link);
  return all;
}

// ------------------------------------------------------------------ making

Result<std::shared_ptr<Link>> Links::to(const std::shared_ptr<PeerLife>& life, BackendInstance& backend) {
  const std::lock_guard one_at_a_time(life->connecting);
  if (life->fate.load() != Fate::alive) return Error{Code::peer_lost, life->detail_text()};
  if (auto link = life->usable_link(backend)) return link;
  const auto info = connection_info(*life, backend);
  if (!info)
    return make_error(Code::not_found,
                      "the metadata of peer {} says nothing about how to reach it over {}: import its "
                      "connection information",
                      life->name, backend.name());
  // Known under its token before the backend is asked: it may speak of the link before `connect` returns.
  const auto link = make(life, backend);
  headrace_connect_v1 args{};
  args.struct_size = sizeof args;
  args.link_token = link->token();
  args.peer_name = life->name.c_str();
  args.peer_incarnation = life->incarnation;
  args.connection_info = {info->data(), info->size()};
  auto connection = backend.connect(args);
  if (!connection) {
    link->set_lost({connection.code()}, connection.error().message);
    end(link);  // a thread that waits for its connection waits no longer
    return std::move(connection).error();
  }
  if (link->set_connection(*connection)) ready(link);
  return link;
}

std::shared_ptr<Link> Links::make(const std::shared_ptr<PeerLife>& life, BackendInstance& backend) {
  std::shared_ptr<Link> link;
  {
    const std::unique_lock lock(mutex_);
    link = std::make_shared<Link>(next_token_++, backend, life);
  }
  add(link, *life);
  return link;
}

std::shared_ptr<Link> Links::accepted(const std::shared_ptr<PeerLife>& life, BackendInstance& backend,
                                      void* connection) {
  std::shared_ptr<Link> link;
  {
    const std::unique_lock lock(mutex_);
    link = std::make_shared<Link>(next_token_++, backend, life);
  }
  (void)link->set_connection(connection);
  (void)link->set_ready();
  life->out_of_reach.store(Code::ok);
  add(link, *life);
  ready(link);
  return link;
}

void Links::add(const std::shared_ptr<Link>& link, PeerLife& life) {
  {
    const std::unique_lock lock(mutex_);
    links_.emplace(link->token(), link);
  }
  {
    const std::unique_lock lock(life.mutex);
    life.links.push_back(link);
  }
  for (LinkWatcher* const watcher : watchers_) watcher->link_added(link);
}

// ------------------------------------------------------------------ what happens to them

void Links::event(std::uint64_t token, headrace_link_event_v1 event, Status status, std::string_view text) {
  const auto link = find(token);
  if (!link) return;
  if (event != HEADRACE_LINK_READY) return lost_by_backend(link, status, text);
  if (const auto life = link->life()) life->out_of_reach.store(Code::ok);
  log_.info("connected to peer {} over {}", peer_of(*link), link->backend().name());
  if (link->set_ready()) ready(link);
}

void Links::ready(const std::shared_ptr<Link>& link) {
  link->queue().open();
  begin_handing_over(link);
  progress_.event();
}

bool Links::adopt(const std::shared_ptr<Link>& link, std::vector<LinkQueue::Message>& left) {
  if (!link->queue().adopt(left)) return false;
  begin_handing_over(link);
  return true;
}

/// One thread at a time does it. Not here: this may be a backend's call.
void Links::begin_handing_over(const std::shared_ptr<Link>& link) {
  if (link->queue().begin_handing_over()) progress_.defer([this, link] { hand_over(link); });
}

/// What waited for it goes to the backend.
void Links::hand_over(const std::shared_ptr<Link>& link) {
  for (const auto& post : link->queue().take_posts()) post->link_ready();
  hand_over_messages(link);
}

void Links::hand_over_messages(const std::shared_ptr<Link>& link) {
  std::vector<LinkQueue::Message> left;
  hand_over_channel(*link, HEADRACE_CHANNEL_AGENT, left);
  hand_over_channel(*link, HEADRACE_CHANNEL_USER, left);
  if (!link->queue().end_handing_over())
    progress_.after(full_link_wait, [this, link] { hand_over_messages(link); });
  if (left.empty()) return;
  for (LinkWatcher* const watcher : watchers_) watcher->messages_left(link, left);
}

/// Until there is no room in the backend, or in the peer's inbox. `left`: those that cannot go here.
void Links::hand_over_channel(Link& link, std::uint32_t channel, std::vector<LinkQueue::Message>& left) {
  while (auto message = link.queue().next_message(channel)) {
    const GatePass pass(link.gate());
    const Status sent = pass ? link.send_waited(*message) : Status{Code::peer_lost};
    if (sent.code == Code::would_block) return link.queue().put_back(*std::move(message));
    if (!sent.ok()) left.push_back(*std::move(message));
  }
}

void Links::lost_by_backend(const std::shared_ptr<Link>& link, Status status, std::string_view text) {
  const std::string peer = peer_of(*link);
  const std::string& backend = link->backend().name();
  log_.info("link to peer {} over {} is lost, {}: {}", peer, backend, code_name(status.code), text);
  telemetry_.event("engine", fmt::format("link to {} over {} lost: {}", peer, backend, text));
  if (const auto life = link->life()) {
    const std::unique_lock lock(life->mutex);
    life->detail = fmt::format("{}: {}", backend, text);
    if (status.code == Code::peer_lost || status.code == Code::exhausted)
      life->out_of_reach.store(status.code);
  }
  lose(link, status, text);
}

void Links::lose(const std::shared_ptr<Link>& link, Status status, std::string_view why) {
  link->set_lost(status, why);
  for (LinkWatcher* const watcher : watchers_) watcher->link_lost(link);
  progress_.defer([this, link] { end(link); });
  progress_.event();
}

void Links::kill(const std::shared_ptr<Link>& link, std::string_view why) {
  log_.warn("closing the link to peer {} over {}: {}", peer_of(*link), link->backend().name(), why);
  link->set_lost({Code::canceled}, why);
  for (LinkWatcher* const watcher : watchers_) watcher->link_lost(link);
  end(link);
}

void Links::end(const std::shared_ptr<Link>& link) {
  link->close();
  give_up(link);
  {
    const std::unique_lock lock(mutex_);
    links_.erase(link->token());
  }
  if (const auto life = link->life()) {
    const std::unique_lock lock(life->mutex);
    std::erase(life->links, link);
  }
  for (LinkWatcher* const watcher : watchers_) watcher->link_gone(link);
  progress_.event();
}

/// What waited for it goes another way. Posts do so later: they may make a link to the same peer.
void Links::give_up(const std::shared_ptr<Link>& link) {
  LinkQueue::Left left = link->queue().close();
  if (!left.posts.empty())
    progress_.defer([posts = std::move(left.posts), status = link->lost_status(), why = link->lost_text()] {
      for (const auto& post : posts) post->link_lost(status, why);
    });
  if (left.messages.empty()) return;
  for (LinkWatcher* const watcher : watchers_) watcher->messages_left(link, left.messages);
}

// ------------------------------------------------------------------ closing

/// A peer that has read the goodbye closes its links: so it comes behind all else that is said to it.
void Links::close() {
  const Deadline deadline = progress_.deadline_in(closing_patience);
  const auto goodbye = wire::encode(wire::AgentMessage{wire::Goodbye{}});
  let_messages_leave(deadline);
  for (const auto& link : all())
    if (const GatePass pass(link->gate()); pass && link->state() == LinkState::ready)
      (void)link->send(HEADRACE_CHANNEL_AGENT, *goodbye);
  let_messages_leave(deadline);
  for (const auto& link : all()) {
    count_what_is_cut_off(link);
    end(link);
  }
}

/// Links that are still in the making have until the deadline as well, if messages wait for them.
void Links::let_messages_leave(Deadline deadline) const {
  const auto links = all();
  const auto have_left = [&] { return std::ranges::all_of(links, &Link::messages_have_left); };
  while (!have_left() && !deadline.expired(progress_.clock()))
    (void)progress_.wait(have_left, progress_.deadline_in(look_again_after));
}

void Links::count_what_is_cut_off(const std::shared_ptr<Link>& link) {
  std::uint64_t cut_off = 0;
  if (const GatePass pass(link->gate()); pass && link->state() == LinkState::ready)
    cut_off = link->backend().unsent(link->connection());
  if (cut_off == 0) return;
  for (LinkWatcher* const watcher : watchers_) watcher->messages_cut_off(link, cut_off);
}

}  // namespace headrace::engine
