// SPDX-License-Identifier: Apache-2.0
// The engine: backends, regions, peers and requests of one agent, and the rules between them.
//
// Locks, outermost first: a life's `connecting`, then nothing of ours across a backend's call.
// `regions_mutex_`, `peers_mutex_` and a life's `mutex` are leaves, taken one at a time and never held while
// a backend or a callback runs. What a backend tells us from inside a call is noted and done later by whoever
// drives (`defer`).
#pragma once

#include <headrace/agent.hpp>

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "engine/callback_queue.hpp"
#include "engine/inbox.hpp"
#include "engine/page_list_state.hpp"
#include "engine/plugin_host.hpp"
#include "engine/progress.hpp"
#include "engine/request_core.hpp"
#include "memory/index_pool.hpp"
#include "memory/region_table.hpp"
#include "telemetry/telemetry.hpp"
#include "wire/metadata.hpp"

#include <set>
#include <unordered_set>

namespace headrace::engine {

struct EngineSettings {
  std::string name;
  std::string runtime_dir;
  std::size_t inbox_capacity = 1 << 20;
  std::size_t inbox_bytes = 256 << 20;
  bool check_overlap = false;  ///< refuse requests whose destinations overlap
};

/// Looked up once: the data path counts through these.
struct EngineCounters {
  explicit EngineCounters(Telemetry& t)
      : posts(t.counter("requests.posted")),
        done(t.counter("requests.done")),
        failed(t.counter("requests.failed")),
        canceled(t.counter("requests.canceled")),
        failed_over(t.counter("requests.failed_over")),
        read_bytes(t.counter("requests.read_bytes")),
        written_bytes(t.counter("requests.written_bytes")),
        captured(t.counter("requests.captured")),
        replayed(t.counter("requests.replayed")),
        pages(t.counter("requests.pages")),
        notifications_sent(t.counter("notifications.sent")),
        notifications_received(t.counter("notifications.received")),
        notifications_dropped(t.counter("notifications.dropped")),
        request_ns(t.histogram("requests.duration_ns")) {}
  Counter &posts, &done, &failed, &canceled, &failed_over, &read_bytes, &written_bytes, &captured, &replayed,
      &pages, &notifications_sent, &notifications_received, &notifications_dropped;
  Histogram& request_ns;
};

/// A mapping as the engine knows it. The last one to let go of a row may do so anywhere, also inside a
/// backend's call or with a lock: unlike the end of the mapping itself it calls no backend and ends no
/// engine.
struct MappingRow {
  std::shared_ptr<PeerLife> life;
  std::shared_ptr<Link> link;
  std::uint32_t region_id = 0;
  std::atomic<bool> alive{true};
};

class Engine final : public HostEvents, public std::enable_shared_from_this<Engine> {
 public:
  static Result<std::shared_ptr<Engine>> open(EngineSettings settings, Logger& logger);
  ~Engine() override;

  /// Ends everything: requests are canceled and waited for, peers told, links closed. Later calls answer
  /// invalid_argument.
  void close();
  /// invalid_argument if the agent is closed or the process has forked since.
  Result<void> usable() const;
  [[nodiscard]] bool usable_status(Status& status) const;
  /// Whether this is a forked child's copy: it asks nothing of backends, whose sockets and memory are the
  /// parent's.
  [[nodiscard]] bool forked() const { return fork_guard_.forked(); }

  [[nodiscard]] const std::string& name() const { return settings_.name; }
  [[nodiscard]] std::uint64_t incarnation() const { return incarnation_; }
  [[nodiscard]] bool checks_overlap() const { return settings_.check_overlap; }
  Progress& progress() { return *progress_; }
  [[nodiscard]] const Log& log_room() const { return log_; }

  // --- backends (engine_regions.cpp)
  Result<void> add_backend(const FoundBackend& found,
                           std::vector<std::pair<std::string, std::string>> settings);
  [[nodiscard]] std::vector<BackendInstance*> backends() const;
  [[nodiscard]] std::size_t backend_index(const BackendInstance& backend) const;

  // --- our regions (engine_regions.cpp)
  struct Backing {
    int memory_fd = -1;
    std::shared_ptr<const void> keep;
  };
  Result<std::vector<Region>> register_regions(std::span<const MemoryRange> ranges,
                                               const RegisterOptions& options, const Backing& backing);
  Result<void> deregister(std::span<const RegionId> regions, Timeout timeout);
  [[nodiscard]] std::vector<Region> regions() const;
  /// The allocation behind a region, co-owned.
  Result<std::shared_ptr<std::byte>> storage(RegionId region) const;
  [[nodiscard]] std::uint64_t regions_version() const;
  Result<wire::Metadata> export_metadata(const ExportOptions& options) const;
  /// Calls on the callback thread after each change of the region table. {} ends that.
  void on_regions_changed(std::function<void()> changed);

