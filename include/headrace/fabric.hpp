// SPDX-License-Identifier: Apache-2.0
// A fabric: writes to any peer over all network cards at once, and counts arrivals.
//
// Register memory, give its descriptor (a few bytes) to a peer by any way, and the peer writes. No store, no
// names, no agent. Peers over tcp prove that they know the secret (auth_token) if there is one. Bytes are not
// encrypted: docs/security.md.
#pragma once

#include <headrace/fabric_commands.hpp>
#include <headrace/fabric_memory.hpp>
#include <headrace/fabric_work.hpp>
#include <headrace/telemetry.hpp>

#include <map>
#include <string>

namespace headrace {

namespace fabric {
class PeerGroup;
}

/// A group by hand.
struct FabricGroupOptions {
  /// Names of network cards or interfaces ("mlx5_0", "eth0"), or local IP addresses, each once. "this host":
  /// shared memory, for peers of this user on this host.
  std::vector<std::string> nics;
  std::vector<unsigned> cpus = {};  ///< of its worker; empty: those near the device
  std::optional<int> device = {};   ///< the GPU; nullopt: host memory
};

/// What a worker does when it has nothing to do.
enum class FabricSpin : std::uint8_t {
  brief,   ///< polls for some microseconds, then sleeps
  always,  ///< polls. A core for each group, for the shortest latency
};

struct FabricOptions {
  /// A group for each of these GPUs, by ordinal, with the network cards near it. Empty: one group for host
  /// memory, that of the NUMA node of the calling thread. Each has "this host", too.
  std::vector<int> devices = {};
  unsigned nics_per_group = 0;  ///< 0: all cards near it
  /// Instead of `devices`.
  std::vector<FabricGroupOptions> groups = {};
  FabricSpin spin = FabricSpin::brief;
  /// Values by option name, of those that agents have: {"auth_token_file", "/run/secrets/headrace"}. They win
  /// over the environment.
  std::map<std::string, std::string> options = {};
};

/// A network card of a group.
struct FabricNic {
  std::string name;
  std::string provider;               ///< what drives it: "tcp"; empty: it is not used
  std::string address;                ///< where peers find it
  std::uint64_t bits_per_second = 0;  ///< 0: unknown
  bool up = false;
  std::string why;  ///< it is not used, or not up
};

/// Network cards, the GPU and CPUs near them, and the worker that drives them.
struct FabricGroup {
  std::optional<int> device;
  std::vector<unsigned> cpus;   ///< of the worker
  std::vector<FabricNic> nics;  ///< those that are used come first; posts are pinned by this place
};

/// Pages of one memory: page i begins at offset_bytes + k * stride_bytes, where k is indices[i], or i.
struct FabricPages {
  PageNumbers indices = {};        ///< copied at post; none: 0, 1, 2, ...
  std::uint64_t stride_bytes = 0;  ///< 0: the length of a page
  std::uint64_t offset_bytes = 0;
};

/// One target of a scatter.
struct FabricTarget {
  FabricDescriptor to;
  std::uint64_t from_offset = 0;  ///< in the source
  std::uint64_t to_offset = 0;
  std::uint64_t bytes = 0;
};

/// A peer. A handle, cheap to copy.
class FabricPeer {
 public:
  FabricPeer() = default;
  [[nodiscard]] const FabricAddress& address() const { return address_; }
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(address_); }

 private:
  friend class fabric::Core;
  explicit FabricPeer(FabricAddress address) : address_(std::move(address)) {}
  FabricAddress address_;
};

/// Peers under one scope of immediates. A handle, cheap to copy: all copies see who joins and leaves.
///   threads  any
class FabricPeers {
 public:
  FabricPeers() = default;
  [[nodiscard]] HEADRACE_API std::uint32_t scope() const;
  [[nodiscard]] HEADRACE_API std::vector<FabricPeer> members() const;
  /// Does nothing for a member.
  HEADRACE_API void join(const FabricPeer& peer) const;
  /// Later posts to the group do not go to it. Its link stays: Fabric::forget ends that.
  ///   errors  not_found (no member)
  HEADRACE_API Result<void> leave(const FabricPeer& peer) const;
  [[nodiscard]] explicit operator bool() const noexcept { return group_ != nullptr; }

 private:
  friend class fabric::Core;
  explicit FabricPeers(std::shared_ptr<fabric::PeerGroup> group) : group_(std::move(group)) {}
  std::shared_ptr<fabric::PeerGroup> group_;
};

/// Since the fabric was opened.
struct FabricCounters {
  std::uint64_t done = 0;              ///< posts
  std::uint64_t failed = 0;            ///< posts that ended with an error, canceled ones among them
  std::uint64_t arrivals = 0;          ///< immediates that were counted
  std::uint64_t arrivals_lost = 0;     ///< nobody expected them, and the list was full
  std::uint64_t callbacks_failed = 0;  ///< that threw
};

