// SPDX-License-Identifier: Apache-2.0
#include "support/plugin_host.hpp"

#include <fmt/format.h>

#include <utility>

namespace headrace::test {
namespace {

std::string_view view(const char* text, std::size_t length) {
  return text == nullptr ? std::string_view() : std::string_view(text, length);
}

Status status_of(headrace_status_v1 status) {
  return {static_cast<Code>(status.code), status.os_error, status.page};
}

PluginHost& self(void* context) { return *static_cast<PluginHost*>(context); }

constexpr unsigned slot_bits = 32;
std::uint64_t slot_of(std::uint64_t token) { return token & ((1ULL << slot_bits) - 1); }
std::string words(std::uint64_t token) {
  return fmt::format("{} of slot {}", token >> slot_bits, slot_of(token));
}

}  // namespace

PluginHost::PluginHost(Args args)
    : args_(std::move(args)),
      bell_(EventFd::create().value()),
      pool_(WorkerPool::open("test-pool", args_.pool_threads, 4096).value()) {
  table_.struct_size = sizeof(table_);
  table_.abi_minor = HEADRACE_BACKEND_ABI_MINOR;
  table_.pool_threads = static_cast<std::uint32_t>(args_.pool_threads);
  table_.context = this;
  table_.agent_name = args_.agent_name.c_str();
  table_.incarnation = args_.incarnation;
  table_.log_enabled = [](void*, std::int32_t level) -> int { return level <= HEADRACE_LOG_DEBUG ? 1 : 0; };
  table_.log = [](void* context, std::int32_t level, const char* text, std::size_t length) {
    PluginHost& host = self(context);
    {
      const std::scoped_lock lock(host.mutex_);
      host.may_be_called("log");
      host.log_.push_back(fmt::format("{} {}", level, view(text, length)));
    }
    if (host.on_log) host.on_log();
  };
  table_.now_ns = [](void* context) {
    PluginHost& host = self(context);
    return host.args_.clock != nullptr ? host.args_.clock->now_ns() : host.steady_.now_ns();
  };
  table_.count = [](void* context, const char* counter, std::uint64_t amount) {
    PluginHost& host = self(context);
    const std::scoped_lock lock(host.mutex_);
    host.may_be_called("count");
    host.counters_[counter] += amount;
  };
  table_.completed = [](void* context, std::uint64_t token, headrace_status_v1 status, const char* text,
                        std::size_t length) {
    self(context).completed(token, status_of(status), view(text, length));
  };
  table_.accepted = [](void* context, void* connection, const char* name, std::uint64_t incarnation) {
    return self(context).accepted(connection, name, incarnation);
  };
  table_.link_event = [](void* context, std::uint64_t token, std::int32_t event, headrace_status_v1 status,
                         const char* text, std::size_t length) {
    self(context).link_event(token, event, status_of(status), view(text, length));
  };
  table_.received = [](void* context, std::uint64_t token, std::uint32_t channel, const void* bytes,
                       std::size_t length) {
    self(context).received(token, channel, view(static_cast<const char*>(bytes), length));
  };
  table_.counted = [](void* context, std::uint64_t link, std::uint32_t scope, std::uint32_t immediate,
                      std::uint64_t amount) {
    self(context).counted({link, scope, immediate, amount});
  };
  table_.submit = [](void* context, void (*function)(void*), void* argument) -> int {
    PluginHost& host = self(context);
    {
      const std::scoped_lock lock(host.mutex_);
      host.may_be_called("submit");
    }
    return host.pool_->submit([function, argument] { function(argument); }) ? 1 : 0;
  };
  table_.wake = [](void* context) {
    PluginHost& host = self(context);
    {
      const std::scoped_lock lock(host.mutex_);
      host.may_be_called("wake");
    }
    ++host.wakes_;
    host.bell_.signal();
  };
}

PluginHost::~PluginHost() = default;

std::uint64_t PluginHost::new_slot() {
  const std::scoped_lock lock(mutex_);
  slots_.emplace_back();
  return slots_.size() - 1;
}

std::uint64_t PluginHost::post_begins(std::uint64_t slot) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t token = (++slots_.at(slot).posts << slot_bits) | slot;
  slots_[slot].in_flight.insert(token);
  return token;
}

