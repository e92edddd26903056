// SPDX-License-Identifier: Apache-2.0
// The agent: one named participant. It owns regions, knows peers, and makes the requests that move pages.
#pragma once

#include <headrace/counter.hpp>
#include <headrace/request.hpp>
#include <headrace/telemetry.hpp>

#include <functional>
#include <map>

namespace headrace {

struct AgentOptions {
  /// Backends to open, besides `local`, which moves pages inside the agent. Empty: every backend that loads
  /// on this machine.
  std::vector<std::string> backends = {};
  /// "host:port" of the socket that answers metadata queries. Port 0: the system picks a port, which
  /// Agent::listen_address() returns. Empty: the agent does not listen. With an address of loopback and
  /// without a store the data port of `tcp` is on loopback, too, unless the option tcp.listen is set.
  std::string listen = {};
  /// "etcd://host:port[,host:port...][/namespace]", "file:///folder" or "memory:NAME". Empty: HEADRACE_STORE;
  /// if that is empty too, the agent has no store.
  std::string store = {};
  /// Values by option name, as in {"tcp.sockets", "4"}; `headrace doctor` prints the names. They win over the
  /// environment.
  std::map<std::string, std::string> options = {};
};

struct ExportOptions {
  std::vector<RegionId> regions = {};  ///< only these; empty: all
  bool regions_none = false;           ///< true: no region, connection information alone
  bool connection_info = true;         ///< how to reach this agent; later exports may omit it
  std::uint64_t since_version = 0;     ///< only changes after this version; 0: everything
};

/// The result of an import.
struct ImportReport {
  std::string peer;
  std::uint64_t incarnation = 0;
  std::uint64_t version = 0;  ///< of the metadata that this agent now holds; parts do not change it
  std::uint64_t regions = 0;  ///< number of regions known of this peer
  /// True: the peer restarted, and its earlier incarnation was known here. Requests on old handles end with
  /// peer_lost.
  bool restarted = false;
  /// Regions of this metadata that were not taken, because the peer has revoked them since it was made.
  std::uint64_t left_out = 0;
  std::string note;  ///< says so in a sentence; empty: all was taken
};

struct PeerInfo {
  std::string name;
  std::uint64_t incarnation = 0;
  std::uint64_t version = 0;
  std::uint64_t regions = 0;
  bool connected = false;
  bool lost = false;                  ///< it died, left or cannot be reached
  std::vector<std::string> backends;  ///< those that both agents have, and those that have a link
  std::string detail;                 ///< why the peer was lost, or a sentence from each backend
};

/// A change in the store's namespace: a peer joined, changed its metadata, or left.
struct PeerEvent {
  enum class Kind { joined, updated, left } kind = Kind::joined;
  std::string peer = {};
};

/// Bytes that a peer's post or Agent::notify delivered to this agent.
struct Notification {
  std::string peer = {};
  std::string payload = {};
};

/// Selects notifications. Both conditions must hold.
struct NotificationFilter {
  std::string peer = {};    ///< sender; empty: any
  std::string prefix = {};  ///< first bytes of the payload; empty: any
};

/// Tells of notifications that fit a filter, until it is destroyed. It takes one descriptor of the process.
class NotificationWatch {
 public:
  /// A descriptor that becomes readable when such a notification arrives, when one waits already, and when
  /// the agent is closed. It belongs to the watch: do not close it.
  [[nodiscard]] int fd() const { return fd_; }
  /// Makes it unreadable until the next such notification. Take what waits after it, not before.
  HEADRACE_API void drain() const;

 private:
  friend class Agent;
  NotificationWatch(std::shared_ptr<const void> watch, int fd) : watch_(std::move(watch)), fd_(fd) {}
  std::shared_ptr<const void> watch_;
  int fd_ = -1;
};

/// One option with its value.
struct OptionInfo {
  std::string name, default_value, value, unit, sentence;
  std::string source;  ///< of `value`: "default", "file", "environment", "caller"
};

/// One backend: what it is, what it can do, or why it did not load.
struct BackendInfo {
  std::string name, version, path;  ///< path: the shared object, or "linked in"
  bool loaded = false;
  std::string refusal;  ///< why it did not load, and what to do
  std::vector<MemoryKind> kinds;
  /// It moves pages inside one agent; to and from peers; carries notifications; serves Agent::map.
  bool local = false, remote = false, notifications = false, mapping = false;
  bool query = false;  ///< Agent::query can use it
  std::vector<OptionInfo> options;
  /// In Agent::backends: the addresses on which this agent's instance listens, as in "[::]:40213".
  std::vector<std::string> ports = {};
};

/// Lists every plugin on the search path, loaded or refused. Needs no agent. The test backend `fake` is
/// listed only if an option names it.
///   errors  invalid_argument (unknown option, or a value that the option does not accept)
HEADRACE_API Result<std::vector<BackendInfo>> list_backends(
    const std::map<std::string, std::string>& options = {});
/// Lists every option of the core and of all backends: its value and the source of the value. The options of
/// `fake` are listed only if an option names it.
///   errors  as list_backends
HEADRACE_API Result<std::vector<OptionInfo>> list_options(
    const std::map<std::string, std::string>& options = {});
/// Lists every agent in a store. Reads metadata alone and connects to no agent.
///   errors  invalid_argument (not a store's address), timed_out, and what the store returns
HEADRACE_API Result<std::vector<PeerInfo>> list_namespace(const std::string& store, Timeout timeout);

class FabricOptionsOf;

/// One participant of a process. A process may have several.
///   threads  every method may be called from any thread
///   fork     in a forked child every method returns invalid_argument
class Agent {
 public:
  class Impl;

