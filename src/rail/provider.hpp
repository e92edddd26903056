// SPDX-License-Identifier: Apache-2.0
// What drives one NIC. A provider moves bytes and reports ends; striping, counting, repeating and deadlines
// are its callers'. docs/decisions/0016 has the reasons and walks it through verbs, EFA, UCX, tcp.
#pragma once

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headrace::rail {

enum class PeerId : std::uint64_t { none = 0 };  ///< of one provider; never used twice
enum class MemoryId : std::uint32_t {};          ///< own memory, registered with one provider
enum class RemoteId : std::uint32_t {};          ///< memory of one peer

enum class Access : std::uint8_t { local, peers_read, peers_read_and_write };
struct Memory {
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;
  std::optional<int> device;  ///< a GPU by its number in CUDA; nullopt: host memory
  Access access = Access::local;
};
struct Registered {
  MemoryId id{};
  std::string key;  ///< for `load_memory` of peers. At most 256 bytes; no secret
};

/// Bytes that lie together on both sides; at least 1.
struct Move {
  MemoryId local{};
  RemoteId remote{};
  std::uint64_t local_offset = 0;
  std::uint64_t remote_offset = 0;
  std::uint64_t bytes = 0;
};
struct LocalRange {
  MemoryId memory{};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// The caller draws the token; the end of the post carries it.
struct Write {
  PeerId peer{};
  std::span<const Move> moves;        ///< may be empty if there is a mark; copied before the call returns
  std::optional<std::uint32_t> mark;  ///< reported to the peer after the bytes
  std::uint64_t token = 0;
};
struct Read {
  PeerId peer{};
  std::span<const Move> moves;
  std::uint64_t token = 0;
};

struct Event {
  enum class Kind : std::uint8_t {
    ended,     ///< token, status: a write, a read or a message of ours
    received,  ///< token, bytes: a message lies in that receive. Or status canceled: the NIC closes
    marked,    ///< mark: the bytes of a peer's write can be read, by the host and by later GPU work
    joined,    ///< text: the hello. The peer has added us; it can be posted to, and dropped, as any other
    ready,     ///< a peer that was added here can be posted to
    lost,      ///< status, text: nothing more can be posted to the peer. `drop_peer` still follows
    dropped,   ///< the last event of this peer
    down,      ///< status, text: the NIC cannot be used. `lost` of each peer follows or has come
    up,        ///< it can be used again, by peers that are added from now on
  };
  Kind kind{};
  PeerId peer{};
  std::uint64_t token = 0;
  Status status = {};
  std::uint32_t mark = 0;
  std::uint64_t bytes = 0;
  std::string text = {};
};

struct Health {
  bool up = true;
  std::string why;  ///< it is not up
};

struct ProviderInfo {
  std::string name;                     ///< of the NIC: "mlx5_0", "eth1"
  std::uint64_t bits_per_second = 0;    ///< of the link; 0: unknown
  std::uint32_t max_moves = 0;          ///< of one write or read
  std::uint32_t moves_with_mark = 0;    ///< a write with a mark and more moves than that costs a round trip
  std::uint32_t max_posts = 0;          ///< to one peer at least, that have not ended; beyond it would_block
  std::uint32_t marks_in_flight = 0;    ///< that all peers together may have under way to this NIC
  std::uint32_t max_message_bytes = 0;  ///< at least 4096
  bool gpu_memory = false;
  bool near = false;  ///< its peers are of this host: engines prefer it to all others
};

/// A provider of one NIC. Each implementation has a static `open` that returns a Result.
///   threads  one at a time calls it; `register_memory` and `deregister` come from any thread, also beside it
///   owns     nothing of its caller's. Its destructor drops all peers and waits for its own hardware alone
class Provider {
 public:
  Provider() = default;
  Provider(const Provider&) = delete;
  Provider& operator=(const Provider&) = delete;
  virtual ~Provider() = default;

  /// Constant while the NIC is open. May not ask the NIC.
  [[nodiscard]] virtual const ProviderInfo& info() const = 0;
  /// Where peers find this NIC, for `add_peer`. May not change while the NIC is up, and holds no secret.
  [[nodiscard]] virtual std::string address() const = 0;
  /// What is known here. May not ask the network.
  [[nodiscard]] virtual Health health() const = 0;

  /// May not wait for a peer, nor touch the memory's content.
  ///   errors  not_supported (kind of memory), invalid_argument, exhausted
  virtual Result<Registered> register_memory(const Memory& memory) = 0;
  /// When it returns, no peer can reach the memory through this NIC, also not with a key that it has. The
  /// caller has no post on the memory.
  virtual void deregister(MemoryId memory) = 0;
  /// Of memory that was deregistered: a peer may have it mapped yet. Nothing of it is read or written any
  /// more, but who frees it waits until this is false. A NIC whose peers map nothing need not say it.
  [[nodiscard]] virtual bool is_open_at_peers(MemoryId /*memory*/) { return false; }

  /// Starts to connect; `ready` or `lost` follows, here, and `joined` with the hello (at most 256 bytes)
  /// there. May not wait, and may not replace or end another peer of the same address.
  ///   errors  corrupt (the address), not_supported (it is of another kind of NIC), exhausted
  virtual Result<PeerId> add_peer(std::string_view address, std::string_view hello) = 0;
  /// Starts to forget the peer; `dropped` follows. Before it: all events of bytes that have come, and the
  /// ends of all posts to the peer. After it may not be placed a byte of this peer that came over this NIC,
  /// nor may ours be read. May not wait for the peer: it may be dead.
  virtual void drop_peer(PeerId peer) = 0;

  /// Makes a peer's memory known by its key. May not wait for the peer, nor trust the key: it is bytes from
  /// outside.
  ///   errors  corrupt (the key), not_found (the peer is not ready)
  virtual Result<RemoteId> load_memory(PeerId peer, std::string_view key) = 0;
  /// The caller has no post on it. Unknown ids are ignored: a peer that is dropped takes them along.
  virtual void unload_memory(PeerId peer, RemoteId memory) = 0;

  // Posts. `ended` comes once for each that answered ok, and for no other:
  //   ok              write: the bytes are in the peer's memory, and its mark or message is, or will be,
  //                   reported; "sent" is not enough. Read: the bytes can be read here.
  //                   No byte of the post is placed after this end, nor after its mark
  //   not_found       the peer refuses the range or has no such memory. Repeating it is of no use
  //   canceled        by `cancel`; what moved is unknown
  //   any other       the rail has failed; what moved is unknown
  // It may not come while the NIC may still touch this side's memory. Ends, marks and messages may come in
  // any order; posts may overtake one another.
  //   errors  would_block (the queue is full: poll, retry), peer_lost (lost, dropped, not ready),
  //           invalid_argument (empty, too long, or outside of registered memory)

  /// May not report the mark before each byte of this post can be read there, nor twice, nor without them.
  virtual Status post_write(const Write& write) = 0;
  virtual Status post_read(const Read& read) = 0;
  /// May not be dropped if the peer has no receive: it waits, and delays no write.
  virtual Status post_message(PeerId peer, const LocalRange& bytes, std::uint64_t token) = 0;
  /// For one message of any peer. `received` gives it back. May not be used up by a mark. A message that is
  /// longer ends at its sender with invalid_argument and leaves the receive posted.
  virtual Status post_receive(const LocalRange& room, std::uint64_t token) = 0;
  /// Asks that a post to this peer ends soon. It may end ok all the same, or take its time: who needs it
  /// quiet drops the peer.
  virtual void cancel(PeerId peer, std::uint64_t token) = 0;

  /// Whether something that only a living peer sends has come since this was last asked: bytes of a write
  /// without a mark are told by no event. False also if the NIC cannot tell.
  [[nodiscard]] virtual bool heard_from(PeerId peer) = 0;

  /// Does the NIC's work and fills in what has happened; returns how many events. May not block, nor keep
  /// an event back while `events` has room.
  virtual std::size_t poll(std::span<Event> events) = 0;
  /// Readable when `poll` has work, once `arm` has returned true; -1: it must be polled.
  [[nodiscard]] virtual int descriptor() const { return -1; }
  /// Before its caller sleeps. False: something has come meanwhile, poll first.
  virtual bool arm() { return false; }
};

}  // namespace headrace::rail