void PluginHost::post_refused(std::uint64_t token) {
  const std::scoped_lock lock(mutex_);
  if (slots_.at(slot_of(token)).in_flight.erase(token) == 0)
    broken(fmt::format("post {} was refused, yet `completed` was called for it", words(token)));
}

bool PluginHost::in_flight(std::uint64_t slot) const {
  const std::scoped_lock lock(mutex_);
  return !slots_.at(slot).in_flight.empty();
}

std::optional<PostEnd> PluginHost::last_end(std::uint64_t slot) const {
  const std::scoped_lock lock(mutex_);
  return slots_.at(slot).last;
}

std::uint64_t PluginHost::ends(std::uint64_t slot) const {
  const std::scoped_lock lock(mutex_);
  return slots_.at(slot).ends;
}

std::uint64_t PluginHost::new_link(std::string peer_name, std::uint64_t peer_incarnation) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t token = next_link_++;
  HostLink link;
  link.token = token;
  link.peer_name = std::move(peer_name);
  link.peer_incarnation = peer_incarnation;
  links_.emplace(token, std::move(link));
  return token;
}

void PluginHost::link_closed(std::uint64_t token) {
  const std::scoped_lock lock(mutex_);
  links_.erase(token);
}

std::optional<HostLink> PluginHost::link(std::uint64_t token) const {
  const std::scoped_lock lock(mutex_);
  const auto found = links_.find(token);
  return found != links_.end() ? std::optional(found->second) : std::nullopt;
}

std::vector<HostLink> PluginHost::accepted_links() const {
  const std::scoped_lock lock(mutex_);
  std::vector<HostLink> links;
  for (const auto& [token, link] : links_)
    if (link.was_accepted) links.push_back(link);
  return links;
}

std::vector<HostMessage> PluginHost::messages() const {
  const std::scoped_lock lock(mutex_);
  return messages_;
}

std::size_t PluginHost::message_count() const {
  const std::scoped_lock lock(mutex_);
  return messages_.size();
}

std::uint64_t PluginHost::count_of(std::uint32_t scope, std::uint32_t immediate) const {
  const std::scoped_lock lock(mutex_);
  const auto found = counts_.find({scope, immediate});
  return found != counts_.end() ? found->second : 0;
}

std::uint64_t PluginHost::counter(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = counters_.find(name);
  return found != counters_.end() ? found->second : 0;
}

std::vector<std::string> PluginHost::log() const {
  const std::scoped_lock lock(mutex_);
  return log_;
}

void PluginHost::instance_is_gone() {
  const std::scoped_lock lock(mutex_);
  for (const Slot& slot : slots_)
    for (const std::uint64_t token : slot.in_flight)
      broken(fmt::format("post {} was accepted and never completed", words(token)));
  gone_ = true;
}

std::vector<std::string> PluginHost::broken_rules() const {
  const std::scoped_lock lock(mutex_);
  return broken_;
}

std::string PluginHost::describe() const {
  const std::scoped_lock lock(mutex_);
  std::string text = fmt::format("{}: {} messages", args_.agent_name, messages_.size());
  for (const auto& [token, link] : links_)
    text +=
        fmt::format("; link {} with {}{}{}{}", token, link.peer_name, link.was_accepted ? ", accepted" : "",
                    link.ready ? ", ready" : "", link.lost ? ", lost: " + link.lost_text : "");
  for (const Slot& slot : slots_)
    for (const std::uint64_t token : slot.in_flight)
      text += fmt::format("; post {} in flight after {} ends", words(token), slot.ends);
  for (const std::string& rule : broken_) text += "; broken rule: " + rule;
  return text;
}

void PluginHost::broken(std::string rule) { broken_.push_back(std::move(rule)); }