  /// Opens an agent. Peers call it by `name`: 1 to 255 bytes.
  ///   errors  invalid_argument (name, option), backend_failed (a backend in `options.backends` does not
  ///           load: why)
  static HEADRACE_API Result<Agent> open(std::string name, AgentOptions options = {});
  /// Closes the agent, frees memory from `allocate`, and removes what it published from the store, if that
  /// answers within 2 s.
  HEADRACE_API ~Agent();
  HEADRACE_API Agent(Agent&&) noexcept;
  HEADRACE_API Agent& operator=(Agent&&) noexcept;

  /// Cancels requests in flight, lets the notifications leave that were accepted, and tells peers that the
  /// agent leaves. Calls that wait return canceled, later ones invalid_argument. Memory, mappings and
  /// requests stay until their handles go. The destructor does the same.
  ///   threads  at any time, beside any other call of this agent and of its requests; on the callback thread
  ///            too
  ///   blocks   until calls on other threads have returned and the requests have ended, 5 s at most; up to
  ///            1 s for notifications that peers do not take, and up to 1 s more until they have read what is
  ///            on its way
  HEADRACE_API void close();

  [[nodiscard]] HEADRACE_API const std::string& name() const;
  /// The random number of this start of the agent.
  [[nodiscard]] HEADRACE_API std::uint64_t incarnation() const;

  // --- memory

  /// Registers memory, so that requests can use it.
  ///   owns    the memory stays the caller's; it must stay in place until deregistered
  ///   errors  invalid_argument (empty, null, name in use), not_supported (no backend takes this kind: which
  ///           were tried)
  HEADRACE_API Result<Region> register_memory(const MemoryRange& range, const RegisterOptions& options = {});
  /// Registers many ranges: all or none. Their names are `options.name` followed by "/0", "/1", ...
  HEADRACE_API Result<std::vector<Region>> register_memory(std::span<const MemoryRange> ranges,
                                                           const RegisterOptions& options = {});
  /// Withdraws a region: tells every peer that knows it, waits until each has released it or is gone, then
  /// forgets it. Frees memory from `allocate`.
  ///   errors  not_found, would_block (requests of this agent are in flight and timeout is 0), timed_out (a
  ///           peer did not acknowledge: the region stays)
  HEADRACE_API Result<void> deregister(RegionId region, Timeout timeout = std::chrono::seconds(10));
  HEADRACE_API Result<void> deregister(std::span<const RegionId> regions,
                                       Timeout timeout = std::chrono::seconds(10));
  /// Allocates and registers memory that peers on this host can map and copy without the kernel's help: the
  /// fastest kind. The memory is page-aligned and holds zeros.
  ///   owns    the agent; `deregister` or the end of the agent frees it
  ///   errors  invalid_argument (no bytes, name in use, no such GPU), not_supported (kind), exhausted
  HEADRACE_API Result<Region> allocate(std::size_t length_bytes, const AllocateOptions& options = {});
  /// The memory of a region from `allocate`. It stays in place while a copy of the pointer lives, even after
  /// `deregister` and after the end of the agent. For callers that give views of it to others.
  ///   errors  not_found, not_supported (the region was registered: its memory is the caller's)
  HEADRACE_API Result<std::shared_ptr<std::byte>> storage(RegionId region) const;
  /// Makes a peer's region addressable here. The CPU can map memory from the peer's `allocate`; a GPU can map
  /// that memory and GPU memory.
  ///   device       the user of the mapping: a GPU of this process by its ordinal; -1: the CPU
  ///   interrupted  asked a few times a second while this waits; true ends it
  ///   errors       not_found (no such region, or deregistered), not_supported (the peer is on another host,
  ///                the host memory was only registered, or this GPU has no path to it: what each backend
  ///                said), invalid_argument (no such GPU; GPU memory for the CPU), peer_lost, timed_out,
  ///                canceled (interrupted)
  HEADRACE_API Result<Mapping> map(std::string_view peer, RegionId region,
                                   Timeout timeout = std::chrono::seconds(10), int device = -1,
                                   const std::function<bool()>& interrupted = {});
  /// The regions of this agent.
  [[nodiscard]] HEADRACE_API std::vector<Region> regions() const;
  /// Looks for a file, a block device or an object. Returns nullopt if it does not exist, else what the
  /// backend knows of it; "bytes" is always there.
  ///   errors  not_found (no such backend is open), not_supported (the backend has no such kind: which
  ///           backends have), invalid_argument (`what` is memory, or has no name)
  HEADRACE_API Result<std::optional<std::map<std::string, std::string>>> query(const MemoryRange& what,
                                                                               const std::string& backend);

