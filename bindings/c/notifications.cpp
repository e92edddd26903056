// SPDX-License-Identifier: Apache-2.0
// Notifications of include/headrace/c/agent.h.
#include "agent_handles.hpp"

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_agent_notify(headrace_agent* agent, const char* peer, const void* payload,
                                   std::uint64_t size, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(peer, "peer"));
    if (payload == nullptr && size > 0) return missing("payload");
    return agent->agent.notify(peer, {static_cast<const char*>(payload), size});
  });
}

std::int32_t headrace_agent_take_notifications(headrace_agent* agent, const char* peer, const char* prefix,
                                               headrace_notifications** notifications,
                                               headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(notifications, "notifications"));
    auto taken = agent->agent.take_notifications({text_or_empty(peer), text_or_empty(prefix)});
    if (!taken) return std::move(taken).error();
    *notifications = new headrace_notifications{std::move(*taken)};
    return {};
  });
}

std::int32_t headrace_agent_wait_notification(headrace_agent* agent, const char* peer, const char* prefix,
                                              std::int64_t timeout_ns, headrace_notifications** notifications,
                                              headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(notifications, "notifications"));
    auto taken =
        agent->agent.wait_notification(timeout_of(timeout_ns), {text_or_empty(peer), text_or_empty(prefix)});
    if (!taken) return std::move(taken).error();
    *notifications = new headrace_notifications{{std::move(*taken)}};
    return {};
  });
}

std::uint64_t headrace_notifications_count(const headrace_notifications* notifications) {
  return notifications == nullptr ? 0 : notifications->notifications.size();
}

const char* headrace_notifications_peer(const headrace_notifications* notifications, std::uint64_t index) {
  if (index >= headrace_notifications_count(notifications)) return nullptr;
  return notifications->notifications[index].peer.c_str();
}

const char* headrace_notifications_payload(const headrace_notifications* notifications, std::uint64_t index,
                                           std::uint64_t* size) {
  if (size != nullptr) *size = 0;
  if (index >= headrace_notifications_count(notifications)) return nullptr;
  const std::string& payload = notifications->notifications[index].payload;
  if (size != nullptr) *size = payload.size();
  return payload.c_str();
}

void headrace_notifications_free(headrace_notifications* notifications) { delete notifications; }

void headrace_agent_on_notification(headrace_agent* agent, headrace_notification_function function,
                                    headrace_callback callback) {
  (void)guarded(nullptr, [&]() -> Result<void> {
    const auto context = context_of(callback.context, callback.drop);
    HEADRACE_C_TRY(given(agent, "agent"));
    if (function == nullptr) {
      agent->agent.on_notification({});
      return {};
    }
    agent->agent.on_notification([function, context](const headrace::Notification& taken) {
      function(context.get(), taken.peer.c_str(), taken.payload.data(), taken.payload.size());
    });
    return {};
  });
}

std::int32_t headrace_agent_notification_fd(headrace_agent* agent, std::int32_t* descriptor,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(descriptor, "descriptor"));
    auto opened = agent->agent.notification_fd();
    if (!opened) return std::move(opened).error();
    *descriptor = *opened;
    return {};
  });
}

std::int32_t headrace_agent_watch_notifications(headrace_agent* agent, const char* peer, const char* prefix,
                                                headrace_notification_watch** watch, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(watch, "watch"));
    return make_handle(watch, agent->agent.watch_notifications({text_or_empty(peer), text_or_empty(prefix)}));
  });
}

std::int32_t headrace_notification_watch_fd(const headrace_notification_watch* watch,
                                            std::int32_t* descriptor, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(watch, "watch"));
    HEADRACE_C_TRY(given(descriptor, "descriptor"));
    HEADRACE_C_TRY(watch->home.is_here("the watch"));
    *descriptor = watch->watch.fd();
    return {};
  });
}

std::int32_t headrace_notification_watch_drain(headrace_notification_watch* watch, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(watch, "watch"));
    HEADRACE_C_TRY(watch->home.is_here("the watch"));
    watch->watch.drain();
    return {};
  });
}

void headrace_notification_watch_free(headrace_notification_watch* watch) { delete watch; }
