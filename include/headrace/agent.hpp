// SPDX-License-Identifier: Apache-2.0
// The agent: one participant. It owns regions, knows peers, and makes the requests that move pages between
// them.
#pragma once

#include <headrace/request.hpp>
#include <headrace/telemetry.hpp>

#include <map>

namespace headrace {

struct AgentOptions {
  /// Backends to open; empty: every one that loads on this machine.
  std::vector<std::string> backends = {};
  /// "host:port" to answer metadata queries on; port 0 picks one; empty: do not listen. See
  /// Agent::listen_address().
  std::string listen = {};
  /// "etcd://host:port[,host:port...][/namespace]", "file:///folder", "memory:NAME"; empty: HEADRACE_STORE,
  /// else none.
  std::string store = {};
  /// Rows of the option table (`headrace doctor` prints it) by name: {"tcp.sockets", "4"}. Wins over the
  /// environment.
  std::map<std::string, std::string> options = {};
};

struct ExportOptions {
  std::vector<RegionId> regions = {};  ///< only these; empty: all
  bool regions_none = false;           ///< no region at all: connection information alone
  bool connection_info = true;         ///< how to reach us; may be left out of later parts
  std::uint64_t since_version = 0;     ///< only what changed after this version; 0: everything
};

/// What an import did.
struct ImportReport {
  std::string peer;
  std::uint64_t incarnation = 0;
  std::uint64_t version = 0;  ///< of the metadata that we now hold
  std::uint64_t regions = 0;  ///< known of this peer now
  bool restarted = false;  ///< it replaces an earlier life of the same name: old handles now end in peer_lost
};

struct PeerInfo {
  std::string name;
  std::uint64_t incarnation = 0;
  std::uint64_t version = 0;
  std::uint64_t regions = 0;
  bool connected = false;
  bool lost = false;
  std::vector<std::string> backends;  ///< that both have
  std::string detail;                 ///< why it was lost, or what each backend says
};

/// A peer of the namespace came, changed or went, as the store tells it.
struct PeerEvent {
  enum class Kind { joined, updated, left } kind = Kind::joined;
  std::string peer = {};
};

struct Notification {
  std::string peer = {};
  std::string payload = {};
};

struct NotificationFilter {
  std::string peer = {};    ///< empty: any
  std::string prefix = {};  ///< of the payload; empty: any
};

struct OptionInfo {
  std::string name, default_value, value, unit, sentence;
  std::string source;  ///< "default", "file", "environment", "caller"
};

struct BackendInfo {
  std::string name, version, path;  ///< path: the shared object, or "linked in"
  bool loaded = false;
  std::string refusal;  ///< why it did not load, and what to do
  std::vector<MemoryKind> kinds;
  bool local = false, remote = false, notifications = false, mapping = false;
  bool query = false;  ///< whether Agent::query can ask it
  std::vector<OptionInfo> options;
};

/// Every plugin that the search path holds, loaded or refused, without an agent. Of `fake`, which is for
/// tests, nothing is told here, nor by list_options, unless an option names it.
///   errors  invalid_argument (an option that does not exist, or has a value that it cannot have)
HEADRACE_API Result<std::vector<BackendInfo>> list_backends(
    const std::map<std::string, std::string>& options = {});
/// Every option of the core and of all backends, with the value in force and where it comes from.
HEADRACE_API Result<std::vector<OptionInfo>> list_options(
    const std::map<std::string, std::string>& options = {});
/// The metadata of every agent that a store knows: name -> PeerInfo (regions counted, nothing connected).
HEADRACE_API Result<std::vector<PeerInfo>> list_namespace(const std::string& store, Timeout timeout);

///   threads  every method may be called from any thread
///   fork     in a forked child every method answers invalid_argument
class Agent {
 public:
  class Impl;

  /// `name` is what peers call this agent: 1 to 255 bytes.
  ///   errors  invalid_argument (name, option), backend_failed (a backend that was asked for does not load:
  ///   says why)
  static HEADRACE_API Result<Agent> open(std::string name, AgentOptions options = {});
  HEADRACE_API ~Agent();  ///< cancels what is in flight, tells peers, frees what `allocate` gave
  HEADRACE_API Agent(Agent&&) noexcept;
  HEADRACE_API Agent& operator=(Agent&&) noexcept;

  [[nodiscard]] HEADRACE_API const std::string& name() const;
  [[nodiscard]] HEADRACE_API std::uint64_t incarnation() const;

  // --- memory