  // --- peers and metadata

  /// This agent's metadata as bytes, for a peer's import_metadata.
  HEADRACE_API Result<std::string> export_metadata(const ExportOptions& options = {}) const;
  /// Increases with every registration change.
  [[nodiscard]] HEADRACE_API std::uint64_t metadata_version() const;
  /// Imports what a peer's export_metadata returned: everything, a part, or an update. Whole exports and
  /// parts come in any order; an update needs the version that it starts from, and a request needs the
  /// connection information, which any of them may have.
  ///   errors  corrupt (at which byte), invalid_argument (this agent's own metadata; another protocol
  ///           version)
  HEADRACE_API Result<ImportReport> import_metadata(std::string_view bytes);
  /// The address of the metadata socket, as "127.0.0.1:40213"; empty if the agent does not listen.
  [[nodiscard]] HEADRACE_API std::string listen_address() const;
  /// Fetches the metadata of the agent that listens at "host:port" and imports it.
  HEADRACE_API Result<ImportReport> fetch_metadata(const std::string& address,
                                                   Timeout timeout = std::chrono::seconds(10),
                                                   const std::string& label = {});
  /// Sends this agent's metadata to the agent that listens at "host:port".
  HEADRACE_API Result<void> send_metadata(const std::string& address, const ExportOptions& options = {},
                                          Timeout timeout = std::chrono::seconds(10));
  /// Publishes this agent's metadata in the store, and again after each registration change. The entry has a
  /// lease: it disappears when the agent ends.
  HEADRACE_API Result<void> publish(const ExportOptions& options = {}, const std::string& label = {});
  /// Removes this agent's metadata from the store.
  HEADRACE_API Result<void> unpublish();
  /// Looks a peer up in the store by its name and imports its metadata.
  HEADRACE_API Result<ImportReport> find(const std::string& peer, Timeout timeout = std::chrono::seconds(10),
                                         const std::string& label = {});
  /// The names of the agents in the store's namespace.
  HEADRACE_API Result<std::vector<std::string>> list_namespace(Timeout timeout = std::chrono::seconds(10));
  /// Calls `event` on the callback thread for every peer that joins, changes or leaves. Replaces an earlier
  /// watch; {} ends it.
  HEADRACE_API Result<void> watch_namespace(std::function<void(const PeerEvent&)> event);

  /// The peers whose metadata this agent has, and those that have connected to it, until they are forgotten.
  /// A peer that died stays in the list: `lost` is set, and `detail` says why.
  [[nodiscard]] HEADRACE_API std::vector<PeerInfo> peers() const;
  /// The regions of a peer. errors: not_found (no such peer)
  HEADRACE_API Result<std::vector<Region>> peer_regions(std::string_view peer) const;
  /// One region of a peer by its name. errors: not_found (no such peer or region)
  HEADRACE_API Result<Region> peer_region(std::string_view peer, std::string_view region_name) const;
  /// Connects to a peer before the first request and waits until a link is ready.
  ///   interrupted  asked a few times a second while this waits; true ends it (canceled)
  HEADRACE_API Result<void> connect(std::string_view peer, Timeout timeout = std::chrono::seconds(10),
                                    const std::vector<std::string>& backends = {},
                                    const std::function<bool()>& interrupted = {});
  /// Forgets a peer: cancels requests in flight with it, closes the links, drops its metadata. It waits for
  /// nothing: notifications to the peer that have not left are dropped.
  HEADRACE_API Result<void> forget(std::string_view peer);

  // --- pages and requests

