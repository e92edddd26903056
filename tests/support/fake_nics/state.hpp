// SPDX-License-Identifier: Apache-2.0
// What the fake NICs of one network share, behind one lock.
#pragma once

#include "support/fake_nics.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace headrace::test::fake_nics {

inline constexpr std::uint32_t max_posts = 256;
inline constexpr std::uint32_t max_moves = 64;
inline constexpr std::uint32_t max_message_bytes = 64 * 1024 + 64;

struct Connection;

struct Nic {
  rail::ProviderInfo info;
  bool open = true;
  bool dead = false;  ///< places and reports nothing, whether or not that is known
  bool down = false;  ///< its software knows that it cannot be used
  std::deque<rail::Event> events;
  std::map<std::uint32_t, rail::Memory> memories;
  std::map<std::uint64_t, std::shared_ptr<Connection>> peers;  // until `dropped`
  std::uint32_t next_memory = 1;
  std::uint64_t next_peer = 1;
  std::uint32_t posts = 0;
  struct Receive {
    rail::LocalRange room;
    std::uint64_t token;
  };
  std::deque<Receive> receives;
  std::map<std::uint64_t, Receive> given;  // with a message, by token
};

/// One side of a connection. `nic` lives as long as the state.
struct End {
  Nic* nic = nullptr;
  rail::PeerId peer{};
  enum class Life : std::uint8_t { unknown, usable, lost, dropping, dropped } life = Life::unknown;
  std::vector<std::uint64_t> loaded;  // number of a memory of the other side; the index is the RemoteId

  [[nodiscard]] bool takes_bytes() const { return life != Life::dropped && !(nic->dead); }
};

/// A post that has not ended.
struct Post {
  enum class Kind : std::uint8_t { write, read, message } kind{};
  int side = 0;  // of the connection: its initiator
  std::uint64_t token = 0;
  std::vector<rail::Move> moves;  // `remote` is the number of the peer's memory
  rail::LocalRange message;
  std::optional<std::uint32_t> mark;
  std::size_t unplaced = 0;
  bool refused = false;  // by the owner
  bool ended = false;
  std::vector<std::string>
      copies;  // of its bytes: of a write that its side has dropped, and that still comes
};

struct Connection {
  End ends[2];
  std::vector<std::shared_ptr<Post>> posts;
  std::deque<std::shared_ptr<Post>> waiting[2];  // messages to that side without a receive
  bool silent = false;                           // a side died: nothing more is carried
};

/// `mutex` is held in every call but the constructor.
class State : public std::enable_shared_from_this<State> {
 public:
  explicit State(std::uint64_t seed) : random_(seed) {}

  mutable std::mutex mutex;
  FakeFaults faults;
  std::map<std::string, std::unique_ptr<Nic>> nics;
  std::vector<std::unique_ptr<Nic>> closed;  // that were opened again; connections may still name them
  std::uint64_t now_ns = 1'000'000'000;
  std::multimap<std::uint64_t, std::function<void()>> due;

  /// A moment from now, later than `after_ns`.
  std::uint64_t draw(std::uint64_t after_ns = 0);
  bool draw_percent(unsigned percent) { return percent > 0 && random_() % 100 < percent; }
  void at(std::uint64_t when_ns, std::function<void()> what) { due.emplace(when_ns, std::move(what)); }
  bool run_next();

  // Connections.
  void connect(const std::shared_ptr<Connection>& made, const std::string& name, std::string hello);
  void lose(const std::shared_ptr<Connection>& connection, int side, const std::string& why);
  void drop(const std::shared_ptr<Connection>& connection, int side);
  /// Its software hears of the death of its NIC, and its peers' software.
  void tell_death(Nic& nic);

  // Posts.
  void start(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Post>& post);
  void end(Connection& connection, const std::shared_ptr<Post>& post, Code code);
  /// The end of what has been carried.
  void carried(Connection& connection, const std::shared_ptr<Post>& post, Code code);
  void offer(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Post>& post);
  void serve_waiting(Nic& nic);

 private:
  void carry(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Post>& post);
  void place(Connection& connection, Post& post, std::size_t index);
  void mark(Connection& connection, Post& post);
  void finish_drop(const std::shared_ptr<Connection>& connection, int side);

  std::mt19937_64 random_;
};

inline void say(Nic& nic, rail::Event event) {
  if (nic.open) nic.events.push_back(std::move(event));
}

/// The bytes of a range; null: outside of the memory, or none is registered under this number.
[[nodiscard]] std::byte* bytes_of(const Nic& nic, std::uint64_t memory, std::uint64_t offset,
                                  std::uint64_t bytes, rail::Access least);

[[nodiscard]] std::unique_ptr<rail::Provider> make_provider(std::shared_ptr<State> state, Nic& nic);

}  // namespace headrace::test::fake_nics