  // --- peers (engine_peers.cpp)
  Result<ImportReport> import(wire::Metadata metadata);
  [[nodiscard]] std::vector<PeerInfo> peers() const;
  Result<std::vector<Region>> peer_regions(std::string_view peer) const;
  Result<Region> peer_region(std::string_view peer, std::string_view region_name) const;
  Result<std::shared_ptr<PeerLife>> peer(std::string_view name) const;
  Result<void> connect(std::string_view peer, Timeout timeout, const std::vector<std::string>& backends);
  Result<void> forget(std::string_view peer);
  Result<std::shared_ptr<Mapping::State>> map(std::string_view peer, RegionId region, Timeout timeout,
                                              int device = -1);
  Result<void> notify(std::string_view peer, std::string_view payload);
  /// A link over this backend, made now if there is none. Not from inside a backend's call.
  Result<std::shared_ptr<Link>> link_to(const std::shared_ptr<PeerLife>& life, BackendInstance& backend);
  void close_link_later(const std::shared_ptr<Link>& link);
  /// Closes links whose request did not end within the second that canceling may take.
  void kill_link(const std::shared_ptr<Link>& link, std::string_view why);

  // --- pages (engine_pages.cpp). `view`: what each page consists of; null: of one stretch
  Result<PageListState> prepare_addresses(std::span<const AddressPage> pages, const PageView* view = nullptr);
  Result<PageListState> prepare_pages(std::string_view peer, bool local, std::span<const Page> pages,
                                      const PageView* view = nullptr);
  Result<PageListState> prepare_uniform(std::string_view peer, bool local, const UniformPages& pages,
                                        const PageView* view = nullptr);
  Result<PageListState> prepare_region(std::string_view peer, bool local, const RegionPages& pages);
  /// not_found if a region of the list has gone since; quick while nothing has.
  Status still_valid(const PageList::State& list) const;

  // --- requests (engine_requests.cpp)
  Result<std::shared_ptr<RequestCore>> make_request(RequestPlan plan);
  void forget_request(RequestCore& core);
  IndexPool& index_pool() { return index_pool_; }
  struct Choice {
    Path path;
    std::string explanation;
  };
  /// Ranks the backends that can carry the plan, and prepares on the first that takes it.
  Result<Choice> choose(const RequestPlan& plan, const std::vector<FailedPath>& without,
                        headrace_side_v1& local_side, headrace_side_v1& remote_side);
  /// What a request that was prepared on this path is expected to cost.
  headrace_cost_v1 cost_on(const Path& path, const RequestPlan& plan, headrace_side_v1 local_side,
                           headrace_side_v1 remote_side);
  InFlight& own_in_flight() { return own_in_flight_; }
  /// A request ended, `took_ns` after its post began: it is counted, and pending revocations may go on.
  void request_ended(const RequestCore& core, Status status, std::uint64_t took_ns);
  /// Runs `work` soon, on a thread that drives, outside every backend's call.
  void defer(std::function<void()> work);
  /// Deletes what may hold something of a backend's or of the caller's; soon, where a backend is telling us
  /// something.
  template <class Held>
  void let_go(Held* held) {
    if (!BackendInstance::is_telling()) return delete held;
    let_go_later([held] { delete held; });
  }
  void callback(std::function<void()> call) { callbacks_->push(std::move(call)); }

  // --- notifications
  Inbox& inbox() { return inbox_; }
  /// A notification from this agent to itself.
  void received_from_self(std::string_view payload);
  void on_notification(std::function<void(Notification)> taken);

  [[nodiscard]] EngineCounters& counters() { return counters_; }
  [[nodiscard]] const Telemetry& telemetry() const { return telemetry_; }

  // --- HostEvents (engine.cpp)
  void completed(std::uint64_t token, Status status, std::string_view text) override;
  std::uint64_t accepted(BackendInstance& from, void* connection, std::string_view peer,
                         std::uint64_t incarnation) override;
  void link_event(std::uint64_t link, headrace_link_event_v1 event, Status status,
                  std::string_view text) override;
  void received(std::uint64_t link, std::uint32_t channel, std::string_view bytes) override;
  bool submit(void (*function)(void*), void* argument) override;
  void wake() override;
  bool log_enabled(const std::string& backend, int level) override;
  void log(const std::string& backend, int level, std::string_view text) override;
  void count(std::string_view counter, std::uint64_t amount) override;

 private:
  /// A peer's wish that we let go of its regions, until our requests on them have ended.
  struct PendingRevoke {
    std::shared_ptr<Link> link;
    std::shared_ptr<PeerLife> life;
    std::uint64_t sequence = 0;
    std::vector<IdRange> ranges;
  };
  /// Our own wish, until each peer has answered.
  struct RevokeRound {
    std::unordered_map<std::uint64_t, std::shared_ptr<Link>> waiting;  // link token
  };

  Engine(EngineSettings settings, Logger& logger);