  /// Makes memory reachable. It must stay in place until deregistered.
  ///   errors  invalid_argument (empty, null, name in use), not_supported (no backend takes this kind: names
  ///   what was tried)
  HEADRACE_API Result<Region> register_memory(const MemoryRange& range, const RegisterOptions& options = {});
  /// Many at once: all or none. `options.name`, if given, is followed by "/0", "/1", ...
  HEADRACE_API Result<std::vector<Region>> register_memory(std::span<const MemoryRange> ranges,
                                                           const RegisterOptions& options = {});
  /// Tells every peer that knows the region, waits until each has let go or is gone, then forgets it; frees
  /// what `allocate` gave.
  ///   errors  not_found, would_block (requests of ours are in flight and timeout is 0), timed_out (a peer
  ///   did not answer: the
  ///           region stays)
  HEADRACE_API Result<void> deregister(RegionId region, Timeout timeout = std::chrono::seconds(10));
  HEADRACE_API Result<void> deregister(std::span<const RegionId> regions,
                                       Timeout timeout = std::chrono::seconds(10));
  /// Memory that peers on this host map and copy without the kernel's help: the fastest kind. Zero-filled,
  /// page-aligned, registered; freed by `deregister` or with the agent.
  HEADRACE_API Result<Region> allocate(std::size_t length_bytes, const AllocateOptions& options = {});
  /// The memory of a region that `allocate` gave. It stays in place while a copy of this lives, after
  /// `deregister` and the agent's end too: for those who hand out views of it.
  ///   errors  not_found, not_supported (the region was registered: its memory is the caller's)
  HEADRACE_API Result<std::shared_ptr<std::byte>> storage(RegionId region) const;
  /// A peer's region as memory of ours: for the CPU what it got from `allocate`, for the kernels of a GPU its
  /// GPU memory, too.
  ///   device   who will use it: a GPU of this process by its ordinal, or -1, the CPU
  ///   errors   not_found (no such region, or deregistered), not_supported (on another host, merely
  ///   registered host memory, no way
  ///            from this GPU: what each backend said), invalid_argument (no such GPU; GPU memory for the
  ///            CPU), peer_lost, timed_out
  HEADRACE_API Result<Mapping> map(std::string_view peer, RegionId region,
                                   Timeout timeout = std::chrono::seconds(10), int device = -1);
  [[nodiscard]] HEADRACE_API std::vector<Region> regions() const;
  /// Does this file, block device or object exist? nullopt: no. Else what the backend knows, "bytes" among
  /// it.
  ///   errors  not_found (no such backend is open here), not_supported (it keeps nothing of the kind: who can
  ///   be asked),
  ///           invalid_argument (asked about memory, or without a name)
  HEADRACE_API Result<std::optional<std::map<std::string, std::string>>> query(const MemoryRange& what,
                                                                               const std::string& backend);

  // --- peers and metadata

  HEADRACE_API Result<std::string> export_metadata(const ExportOptions& options = {}) const;
  [[nodiscard]] HEADRACE_API std::uint64_t metadata_version() const;
  /// Takes in what a peer's export_metadata gave: whole, part, or update, in any order after the connection
  /// information.
  ///   errors  corrupt (says where), invalid_argument (our own; another protocol version)
  HEADRACE_API Result<ImportReport> import_metadata(std::string_view bytes);
  /// Where `listen` listens, for example "127.0.0.1:40213"; empty if it does not.
  [[nodiscard]] HEADRACE_API std::string listen_address() const;
  /// Asks the agent that listens at "host:port" for its metadata and imports it.
  HEADRACE_API Result<ImportReport> fetch_metadata(const std::string& address,
                                                   Timeout timeout = std::chrono::seconds(10),
                                                   const std::string& label = {});
  /// Gives our metadata to the agent that listens at "host:port".
  HEADRACE_API Result<void> send_metadata(const std::string& address, const ExportOptions& options = {},
                                          Timeout timeout = std::chrono::seconds(10));
  /// Publishes our metadata in the store, under a lease that ends with us, and again after each registration
  /// change.
  HEADRACE_API Result<void> publish(const ExportOptions& options = {}, const std::string& label = {});
  /// Takes it out of the store.
  HEADRACE_API Result<void> unpublish();
  /// Looks a peer up in the store by name and imports it: how to reach one never told of.
  HEADRACE_API Result<ImportReport> find(const std::string& peer, Timeout timeout = std::chrono::seconds(10),
                                         const std::string& label = {});
  /// The names in the store's namespace.
  HEADRACE_API Result<std::vector<std::string>> list_namespace(Timeout timeout = std::chrono::seconds(10));
  /// Calls on the callback thread for every peer that comes, changes or goes. Replaces an earlier watch; {}
  /// ends it.
  HEADRACE_API Result<void> watch_namespace(std::function<void(const PeerEvent&)> event);

  [[nodiscard]] HEADRACE_API std::vector<PeerInfo> peers() const;
  HEADRACE_API Result<std::vector<Region>> peer_regions(std::string_view peer) const;
  HEADRACE_API Result<Region> peer_region(std::string_view peer, std::string_view region_name) const;
  /// Connects ahead of use and waits until it is done.
  HEADRACE_API Result<void> connect(std::string_view peer, Timeout timeout = std::chrono::seconds(10),
                                    const std::vector<std::string>& backends = {});
  /// Ends what is in flight with it (canceled), closes the links, drops its metadata.
  HEADRACE_API Result<void> forget(std::string_view peer);

