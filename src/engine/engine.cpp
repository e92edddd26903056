// SPDX-License-Identifier: Apache-2.0
// Opening and ending an engine, and what backends tell it.
#include "engine/engine.hpp"

#include "base/random.hpp"
#include "base/utf8.hpp"
#include "engine/copy_pool.hpp"
#include "wire/agent_message.hpp"

#include <algorithm>
#include <thread>

namespace headrace::engine {

Engine::Engine(EngineSettings settings, Logger& logger)
    : settings_(std::move(settings)),
      incarnation_(random_u64() | 1),
      logger_(logger),
      log_(logger, "engine"),
      telemetry_(clock_),
      counters_(telemetry_),
      inbox_(settings_.inbox_capacity, settings_.inbox_bytes) {}

Result<std::shared_ptr<Engine>> Engine::open(EngineSettings settings, Logger& logger) {
  std::shared_ptr<Engine> engine(new Engine(std::move(settings), logger));
  HEADRACE_TRY(progress, Progress::open());
  engine->progress_ = std::move(progress);
  engine->progress_->start();
  return engine;
}

Engine::~Engine() { close(); }

Result<void> Engine::usable() const {
  if (fork_guard_.forked())
    return make_error(Code::invalid_argument,
                      "agent {} was opened before this process was forked: open one of its own in the child",
                      settings_.name);
  if (closed_.load(std::memory_order_acquire))
    return make_error(Code::invalid_argument, "agent {} is closed: open another", settings_.name);
  return {};
}

bool Engine::usable_status(Status& status) const {
  if (!fork_guard_.forked() && !closed_.load(std::memory_order_acquire)) return true;
  status = {Code::invalid_argument};
  return false;
}

void Engine::close() {
  if (closed_.exchange(true)) return;
  if (forked()) {  // the child has neither our threads nor any business with our peers
    for (auto& backend : backends_) (void)backend.release();
    (void)progress_.release();
    (void)callbacks_.release();
    return;
  }
  std::vector<std::shared_ptr<RequestCore>> requests;
  {
    const std::lock_guard lock(requests_mutex_);
    for (RequestCore* core : requests_)
      if (auto alive = core->weak_from_this().lock()) requests.push_back(std::move(alive));
  }
  for (const auto& core : requests) core->cancel();
  for (const auto& core : requests) core->close();
  requests.clear();

  const auto goodbye = wire::encode(wire::AgentMessage{wire::Goodbye{}});
  std::vector<std::shared_ptr<Link>> links;
  {
    const std::unique_lock lock(peers_mutex_);
    for (const auto& [token, link] : links_) links.push_back(link);
  }
  for (const auto& link : links) {
    if (const GatePass pass(link->gate());
        pass && link->connection() != nullptr && link->state() == LinkState::ready) {
      (void)link->backend().notify(link->connection(), HEADRACE_CHANNEL_AGENT, *goodbye);
    }
    link->close();
    drop_link(link);
  }
  end_what_was_let_go();
  // A thread that waits for one of the requests polls the instances until it sees that the request has ended.
  const bool instances_are_idle = progress_->let_waiters_return(Deadline::after(std::chrono::seconds(5)));
  progress_->stop();
  callbacks_->close();
  std::vector<std::shared_ptr<LocalRegion>> regions;
  {
    const std::unique_lock lock(regions_mutex_);
    regions_.for_each(
        [&](std::uint32_t, const std::shared_ptr<LocalRegion>& region) { regions.push_back(region); });
  }
  for (const auto& region : regions) give_back(*region);
  const std::unique_lock lock(backends_mutex_);
  bool mapped = false;
  {
    const std::shared_lock peers(peers_mutex_);
    for (const auto& mapping : mappings_) mapped = mapped || !mapping.expired();
  }
  // Else the last mapping or request takes the engine, and so the instances, along.
  if (!mapped && instances_are_idle) backends_.clear();
}

void Engine::defer(std::function<void()> work) { progress_->at(0, std::move(work)); }

void Engine::let_go_later(std::function<void()> end) {
  {
    const std::lock_guard lock(let_go_mutex_);
    if (!nobody_drives_) return defer(std::move(end));
  }
  end();
}

/// While somebody still drives: a request that was let go of has its backend's to give back. Those that
/// others hold have not.
void Engine::end_what_was_let_go() {
  const auto some_are_left = [this] {
    const std::lock_guard lock(requests_mutex_);
    return std::ranges::any_of(requests_, [](RequestCore* core) { return core->weak_from_this().expired(); });
  };
  const Deadline deadline = Deadline::after(std::chrono::seconds(5));
  while (some_are_left() && !deadline.expired()) {
    (void)progress_->poll();
    std::this_thread::yield();
  }
  {
    const std::lock_guard lock(let_go_mutex_);
    nobody_drives_ = true;
  }
  (void)progress_->poll();
}

std::shared_ptr<Link> Engine::link_of(std::uint64_t token) const {
  const std::shared_lock lock(peers_mutex_);
  const auto at = links_.find(token);
  return at != links_.end() ? at->second : nullptr;
}

void Engine::completed(std::uint64_t token, Status status, std::string_view text) {
  reinterpret_cast<RequestCore*>(token)->completed(status, text);
}

std::uint64_t Engine::accepted(BackendInstance& from, void* connection, std::string_view peer,
                               std::uint64_t incarnation) {
  if (closed_.load()) return 0;
  if (peer.empty() || !is_utf8(peer)) {
    log_.warn("refused a link over {} from an agent whose name is empty or not UTF-8", from.name());
    return 0;
  }
  if (peer == settings_.name && incarnation != incarnation_) {
    log_.warn("refused a link over {} from another agent that is called {} too: names must be unique",
              from.name(), peer);
    return 0;
  }
  const auto life = life_of(peer, incarnation);
  const auto link = add_link(life, from, connection);
  log_.info("peer {} connected over {}", peer, from.name());
  progress_->event();
  return link->token();
}

void Engine::link_event(std::uint64_t token, headrace_link_event_v1 event, Status status,
                        std::string_view text) {
  const auto link = link_of(token);
  if (!link) return;
  const auto life = link->life();
  const std::string peer = life ? life->name : "?";
  if (event == HEADRACE_LINK_READY) {
    link->set_ready();
    if (life) life->out_of_reach.store(false);
    log_.info("connected to peer {} over {}", peer, link->backend().name());
  } else {
    link->set_lost(status, text);
    log_.info("link to peer {} over {} is lost, {}: {}", peer, link->backend().name(), code_name(status.code),
              text);
    telemetry_.event("engine",
                     fmt::format("link to {} over {} lost: {}", peer, link->backend().name(), text));
    if (life) {
      const std::unique_lock lock(life->mutex);
      life->detail = std::string(link->backend().name()) + ": " + std::string(text);
      if (status.code == Code::peer_lost) life->out_of_reach.store(true);
    }
    // Nobody tells us any more when the peer revokes what is mapped over this link.
    end_mappings([&](const MappingRow& row) { return row.link == link; });
    close_link_later(link);
  }
  progress_->event();
}

void Engine::received(std::uint64_t token, std::uint32_t channel, std::string_view bytes) {
  const auto link = link_of(token);
  const auto life = link ? link->life() : nullptr;
  if (!life) return;
  if (channel == HEADRACE_CHANNEL_AGENT) {
    defer([this, link, message = std::string(bytes)] { agent_message(link, message); });
    return;
  }
  if (channel != HEADRACE_CHANNEL_USER) return;
  const auto message = wire::decode_user_message(bytes);
  if (!message) {
    log_.warn("dropped a message of peer {}: {}", life->name, message.error().message);
    return;
  }
  counters_.notifications_received.add(1);
  if (!inbox_.put({life->incarnation, message->request, message->post_number},
                  {life->name, std::string(message->payload)})) {
    counters_.notifications_dropped.add(1);
    log_.error(
        "dropped a notification of peer {}: {} messages or {} bytes wait already (options inbox_capacity, "
        "inbox_bytes); take them",
        life->name, settings_.inbox_capacity, settings_.inbox_bytes);
    return;
  }
  hand_over_notifications();
  progress_->event();
}

/// Gives what waits to the caller's callback, if there is one, on the callback thread.
void Engine::hand_over_notifications() {
  const std::lock_guard lock(on_notification_mutex_);
  if (!on_notification_) return;
  callbacks_->push([this, taken = on_notification_] {
    for (Notification& n : inbox_.take({})) taken(std::move(n));
  });
}

void Engine::on_notification(std::function<void(Notification)> taken) {
  {
    const std::lock_guard lock(on_notification_mutex_);
    on_notification_ = std::move(taken);
  }
  hand_over_notifications();
}

bool Engine::submit(void (*function)(void*), void* argument) {
  return copy_pool().submit([function, argument] { function(argument); });
}

void Engine::wake() { progress_->wake(); }

bool Engine::log_enabled(const std::string& backend, int level) {
  return static_cast<LogLevel>(level) <= logger_.level_of(backend).load(std::memory_order_relaxed);
}

void Engine::log(const std::string& backend, int level, std::string_view text) {
  if (log_enabled(backend, level)) logger_.write(static_cast<LogLevel>(level), backend, text);
}

void Engine::count(std::string_view counter, std::uint64_t amount) {
  telemetry_.counter(counter).add(amount);
}

}  // namespace headrace::engine