  void let_go_later(std::function<void()> end);
  void end_what_was_let_go();
  std::shared_ptr<Link> link_of(std::uint64_t token) const;
  /// `connection`: of a link that came in, which is ready; null: of one that is about to be made.
  std::shared_ptr<Link> add_link(const std::shared_ptr<PeerLife>& life, BackendInstance& backend,
                                 void* connection);
  void drop_link(const std::shared_ptr<Link>& link);
  std::shared_ptr<PeerLife> life_of(std::string_view peer, std::uint64_t incarnation);
  void end_life(const std::shared_ptr<PeerLife>& life, Fate fate, const std::string& why);
  Result<void> take_regions(PeerLife& life, wire::Metadata& metadata);
  void agent_message(const std::shared_ptr<Link>& link, const std::string& bytes);
  void let_go(const std::shared_ptr<Link>& link, std::uint64_t sequence, std::vector<IdRange> ranges);
  void answer_revokes();
  Result<void> map_over(Mapping::State& mapping, const RemoteRegion& row, Deadline deadline);
  /// Mappings of these rows are not alive any more.
  void end_mappings(const std::function<bool(const MappingRow&)>& which);
  bool peer_uses(const PeerLife& life, std::span<const IdRange> ranges) const;
  Result<void> ask_peers_to_let_go(std::span<const IdRange> ranges, Deadline deadline);
  /// Whose region it is that a list of one region lies in, and how long it is (0: its backend knows).
  struct Owner {
    std::shared_ptr<PeerLife> life = {};  // null: this agent
    bool far_side = false;
    std::uint64_t region_length = 0;
  };
  Result<Owner> owner_of(std::string_view peer, bool local, RegionId region) const;
  Result<PageListState> finish_list(std::shared_ptr<PageList::State> list,
                                    const std::shared_ptr<PeerLife>& life, bool far_side);
  Result<PageList::State::Handles> own_handles(const PageList::State& list, BackendInstance& backend) const;
  Result<PageList::State::Handles> remote_handles(const PageList::State& list, BackendInstance& backend,
                                                  const std::shared_ptr<Link>& link) const;
  Result<void> eligible(const RequestPlan& plan, const BackendInstance& backend) const;
  std::shared_ptr<LocalRegion> local_region(std::uint32_t id) const;
  std::shared_ptr<LocalRegion> local_region_at(std::uint64_t address, std::uint64_t length,
                                               std::uint64_t& offset);
  bool register_with_backends(LocalRegion& region, const std::vector<BackendInstance*>& all,
                              const std::vector<std::string>& only, std::string& refusals);
  void give_back(LocalRegion& region);
  static Region described(const LocalRegion& region, const std::vector<BackendInstance*>& all);
  void hand_over_notifications();
  void regions_changed();

  const EngineSettings settings_;
  const std::uint64_t incarnation_;
  Logger& logger_;
  const Log log_;
  const ForkGuard fork_guard_;
  std::atomic<bool> closed_{false};

  const SteadyClock clock_;
  Telemetry telemetry_;
  EngineCounters counters_;
  Inbox inbox_;
  std::unique_ptr<CallbackQueue> callbacks_ = std::make_unique<CallbackQueue>();
  std::mutex on_notification_mutex_;
  std::function<void(Notification)> on_notification_;
  std::function<void()> on_regions_changed_;

  mutable std::shared_mutex backends_mutex_;
  std::vector<std::unique_ptr<BackendInstance>> backends_;
  std::vector<std::string> connection_infos_;  ///< in the order of backends_

  mutable std::shared_mutex regions_mutex_;
  RegionTable<std::shared_ptr<LocalRegion>> regions_;
  std::map<std::string, std::uint32_t, std::less<>> region_names_;
  std::atomic<std::uint64_t> local_epoch_{1};
  mutable std::shared_mutex local_handles_mutex_;  ///< as Link::handles_mutex, for our own regions
  std::mutex deregistering_;  ///< one at a time: each is a round of questions to the peers

  mutable std::shared_mutex peers_mutex_;
  std::map<std::string, std::shared_ptr<PeerLife>, std::less<>> peers_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Link>> links_;
  std::uint64_t next_link_ = 1;
  std::vector<std::weak_ptr<MappingRow>> mappings_;

  std::mutex revokes_mutex_;
  std::vector<PendingRevoke> pending_revokes_;
  std::atomic<std::size_t> pending_revoke_count_{0};
  std::unordered_map<std::uint64_t, RevokeRound> rounds_;  // by sequence
  std::uint64_t next_round_ = 1;

  IndexPool index_pool_;
  std::mutex requests_mutex_;
  std::unordered_set<RequestCore*> requests_;
  std::mutex let_go_mutex_;
  bool nobody_drives_ =
      false;  ///< what is let go of from now on holds nothing of a backend's, and goes at once
  std::atomic<std::uint64_t> next_request_{1};
  InFlight own_in_flight_;

  std::unique_ptr<Progress> progress_;  ///< last: its thread uses all above
};

}  // namespace headrace::engine

namespace headrace {

/// A mapped region: keeps the engine, and with it the backend's instance, until the last copy is gone.
struct Mapping::State {
  State() = default;
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::shared_ptr<engine::Engine> engine;
  engine::BackendInstance* backend = nullptr;
  std::shared_ptr<engine::MappingRow> row;  ///< goes when the memory is unmapped, before the engine
  void* remote = nullptr;
  void* address = nullptr;
  std::uint64_t length = 0;
  int device = -1;  ///< whose kernels use it; -1: the CPU
  bool writable = true;
};

}  // namespace headrace