  // --- pages and requests

  /// Our own pages.
  ///   errors  invalid_argument (no pages, a zero-length page: its index), not_found (not registered: its
  ///   index)
  HEADRACE_API Result<PageList> prepare(std::span<const AddressPage> pages);
  HEADRACE_API Result<PageList> prepare(std::span<const Page> pages);
  HEADRACE_API Result<PageList> prepare(const UniformPages& pages);
  HEADRACE_API Result<PageList> prepare(const RegionPages& pages);
  /// A peer's pages, or by our own name the far side of a transfer to ourselves.
  HEADRACE_API Result<PageList> prepare(std::string_view peer, std::span<const Page> pages);
  HEADRACE_API Result<PageList> prepare(std::string_view peer, const UniformPages& pages);
  HEADRACE_API Result<PageList> prepare(std::string_view peer, const RegionPages& pages);
  /// The same, for pages that are strided views. A page's length is what the view has, `shape` times
  /// `item_bytes`; of uniform pages 0 will do, but their stride is to be told. Whatever the view reaches lies
  /// in the page's region.
  ///   errors  as above; invalid_argument (a view that cannot be: what is wrong with it; a length that is not
  ///   the view's)
  HEADRACE_API Result<PageList> prepare(std::span<const AddressPage> pages, const PageView& view);
  HEADRACE_API Result<PageList> prepare(std::span<const Page> pages, const PageView& view);
  HEADRACE_API Result<PageList> prepare(const UniformPages& pages, const PageView& view);
  HEADRACE_API Result<PageList> prepare(std::string_view peer, std::span<const Page> pages,
                                        const PageView& view);
  HEADRACE_API Result<PageList> prepare(std::string_view peer, const UniformPages& pages,
                                        const PageView& view);

  /// Page i of local against page i of remote.
  ///   errors  invalid_argument (counts or lengths differ: the index; views differ in shape), not_found
  ///   (revoked),
  ///           not_supported (no common path: says what each said)
  HEADRACE_API Result<Request> make_request(Op op, const PageList& local, const PageList& remote,
                                            const RequestOptions& options = {});
  /// Page local_index[i] of local against page remote_index[i] of remote.
  HEADRACE_API Result<Request> make_request(Op op, const PageList& local,
                                            std::span<const std::uint32_t> local_index,
                                            const PageList& remote,
                                            std::span<const std::uint32_t> remote_index,
                                            const RequestOptions& options = {});
  HEADRACE_API Result<Request> make_request(Op op, const PageList& local,
                                            std::span<const std::int32_t> local_index, const PageList& remote,
                                            std::span<const std::int32_t> remote_index,
                                            const RequestOptions& options = {});
  HEADRACE_API Result<Request> make_request(Op op, const PageList& local,
                                            std::span<const std::int64_t> local_index, const PageList& remote,
                                            std::span<const std::int64_t> remote_index,
                                            const RequestOptions& options = {});

  /// To or from several peers at once, a part each: one post, one deadline, one end. See RequestPart.
  ///   errors  as above, with the part's number; invalid_argument (no part; two of one peer)
  HEADRACE_API Result<Request> make_request(Op op, std::span<const RequestPart> parts,
                                            const RequestOptions& options = {});

  // --- notifications

  /// A message on its own, up to 64 KiB. errors: would_block (too many wait: retry), not_found, peer_lost
  HEADRACE_API Result<void> notify(std::string_view peer, std::string_view payload);
  /// What has come in and fits the filter, oldest first; empty if nothing has. Gives the paths a slice of
  /// time.
  HEADRACE_API std::vector<Notification> take_notifications(const NotificationFilter& filter = {});
  /// The next one that fits. errors: timed_out
  HEADRACE_API Result<Notification> wait_notification(Timeout timeout = forever,
                                                      const NotificationFilter& filter = {});
  /// Hands each to `taken` on the callback thread instead of keeping it. {} ends that.
  HEADRACE_API void on_notification(std::function<void(Notification)> taken);
  /// A descriptor that is readable while notifications wait; the agent's.
  HEADRACE_API Result<int> notification_fd();

  // --- backends and telemetry

  [[nodiscard]] HEADRACE_API std::vector<BackendInfo> backends() const;
  /// Opens one more, with options of its table ({"sockets", "4"}). Peers learn of it with the next metadata.
  HEADRACE_API Result<void> create_backend(const std::string& name,
                                           const std::map<std::string, std::string>& options = {});
  [[nodiscard]] HEADRACE_API TelemetrySnapshot telemetry() const;

 private:
  explicit Agent(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace headrace