void PluginHost::may_be_called(const char* function) {
  if (gone_) broken(fmt::format("`{}` was called after `destroy` had returned", function));
}

void PluginHost::completed(std::uint64_t token, Status status, std::string_view text) {
  {
    const std::scoped_lock lock(mutex_);
    may_be_called("completed");
    if (slot_of(token) >= slots_.size()) {
      broken(fmt::format("`completed` was called with token {}, which no post has", token));
      return;
    }
    Slot& slot = slots_[slot_of(token)];
    if (slot.in_flight.erase(token) == 0)
      broken(fmt::format("`completed` was called for post {}, which is not in flight", words(token)));
    ++slot.ends;
    slot.last = PostEnd{status, std::string(text)};
  }
  if (on_completed) on_completed(slot_of(token), status);
  bell_.signal();
}

std::uint64_t PluginHost::accepted(void* connection, const char* name, std::uint64_t incarnation) {
  HostLink link;
  {
    const std::scoped_lock lock(mutex_);
    may_be_called("accepted");
    if (connection == nullptr) broken("`accepted` was called without a connection");
    if (!accepting_) return 0;
    link.token = next_link_++;
    link.connection = connection;
    link.peer_name = name;
    link.peer_incarnation = incarnation;
    link.was_accepted = link.ready = true;
    links_.emplace(link.token, link);
  }
  if (on_accepted) on_accepted(link);
  bell_.signal();
  return link.token;
}

void PluginHost::link_event(std::uint64_t token, std::int32_t event, Status status, std::string_view text) {
  {
    const std::scoped_lock lock(mutex_);
    may_be_called("link_event");
    const auto found = links_.find(token);
    if (found == links_.end()) {
      broken(fmt::format("event {} came for link {}, which is unknown or closed", event, token));
      return;
    }
    HostLink& link = found->second;
    if (link.lost) broken(fmt::format("event {} came for link {} after it was lost", event, token));
    switch (event) {
      case HEADRACE_LINK_READY:
        if (link.was_accepted)
          broken(fmt::format("READY came for link {}, which was accepted and so is ready", token));
        else if (link.ready)
          broken(fmt::format("READY came twice for link {}", token));
        link.ready = true;
        break;
      case HEADRACE_LINK_LOST:
        link.lost = true;
        link.lost_status = status;
        link.lost_text = text;
        if (status.ok()) broken(fmt::format("link {} was lost with status ok", token));
        if (text.empty()) broken(fmt::format("link {} was lost without a text", token));
        break;
      default:
        broken(fmt::format("event {} came for link {}: there is no such event", event, token));
    }
  }
  bell_.signal();
}

void PluginHost::received(std::uint64_t token, std::uint32_t channel, std::string_view bytes) {
  HostMessage message{token, channel, std::string(bytes)};
  // The hook runs before the message is listed: a thread that waits for the message may then read what the
  // hook wrote.
  if (on_received) on_received(message);
  {
    const std::scoped_lock lock(mutex_);
    may_be_called("received");
    const auto found = links_.find(token);
    if (found == links_.end())
      broken(fmt::format("a message came on link {}, which is unknown or closed", token));
    else if (found->second.lost)
      broken(fmt::format("a message came on link {} after it was lost", token));
    messages_.push_back(std::move(message));
  }
  bell_.signal();
}

void PluginHost::counted(const HostCount& count) {
  // The hook runs first, as in `received`.
  if (on_counted) on_counted(count);
  {
    const std::scoped_lock lock(mutex_);
    may_be_called("counted");
    const auto found = links_.find(count.link);
    const bool of_peer = count.link != 0;  // else of a replay inside this agent
    if (of_peer && found == links_.end())
      broken(fmt::format("a count came on link {}, which is unknown or closed", count.link));
    else if (of_peer && found->second.lost)
      broken(fmt::format("a count came on link {} after it was lost", count.link));
    if (count.amount == 0) broken("`counted` was called with the amount 0");
    counts_[{count.scope, count.immediate}] += count.amount;
  }
  bell_.signal();
}

}  // namespace headrace::test
