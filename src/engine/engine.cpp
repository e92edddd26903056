// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.hpp"

#include "base/random.hpp"
#include "engine/copy_pool.hpp"
#include "wire/agent_message.hpp"

#include <thread>
#include <variant>

namespace headrace::engine {

// ------------------------------------------------------------------ opening and closing

Result<std::shared_ptr<Engine>> Engine::open(EngineSettings settings, Logger& logger, const Clock& clock) {
  HEADRACE_TRY(progress, Progress::open(clock));
  std::shared_ptr<Engine> engine(new Engine(std::move(settings), logger, clock, std::move(progress)));
  engine->this_ = engine;
  HEADRACE_TRY_VOID(engine->progress_->start());
  return engine;
}

Engine::Engine(EngineSettings settings, Logger& logger, const Clock& clock,
               std::unique_ptr<Progress> progress)
    : settings_(std::move(settings)),
      self_{settings_.name, random_u64() | 1},
      logger_(logger),
      log_(logger, "engine"),
      telemetry_(clock),
      counters_(telemetry_),
      callbacks_(std::make_unique<CallbackQueue>()),
      progress_(std::move(progress)),
      calls_(settings_.name),
      links_(*progress_, telemetry_, log_),
      peers_(self_, calls_, backends_, links_, *progress_, telemetry_, log_, settings_.peers),
      mappings_(this_, calls_, backends_, links_, peers_, *progress_),
      revocation_(calls_, links_, mappings_, own_flights_, *progress_, counters_, log_),
      agent_messages_(*progress_, [this](const auto& link, auto bytes) { agent_message(link, bytes); }),
      regions_(self_, calls_, backends_, revocation_, *progress_, *callbacks_),
      lists_(self_, calls_, regions_, peers_),
      paths_(backends_, regions_, lists_, links_),
      notifications_(self_, calls_, backends_, links_, peers_, *progress_, *callbacks_, counters_, log_,
                     settings_.inbox),
      arrivals_(calls_, *progress_, *callbacks_, telemetry_, log_),
      requests_(this_,
                {calls_, *progress_, *callbacks_, counters_, log_, links_, lists_, paths_, notifications_,
                 arrivals_, revocation_, requests_, own_flights_},
                settings_.check_overlap) {
  links_.watch(mappings_);
  links_.watch(revocation_);
  links_.watch(notifications_);
  peers_.on_gone([this](const PeerLife& life) {
    notifications_.forget(life);
    arrivals_.forget(life.name);
  });
}

Engine::~Engine() {
  close();
  if (!calls_.forked()) backends_.end();  // while all that they may call is there
}

Result<void> Engine::add_backend(const FoundBackend& found,
                                 std::vector<std::pair<std::string, std::string>> settings) {
  const Call call(calls_);
  HEADRACE_TRY_VOID(call.admitted());
  InstanceArgs args;
  args.agent_name = self_.name;
  args.incarnation = self_.incarnation;
  args.pool_threads = static_cast<std::uint32_t>(copy_pool_threads());
  args.runtime_dir = settings_.runtime_dir;
  args.reserved_descriptors = settings_.reserved_descriptors;
  args.settings = std::move(settings);
  args.clock = &progress_->clock();
  HEADRACE_TRY(opened, backends_.open(found, args, *this));
  return progress_->add(*opened);
}

void Engine::close() {
  if (!calls_.shut()) return;
  if (calls_.forked()) return abandon();
  while (!calls_.empty()) {
    progress_->event();  // a call that waits sees that the agent is closed
    std::this_thread::yield();
  }
  arrivals_.close();
  notifications_.inbox().close();
  requests_.cancel_all();
  links_.close();
  const bool quiet = requests_.release_all();
  requests_.end_what_was_let_go();
  // A thread that waits for one of the requests polls the instances until it sees that the request has ended.
  (void)progress_->let_waiters_return(progress_->deadline_in(std::chrono::seconds(5)));
  progress_->stop();
  callbacks_->close();
  regions_.close();
  // Else the last mapping or request takes the engine, and so the instances, along.
  if (quiet && !mappings_.any()) backends_.end();
}

/// A forked child has none of our threads, and the sockets are its parent's.
void Engine::abandon() {
  backends_.abandon();
  (void)progress_.release();
  (void)callbacks_.release();
}

// ------------------------------------------------------------------ what backends tell us

void Engine::completed(std::uint64_t token, Status status, std::string_view text) {
  requests_.completed(token, status, text);
}

std::uint64_t Engine::accepted(BackendInstance& from, void* connection, std::string_view peer,
                               std::uint64_t incarnation) {
  return peers_.accepted(from, connection, peer, incarnation);
}

void Engine::link_event(std::uint64_t token, headrace_link_event_v1 event, Status status,
                        std::string_view text) {
  links_.event(token, event, status, text);
}

void Engine::received(std::uint64_t token, std::uint32_t channel, std::string_view bytes) {
  const auto link = links_.find(token);
  const auto life = link ? link->life() : nullptr;
  if (!life) return;
  if (channel == HEADRACE_CHANNEL_USER) return user_message(link, life, bytes);
  if (channel != HEADRACE_CHANNEL_AGENT || agent_messages_.add(link, bytes)) return;
  flooded(link, fmt::format("more than {} agents' messages, or {} bytes of them, wait to be handled",
                            AgentMessages::most_messages, AgentMessages::most_bytes));
}

void Engine::user_message(const std::shared_ptr<Link>& link, const std::shared_ptr<PeerLife>& life,
                          std::string_view bytes) {
  if (!life->contends.load(std::memory_order_relaxed)) {
    if (!notifications_.received(*life, link->token(), bytes))
      flooded(link, "it sends more notifications than this agent has told it that there is room for");
    return;
  }
  // The life keeps it, so it does not keep the life. Few are held: they are not more than the inbox has room
  // for.
  const auto say = [this, from = life.get(), token = link->token(), message = std::string(bytes)] {
    (void)notifications_.held(*from, token, message);
  };
  if (NameContests::say_or_hold(*life, bytes.size(), say)) return;
  flooded(link,
          fmt::format("more than {} messages, or {} bytes of them, wait until it is known whether it is "
                      "that peer",
                      NameContests::most_held_messages, NameContests::most_held_bytes));
}

/// A peer that sends faster than we handle, for long, loses the link.
void Engine::flooded(const std::shared_ptr<Link>& link, const std::string& why) {
  if (link->state() == LinkState::lost) return;
  counters_.links_flooded.add();
  const auto life = link->life();
  log_.warn("closing the link to peer {} over {}: {}", life ? life->name : "?", link->backend().name(), why);
  links_.lose(link, {Code::exhausted}, why);
}

void Engine::agent_message(const std::shared_ptr<Link>& link, std::string_view bytes) {
  auto message = wire::decode_agent_message(bytes);
  const auto life = link->life();
  if (!life) return;
  if (!message) {
    log_.warn("dropped an agent's message of peer {}: {}", life->name, message.error().message);
  } else if (auto* revoke = std::get_if<wire::Revoke>(&*message)) {
    revocation_.asked(link, std::move(*revoke));
  } else if (const auto* revoked = std::get_if<wire::Revoked>(&*message)) {
    revocation_.answered(*link, revoked->sequence);
  } else if (const auto* ask = std::get_if<wire::Ask>(&*message)) {
    const auto answer = wire::encode(wire::AgentMessage{wire::Present{ask->sequence}});
    if (const GatePass pass(link->gate()); pass) (void)link->send(HEADRACE_CHANNEL_AGENT, *answer);
  } else if (const auto* present = std::get_if<wire::Present>(&*message)) {
    peers_.contests().present(*life, present->sequence);
  } else if (const auto* credit = std::get_if<wire::Credit>(&*message)) {
    link->credit().raise(*credit);
  } else if (std::holds_alternative<wire::Goodbye>(*message)) {
    log_.info("peer {} says goodbye", life->name);
    peers_.end_life(*life, Fate::left, fmt::format("peer {} has closed its agent", life->name));
  }
}

void Engine::counted(std::uint64_t token, Immediate immediate, std::uint64_t amount) {
  if (arrivals_.add_known(immediate, amount)) return;
  const auto link = links_.find(token);
  const auto life = link ? link->life() : nullptr;
  if (life) arrivals_.add(immediate, amount, life->name);
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
