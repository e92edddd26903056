// SPDX-License-Identifier: Apache-2.0
// The parts of an engine without the engine, and a backend that records what it is asked.
#pragma once

#include "engine/path_choice.hpp"
#include "engine/revocation.hpp"
#include "plugins/sound_table.hpp"
#include "unit/engine/silent_events.hpp"
#include "wire/agent_message.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headrace::engine {

/// What a backend of these tests was asked; one for all, cleared by `Parts`.
struct Recorded {
  static inline int connects = 0, disconnects = 0, registered = 0, destroyed = 0, prepared = 0, unloaded = 0;
  static inline bool connect_fails = false, prepare_fails = false;
  static inline std::atomic<bool> full = false;
  static inline int handle = 0;

  static void clear() {
    connects = disconnects = registered = destroyed = prepared = unloaded = 0;
    connect_fails = prepare_fails = false;
    full = false;
    const std::lock_guard lock(mutex);
    messages.clear();
  }
  /// What was sent to other agents.
  static std::size_t message_count() {
    const std::lock_guard lock(mutex);
    return messages.size();
  }
  static std::string last_message() {
    const std::lock_guard lock(mutex);
    return messages.back();
  }
  static void add_message(std::string message) {
    const std::lock_guard lock(mutex);
    messages.push_back(std::move(message));
  }

 private:
  static inline std::mutex mutex;
  static inline std::vector<std::string> messages;
};

/// Takes host memory, reaches peers, carries messages.
inline headrace_backend_v1 recording_table(const char* name) {
  headrace_backend_v1 t = sound_table(name);
  t.destroy = [](void*) { ++Recorded::destroyed; };
  t.info = [](void*, headrace_info_v1* info) {
    info->abilities = HEADRACE_LOCAL | HEADRACE_REMOTE | HEADRACE_NOTIFY;
    info->local_kinds = info->remote_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  };
  t.connect = [](void*, const headrace_connect_v1*, void** connection, headrace_text_v1*) {
    if (Recorded::connect_fails) return int32_t{HEADRACE_NOT_SUPPORTED};
    ++Recorded::connects;
    *connection = &Recorded::handle;
    return int32_t{HEADRACE_OK};
  };
  t.disconnect = [](void*, void*) { ++Recorded::disconnects; };
  t.register_region = [](void*, const headrace_region_v1*, void** handle, headrace_text_v1*) {
    ++Recorded::registered;
    *handle = &Recorded::handle;
    return int32_t{HEADRACE_OK};
  };
  t.deregister_region = [](void*, void*) { --Recorded::registered; };
  t.load_local = [](void*, void*, void** remote, headrace_text_v1*) {
    *remote = &Recorded::handle;
    return int32_t{HEADRACE_OK};
  };
  t.load_remote = [](void*, void*, const headrace_remote_region_v1*, void** remote, headrace_text_v1*) {
    *remote = &Recorded::handle;
    return int32_t{HEADRACE_OK};
  };
  t.unload = [](void*, void*) { ++Recorded::unloaded; };
  t.prepare = [](void*, const headrace_prepare_v1*, void** request, headrace_text_v1*) {
    if (Recorded::prepare_fails) return int32_t{HEADRACE_NOT_SUPPORTED};
    ++Recorded::prepared;
    *request = &Recorded::handle;
    return int32_t{HEADRACE_OK};
  };
  t.notify = [](void*, void*, uint32_t channel, const void* bytes, size_t length) {
    if (Recorded::full) return headrace_status_v1{HEADRACE_WOULD_BLOCK, 0, HEADRACE_NO_PAGE};
    if (channel == HEADRACE_CHANNEL_AGENT) Recorded::add_message({static_cast<const char*>(bytes), length});
    return headrace_status_v1{HEADRACE_OK, 0, HEADRACE_NO_PAGE};
  };
  return t;
}

/// All but requests. The clock stands still; no thread runs progress but the test's own.
struct Parts {
  Parts() {
    Recorded::clear();
    links.watch(mappings);
    links.watch(revocation);
  }

  BackendInstance& add(const headrace_backend_v1& table) {
    InstanceArgs args;
    args.clock = &clock;
    return *backends.open({table.name, "linked in", &table, ""}, args, events).value();
  }
  RegionId registered() {
    const MemoryRange range{memory.data(), memory.size()};
    return regions.add({&range, 1}, {}, {}).value().front().id;
  }
  /// Takes in metadata of a peer that has region 1 with these backends.
  std::shared_ptr<PeerLife> import(const std::string& peer, std::uint64_t incarnation = 1) {
    wire::Metadata m;
    m.name = peer;
    m.incarnation = incarnation;
    m.version = 1;
    m.end = 2;
    for (const BackendInstance* backend : backends.all())
      m.backends.push_back({backend->name(), "1", "info"});
    m.ids = {1};
    m.addresses = {0x1000};
    m.lengths = {4096};
    m.kinds = {HEADRACE_DRAM};
    m.masks = {0xff};
    EXPECT_TRUE(peers.import(std::move(m)).ok());
    return peers.find(peer).value();
  }
  std::shared_ptr<Link> ready_link(const std::shared_ptr<PeerLife>& life, BackendInstance& backend) {
    return links.accepted(life, backend, &Recorded::handle);
  }

  Logger logger;
  const Log log{logger, "parts"};
  FakeClock clock;
  SilentEvents events;
  Telemetry telemetry{clock};
  std::unique_ptr<Progress> progress = Progress::open(clock).value();
  CallbackQueue callbacks;
  const Self self{"here", 7};
  CallGate calls{"here"};
  std::weak_ptr<const void> engine;
  InFlight own_flights;
  Backends backends;
  Links links{*progress, telemetry, log};
  PeerLimits limits{.strangers = 3, .sent_bytes = 1000};
  Peers peers{self, calls, backends, links, *progress, telemetry, log, limits};
  Mappings mappings{engine, calls, backends, links, peers, *progress};
  EngineCounters counters{telemetry};
  Revocation revocation{calls, links, mappings, own_flights, *progress, counters, log};
  LocalRegions regions{self, calls, backends, revocation, *progress, callbacks};
  PageLists lists{self, calls, regions, peers};
  PathChoice paths{backends, regions, lists, links};
  std::array<std::byte, 4096> memory{};
};

}  // namespace headrace::engine
