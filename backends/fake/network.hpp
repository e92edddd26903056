// SPDX-License-Identifier: Apache-2.0
// The network of fake instances: who is there, what travels between them, and the one lock over all of it.
//
// A model is to be read, so one mutex guards every link, region and request of a network. It is never held
// while bytes are copied nor while a host is called.
#pragma once

#include "backends/fake/faults.hpp"
#include "memory/page_cursor.hpp"

#include <headrace/plugin/backend.hpp>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

namespace headrace::fake {

class FakeBackend;
struct LinkEnd;
struct Region;
struct RemoteRegion;
struct Request;
using Handles = plugin::Handles<Region, LinkEnd, RemoteRegion, Request>;

/// Memory of one instance that others may reach. Whoever copies holds `gate` shared; deregistration takes it
/// alone, so that nobody is in the memory once it returns.
struct Region {
  std::uint32_t id = 0;
  std::byte* base = nullptr;
  std::uint64_t length = 0;
  int memory_fd = -1;  ///< a duplicate of ours, or -1
  std::uint64_t memory_offset = 0;
  bool writable = true;
  std::shared_mutex gate;
  bool gone = false;  ///< guarded by gate

  ~Region();
};

/// The remote side of requests: a region of the peer at the other end of `link`, or one of our own.
struct RemoteRegion {
  std::shared_ptr<LinkEnd> link;  ///< null: our own
  std::uint32_t region_id = 0;
  std::shared_ptr<Region> own;  ///< our own region, kept while it is loaded
};

enum class RequestState {
  idle,     ///< not posted, or its last post has been completed
  waiting,  ///< posted: in a queue, held back by a fault, or waiting for its link
  running,  ///< a thread copies
};

struct Request {
  headrace_prepare_v1 args{};
  std::shared_ptr<LinkEnd> link;  ///< null: inside this agent
  RequestState state = RequestState::idle;
  std::uint64_t token = 0;  ///< of the present post
  std::uint64_t post_number = 0;
  Mishap mishap;
  bool has_message = false;
  std::uint32_t channel = 0;
  std::uint64_t sequence = 0;  ///< of the message, among those of its channel
  std::string message;
  std::optional<plugin::Immediate> immediate;
  std::atomic<bool> cancel{false};
};

/// A message on its way. One whose request failed travels as `nothing`, so that those behind it need not wait
/// for it.
struct Message {
  std::uint32_t channel = 0;
  std::uint64_t sequence = 0;
  bool nothing = false;
  std::string bytes;
};

enum class LinkState { connecting, open, lost, closed };

/// One side's end of a link. Its address is the `connection` that the host knows.
struct LinkEnd {
  FakeBackend* owner = nullptr;
  FakeBackend* peer = nullptr;  ///< null once the other end is closed
  std::weak_ptr<LinkEnd> other;
  std::uint64_t token = 0;  ///< of the host; 0 until it has accepted
  LinkState state = LinkState::connecting;
  std::atomic<bool> broken{false};  ///< lost or closed: copies stop at the next run
  Status lost_status;               ///< written before `broken`, then constant
  std::string lost_text;
  bool told_lost = false;  ///< the host has heard of it, or need not
  int busy = 0;            ///< threads that copy for it or are in a host function with its token
  std::set<std::shared_ptr<Request>> in_flight;
  std::vector<std::shared_ptr<Request>> until_ready;  ///< posts made while connecting

  struct Channel {
    std::uint64_t sent = 0;      ///< sequence number of the last message
    std::uint64_t expected = 1;  ///< of the next message to be delivered here
    std::map<std::uint64_t, Message> early;
  };
  std::map<std::uint32_t, Channel> channels;
  std::uint64_t undelivered =
      0;  ///< messages sent from here that the other end has not yet given to its host
};

/// Something that an instance is to do on its own time.
struct Event {
  enum class Kind { run, accept, ready, message, lost } kind = Kind::run;
  std::shared_ptr<Request> request;  ///< run
  std::uint64_t post_number = 0;     ///< run: of the post that it belongs to
  std::shared_ptr<LinkEnd> link;     ///< all others
  Message message;
};

/// Instances that can reach one another: those of one process for the plugin, those that a test gives one
/// network else.
class FakeNetwork {
 public:
  FakeNetwork();
  FakeNetwork(const FakeNetwork&) = delete;
  FakeNetwork& operator=(const FakeNetwork&) = delete;

  /// Told to peers in `connection_info`; drawn at random, so that another process's network is not taken for
  /// this one.
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  friend class FakeBackend;

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a link end or an instance became less busy
  std::map<std::uint64_t, FakeBackend*> instances_;
  std::uint64_t next_instance_ = 1;
};

}  // namespace headrace::fake