/// One participant. A process may have several.
///
/// Each group has a worker, a thread that drives its network cards; the fabric has a callback thread.
/// Callbacks hold no lock and may call anything: post, register, close, destroy. One that throws is told to
/// `on_error`, and all goes on.
///
/// Handles (memory, work, expectations, peers, buffers) keep the fabric's state, not its threads: after the
/// close every call on them returns at once, with canceled or invalid_argument.
///
/// For bindings: every function that can wait says so (`blocks`); callbacks come on the callback thread
/// alone, one at a time, and the last one has returned when `close` returns on another thread. A function
/// that was given is destroyed on the callback thread, or on the thread that replaces it, closes, or drops
/// its last handle.
///   threads  every method, from any thread
///   fork     in a forked child every method returns invalid_argument
class Fabric {
 public:
  /// Opens the network cards and starts the workers.
  ///   errors  invalid_argument (a card twice, one near another GPU, no card, no such GPU, CPU or address;
  ///           an unknown option; a required secret that is missing), not_found (no card or interface of that
  ///           name), exhausted, those of the system
  [[nodiscard]] static HEADRACE_API Result<Fabric> open(const FabricOptions& options = {});
  HEADRACE_API ~Fabric();
  HEADRACE_API Fabric(Fabric&&) noexcept;
  HEADRACE_API Fabric& operator=(Fabric&&) noexcept;

  /// Ends all posts (canceled), expectations and links. Immediates of posts that were done still leave.
  ///   threads  at any time, beside any other call; also in a callback
  ///   blocks   up to 1 s for immediates that peers do not take, and, on other threads, until the callback
  ///   that
  ///            runs has returned
  HEADRACE_API void close();

  [[nodiscard]] HEADRACE_API FabricAddress address() const;
  [[nodiscard]] HEADRACE_API std::vector<FabricGroup> groups() const;
  /// Of all network cards together whose speed is known.
  [[nodiscard]] HEADRACE_API std::uint64_t bits_per_second() const;
  [[nodiscard]] HEADRACE_API FabricCounters counters() const;
  [[nodiscard]] HEADRACE_API TelemetrySnapshot telemetry() const;

  // --- memory

  /// Registers memory with the network cards of a group: `group`, or else that of the memory's GPU, or the
  /// first.
  ///   owns    the memory stays the caller's, in place until deregistered or the fabric is closed
  ///   errors  invalid_argument (empty, null, not dram or vram, a GPU without a group), not_supported (a
  ///   network
  ///           card that cannot reach this kind of memory)
  [[nodiscard]] HEADRACE_API Result<FabricMemory> register_memory(const MemoryRange& range,
                                                                  FabricAccess access = FabricAccess::local,
                                                                  std::optional<std::size_t> group = {});
  /// Cancels the posts that use it. When it returns, they have ended, and no peer reaches the memory.
  ///   blocks  until they have ended, and peers of this host have closed memory of a GPU
  ///   errors  not_found (deregistered already, or of another fabric), timed_out (it is deregistered, but a
  ///           peer has not closed it for ten seconds: the memory should not be freed yet)
  HEADRACE_API Result<void> deregister(const FabricMemory& memory);
  /// `count` buffers of `bytes` each, in registered host memory of the first group.
  ///   errors  invalid_argument (none, or empty), exhausted
  [[nodiscard]] HEADRACE_API Result<FabricBuffers> host_buffers(std::size_t count, std::uint64_t bytes);

  // --- peers

  /// Starts to connect, so that the first post finds a link. Posts do it by themselves.
  ///   errors  not_supported (none of its network cards is of a kind that we have). Whether it can be reached
  ///           is not known yet: posts to it tell
  HEADRACE_API Result<FabricPeer> connect(const FabricAddress& address);
  /// Ends the links to it: posts to it end with canceled. A later post connects again.
  HEADRACE_API Result<void> forget(const FabricPeer& peer);
  /// Connects to all. `scope`: of the immediates of `barrier`, and of posts that take it from
  /// FabricPeers::scope.
  HEADRACE_API Result<FabricPeers> peer_group(std::uint32_t scope, std::span<const FabricAddress> addresses);

  // --- posts: each is checked before a byte leaves, and returns once posted
  //   errors  invalid_argument (outside of the memory: which range, page or index; lists that differ; memory
  //   that
  //           its owner did not make writable or readable; memory of another fabric; no such network card; no
  //           target), not_found (deregistered), would_block (too many posts run: wait for some), canceled
  //           (closed meanwhile)