  /// Prepares pages of this agent's regions.
  ///   errors  invalid_argument (no pages; a page of zero length: its index; a view that cannot be: why; a
  ///           length that differs from the view's), not_found (a page is not registered: its index)
  HEADRACE_API Result<PageList> prepare(const PageSpec& pages);
  /// Prepares pages of a peer's regions. With this agent's own name: the remote list of a move inside the
  /// agent.
  ///   errors  as above; invalid_argument (pages by address)
  HEADRACE_API Result<PageList> prepare(std::string_view peer, const PageSpec& pages);

  /// Makes a request that moves pages between this agent and one peer, or several peers with a part for each:
  /// one post, one deadline, one completion.
  ///   shapes  in each part the same number of pages on both sides, page i of the same length; views of the
  ///           same shape
  ///   errors  invalid_argument (counts or lengths differ: the index; shapes of views differ; no part; two
  ///           parts of one peer), not_found (revoked), not_supported (no common path: what each backend
  ///           said); of several parts with the part's number
  HEADRACE_API Result<Request> make_request(Op op, std::span<const RequestPart> parts,
                                            const RequestOptions& options = {});
  Result<Request> make_request(Op op, const RequestPart& part, const RequestOptions& options = {}) {
    return make_request(op, std::span(&part, 1), options);
  }

  // --- one-shot requests: both lists are prepared, the request is made and posted

  /// Returns once it is posted.
  ///   errors  those of prepare, make_request and Request::post
  HEADRACE_API Result<Request> post(Op op, std::string_view peer, const PageSpec& local,
                                    const PageSpec& remote, const PostOptions& options = {},
                                    const RequestOptions& request = {});
  /// Waits until the pages have moved. PostOptions::timeout limits it.
  ///   errors  as post, and those of Request::wait
  HEADRACE_API Result<Request> read(std::string_view peer, const PageSpec& local, const PageSpec& remote,
                                    const PostOptions& options = {}, const RequestOptions& request = {});
  HEADRACE_API Result<Request> write(std::string_view peer, const PageSpec& local, const PageSpec& remote,
                                     const PostOptions& options = {}, const RequestOptions& request = {});

  // --- notifications

  /// Sends one notification to a peer, without a request. One that is accepted is delivered, also if this
  /// agent is closed then, unless the peer or every way to it is lost, or it takes nothing for a second while
  /// this agent closes. What is not delivered is counted (notifications.dropped) and logged.
  ///   shapes  payload: up to 64 KiB
  ///   errors  would_block (the peer's program has to take some first, or the way there is full: retry),
  ///           not_found, peer_lost
  HEADRACE_API Result<void> notify(std::string_view peer, std::string_view payload);
  /// Takes the notifications that have arrived and fit the filter, oldest first. Runs progress once if none
  /// has arrived. errors: invalid_argument (the agent is closed)
  HEADRACE_API Result<std::vector<Notification>> take_notifications(const NotificationFilter& filter = {});
  /// The same for the oldest of them alone; nullopt: none has arrived.
  HEADRACE_API Result<std::optional<Notification>> take_notification(const NotificationFilter& filter = {});
  /// Waits for the next notification that fits. errors: timed_out
  HEADRACE_API Result<Notification> wait_notification(Timeout timeout = forever,
                                                      const NotificationFilter& filter = {});
  /// Passes each notification to `taken` on the callback thread instead of keeping it. {} ends that.
  HEADRACE_API void on_notification(std::function<void(Notification)> taken);
  /// A descriptor that is readable while notifications wait, and from the close of the agent on. It belongs
  /// to the agent: do not close it. errors: invalid_argument (the agent is closed), exhausted
  HEADRACE_API Result<int> notification_fd();
  /// The same for those that fit a filter.
  ///   errors  invalid_argument (the agent is closed), exhausted
  HEADRACE_API Result<NotificationWatch> watch_notifications(const NotificationFilter& filter);

  // --- counters

  /// The counter of the posts that arrive here with this immediate.
  ///   errors  invalid_argument (the agent is closed)
  HEADRACE_API Result<Counter> counter(Immediate immediate);

  // --- backends and telemetry

  /// The backends of this agent.
  [[nodiscard]] HEADRACE_API std::vector<BackendInfo> backends() const;
  /// Opens one more backend, with options of its table ({"sockets", "4"}). Peers see it with the next
  /// metadata.
  HEADRACE_API Result<void> create_backend(const std::string& name,
                                           const std::map<std::string, std::string>& options = {});
  /// The counters, histograms and events of this agent.
  [[nodiscard]] HEADRACE_API TelemetrySnapshot telemetry() const;

 private:
  friend class FabricOptionsOf;
  explicit Agent(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace headrace
