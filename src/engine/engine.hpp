// SPDX-License-Identifier: Apache-2.0
// The engine of one agent: opens and closes its parts, connects them, and passes on what backends tell it.
//
// Each part is a class with a lock of its own; these locks are leaves. The order between locks is: a life's
// `connecting`, then no lock of ours across a backend's call. What a backend tells us from inside a call is
// queued: a thread that runs progress executes it (Progress::defer).
#pragma once

#include "engine/agent_messages.hpp"
#include "engine/arrival_counters.hpp"
#include "engine/backends.hpp"
#include "engine/call_gate.hpp"
#include "engine/callback_queue.hpp"
#include "engine/counters.hpp"
#include "engine/links.hpp"
#include "engine/local_regions.hpp"
#include "engine/mappings.hpp"
#include "engine/notifications.hpp"
#include "engine/page_lists.hpp"
#include "engine/path_choice.hpp"
#include "engine/peers.hpp"
#include "engine/progress.hpp"
#include "engine/requests.hpp"
#include "engine/revocation.hpp"
#include "engine/steady_clock.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace::engine {

struct EngineSettings {
  std::string name;
  std::string runtime_dir;
  InboxLimits inbox = {};
  bool check_overlap = false;  ///< refuse requests whose destinations overlap
  PeerLimits peers = {};
  std::uint64_t reserved_descriptors = 0;  ///< a link leaves so many to the rest of the process
};

class Engine final : public HostEvents {
 public:
  /// `clock` outlives the engine.
  static Result<std::shared_ptr<Engine>> open(EngineSettings settings, Logger& logger,
                                              const Clock& clock = steady_clock);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Ends everything: calls that wait return `canceled`, requests are canceled and waited for, peers told,
  /// links closed. Later calls answer invalid_argument. At any time, from any thread that is not inside a
  /// call.
  void close();
  Result<void> add_backend(const FoundBackend& found,
                           std::vector<std::pair<std::string, std::string>> settings);

  [[nodiscard]] const std::string& name() const { return self_.name; }
  [[nodiscard]] std::uint64_t incarnation() const { return self_.incarnation; }
  [[nodiscard]] const Log& log_room() const { return log_; }
  [[nodiscard]] const Telemetry& telemetry() const { return telemetry_; }
  [[nodiscard]] EngineCounters& counters() { return counters_; }
  /// invalid_argument if the agent is closed or the process has forked since.
  [[nodiscard]] Result<void> usable() const { return calls_.usable(); }

  CallGate& calls() { return calls_; }
  Progress& progress() { return *progress_; }
  CallbackQueue& callbacks() { return *callbacks_; }
  [[nodiscard]] const Backends& backends() const { return backends_; }
  Links& links() { return links_; }
  Peers& peers() { return peers_; }
  Mappings& mappings() { return mappings_; }
  LocalRegions& regions() { return regions_; }
  PageLists& lists() { return lists_; }
  Notifications& notifications() { return notifications_; }
  Requests& requests() { return requests_; }
  ArrivalCounters& arrivals() { return arrivals_; }

  // --- HostEvents
  void completed(std::uint64_t token, Status status, std::string_view text) override;
  std::uint64_t accepted(BackendInstance& from, void* connection, std::string_view peer,
                         std::uint64_t incarnation) override;
  void link_event(std::uint64_t link, headrace_link_event_v1 event, Status status,
                  std::string_view text) override;
  void received(std::uint64_t link, std::uint32_t channel, std::string_view bytes) override;
  void counted(std::uint64_t link, Immediate immediate, std::uint64_t amount) override;
  bool submit(void (*function)(void*), void* argument) override;
  void wake() override;
  bool log_enabled(const std::string& backend, int level) override;
  void log(const std::string& backend, int level, std::string_view text) override;
  void count(std::string_view counter, std::uint64_t amount) override;

 private:
  Engine(EngineSettings settings, Logger& logger, const Clock& clock, std::unique_ptr<Progress> progress);
  void abandon();
  void agent_message(const std::shared_ptr<Link>& link, std::string_view bytes);
  void user_message(const std::shared_ptr<Link>& link, const std::shared_ptr<PeerLife>& life,
                    std::string_view bytes);
  void flooded(const std::shared_ptr<Link>& link, const std::string& why);

  const EngineSettings settings_;
  const Self self_;
  Logger& logger_;
  const Log log_;
  std::weak_ptr<const void> this_;  ///< for those that keep the engine: requests and mappings

  Telemetry telemetry_;
  EngineCounters counters_;
  std::unique_ptr<CallbackQueue> callbacks_;
  std::unique_ptr<Progress> progress_;
  CallGate calls_;
  InFlight own_flights_;  ///< posts between our own regions

  Backends backends_;
  Links links_;
  Peers peers_;
  Mappings mappings_;
  Revocation revocation_;
  AgentMessages agent_messages_;
  LocalRegions regions_;
  PageLists lists_;
  PathChoice paths_;
  Notifications notifications_;
  ArrivalCounters arrivals_;
  Requests requests_;
};

}  // namespace headrace::engine