  HEADRACE_API Result<FabricWork> write(const FabricMemory& from, std::uint64_t from_offset,
                                        const FabricDescriptor& to, std::uint64_t to_offset,
                                        std::uint64_t bytes, const FabricPost& post = {});
  /// `count` pages of `page_bytes` each, page i of the one side to page i of the other. Where pages overlap
  /// at the target, bytes of any of them arrive.
  HEADRACE_API Result<FabricWork> write_pages(const FabricMemory& from, const FabricPages& from_pages,
                                              const FabricDescriptor& to, const FabricPages& to_pages,
                                              std::uint64_t page_bytes, std::uint64_t count,
                                              const FabricPost& post = {});
  /// From one memory to many. Each target's peer counts the immediate after its own bytes.
  HEADRACE_API Result<FabricWork> scatter(const FabricMemory& from, std::span<const FabricTarget> targets,
                                          const FabricPost& post = {});
  HEADRACE_API Result<FabricWork> read(const FabricMemory& to, std::uint64_t to_offset,
                                       const FabricDescriptor& from, std::uint64_t from_offset,
                                       std::uint64_t bytes, const FabricPost& post = {});
  HEADRACE_API Result<FabricWork> read_pages(const FabricMemory& to, const FabricPages& to_pages,
                                             const FabricDescriptor& from, const FabricPages& from_pages,
                                             std::uint64_t page_bytes, std::uint64_t count,
                                             const FabricPost& post = {});
  /// An immediate alone.
  HEADRACE_API Result<FabricWork> post_immediate(const FabricPeer& peer, Immediate immediate,
                                                 const FabricPost& post = {});
  /// Tells every member, and ends when every member has told this fabric with the same value. Each member
  /// calls it, with the others in its group; nobody expects (group's scope, value) by `expect`.
  HEADRACE_API Result<FabricWork> barrier(const FabricPeers& peers, std::uint32_t value,
                                          const FabricPost& post = {});

  /// A queue through which kernels post writes of this list, all from memory of one group.
  ///   errors  as posts, of which write; invalid_argument (an empty list, 0 slots or more than 4096, no such
  ///           GPU), not_supported (no GPU driver), exhausted
  [[nodiscard]] HEADRACE_API Result<FabricCommandQueue> command_queue(
      std::span<const FabricQueueWrite> writes, const FabricQueueOptions& options = {});

  // --- messages: for what the receiver gives the place. They go between the first groups of both sides. Of a
  //     post's options they take the timeout alone

  /// A message of any length for the next receive of the peer. It waits until there is one, and is done when
  /// it lies there. Messages to one peer arrive in the order of their sends. One of memory of a GPU is copied
  /// into host memory first: those to a peer that have not ended have at most 64 MiB of that, or one alone.
  ///   errors  as posts; its end: invalid_argument (longer than the receive, which stays posted: both
  ///   lengths), not_found (memory of a GPU that was freed since), exhausted (no host memory for it)
  HEADRACE_API Result<FabricWork> send(const FabricPeer& peer, const FabricMemory& from,
                                       std::uint64_t from_offset, std::uint64_t bytes,
                                       const FabricPost& post = {});
  /// Room for one message of any peer. Receives are used in the order of their posts. A message for memory of
  /// a GPU comes into host memory first, of which the receive takes as much; then it is copied.
  HEADRACE_API Result<FabricWork> receive(const FabricMemory& to, std::uint64_t to_offset,
                                          std::uint64_t bytes, const FabricPost& post = {});
  /// `count` buffers of `bytes` each. Each message is told on the callback thread; its buffer receives again
  /// when `received` has returned.
  ///   errors  invalid_argument (no buffer, empty ones, no function), exhausted
  HEADRACE_API Result<FabricReceiver> receive_all(std::size_t count, std::uint64_t bytes,
                                                  std::function<void(std::span<const std::byte>)> received);

  // --- counting

  /// Counts arrivals of an immediate in rounds of `arrivals`. What came before counts.
  ///   errors  invalid_argument (0 arrivals; it is expected already)
  [[nodiscard]] HEADRACE_API Result<FabricExpectation> expect(Immediate immediate, std::uint64_t arrivals);
  /// Passes arrivals that nobody expects to `arrived`, with their number, on the callback thread; those that
  /// have come before, too. {}: they are kept for a later `expect`, up to 16384 different ones.
  HEADRACE_API void on_unexpected(std::function<void(Immediate, std::uint64_t)> arrived);
  /// A word that kernels of this GPU change; nullopt: threads. The worker of its group, or the first one,
  /// polls it: in each turn while it works, and after an idle time t within t/16, at most two milliseconds.
  /// `changed(before, now)` is called on the callback thread until it returns false; values between two calls
  /// are not told. What was written before a value can be read by the function, and by work that it begins.
  ///   errors  exhausted (4096 words of a group are watched), not_supported (no GPU driver), invalid_argument
  ///           (no function, no such GPU)
  [[nodiscard]] HEADRACE_API Result<FabricWatcher> watch(
      std::function<bool(std::uint64_t before, std::uint64_t now)> changed, std::optional<int> device = {});

  /// Told of callbacks that throw, and of what goes wrong where no post tells it, on the callback thread.
  /// {}: they are only counted and logged.
  HEADRACE_API void on_error(std::function<void(const Error&)> failed);

 private:
  friend class fabric::Core;
  explicit Fabric(std::shared_ptr<fabric::Core> core) : core_(std::move(core)) {}
  std::shared_ptr<fabric::Core> core_;
};

}  // namespace headrace
