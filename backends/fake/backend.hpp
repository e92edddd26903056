// SPDX-License-Identifier: Apache-2.0
// The model backend: moves bytes between agents of one process with memcpy, keeps every sentence of
// backend_v1.h, and goes wrong on request. Read it before writing another one. README.md has its options and
// limits.
#pragma once

#include "backends/fake/network.hpp"
#include "backends/fake/objects.hpp"
#include "base/epoll.hpp"
#include "base/event_fd.hpp"

#include <thread>

namespace headrace::fake {

/// Who does an instance's work: the caller who caused it, whoever calls `progress`, or a thread of its own.
enum class Completion { caller, progress, thread };

class FakeBackend final : public plugin::Backend<Handles> {
 public:
  static constexpr const char* name = "fake";
  static constexpr const char* version = "1.0";
  static constexpr std::uint32_t memory_kinds = HEADRACE_KIND_BIT(HEADRACE_DRAM);
  static constexpr bool maps = true;
  static std::span<const headrace_option_v1> options();

  /// What the plugin calls: the network of the process, faults from the options.
  static Result<std::unique_ptr<FakeBackend>> open(plugin::Host host, const plugin::CreateArgs& args);
  /// What tests call: their own network, which must outlive the instance, and a script that they may add to
  /// later.
  static Result<std::unique_ptr<FakeBackend>> open(plugin::Host host, const plugin::CreateArgs& args,
                                                   FakeNetwork& network, std::shared_ptr<FaultScript> script);

  ~FakeBackend() override;
  FakeBackend(const FakeBackend&) = delete;
  FakeBackend& operator=(const FakeBackend&) = delete;

  [[nodiscard]] headrace_info_v1 info() override;
  Result<std::string> connection_info() override;
  Result<Link*> connect(const headrace_connect_v1& args) override;
  void disconnect(Link& link) override;

  Result<Region*> register_region(const headrace_region_v1& region) override;
  void deregister_region(Region& region) override;
  Result<Remote*> load_local(Region& region) override;
  Result<Remote*> load_remote(Link& link, const headrace_remote_region_v1& region) override;
  void unload(Remote& remote) override;
  Result<std::span<std::byte>> map(Remote& remote, int device, unsigned access) override;
  void unmap(Remote& remote, void* address) override;

  Result<Request*> prepare(Link* link, const headrace_prepare_v1& args) override;
  Status post(Request& request, const headrace_post_v1& args) override;
  bool poll(Request& request) override;
  void cancel(Request& request) override;
  void release(Request& request) override;
  Status notify(Link& link, std::uint32_t channel, std::string_view bytes) override;

  std::uint32_t progress() override;
  [[nodiscard]] int descriptor() override;
  std::uint32_t arm(bool on) override;
  Result<std::string> query(const headrace_query_v1& args) override;
  headrace_cost_v1 cost(const headrace_prepare_v1& args) override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  FakeBackend(plugin::Host host, FakeNetwork& network, std::shared_ptr<FaultScript> script,
              Completion completion, std::uint64_t queue_depth, Objects objects, Epoll epoll, EventFd bell,
              UniqueFd timer);

  // With the network's lock held. `now` is the host's clock, read before.
  void push(Event event);
  void push_run(const std::shared_ptr<Request>& request);
  void schedule(const std::shared_ptr<Request>& request, std::uint64_t now);
  void send(LinkEnd& from, Message message, const Mishap& mishap, std::uint64_t now);
  void send_count(LinkEnd& link, const Request& request, Status status);
  static void deliver(Event event);
  static void lose(LinkEnd& end, Status status, const std::string& text);
  static std::shared_ptr<Region> find_region(const RemoteRegion& remote);
  void ring();
  void set_timer(std::uint64_t now);
  void bring_due(std::uint64_t now);

  // With the lock held; they let it go to copy or to call the host, and hold it again when they return.
  std::uint32_t drain(Lock& lock, bool release_late);
  void handle(Lock& lock, Event& event);
  void run(Lock& lock, const std::shared_ptr<Request>& request);
  void end(Lock& lock, std::shared_ptr<Request> request, Status status, const std::string& text);
  void end_waiting(Lock& lock, LinkEnd& link, Status status, const std::string& text);
  void accept(Lock& lock, const std::shared_ptr<LinkEnd>& link);
  void ready(Lock& lock, const std::shared_ptr<LinkEnd>& link);
  void receive(Lock& lock, const std::shared_ptr<LinkEnd>& link, Message message);
  void lost(Lock& lock, const std::shared_ptr<LinkEnd>& link);

  // Without the lock.
  Status copy(Request& request, std::string& text);
  Status copy_once(Request& request, std::string& text);
  Status check_remote(const Request& request, std::string& text);
  static Status gone(const Request& request, const RemoteRegion& remote, std::uint64_t page,
                     std::string& text);
  static Status broken_at(const LinkEnd& link, std::uint64_t page, std::string& text);
  void settle();
  void work();

  const plugin::Host host_;
  FakeNetwork& network_;
  const std::shared_ptr<FaultScript> script_;
  const Completion completion_;
  const std::uint64_t queue_depth_;
  const Objects objects_;
  std::uint64_t number_ = 0;

  // All guarded by network_.mutex_.
  std::deque<Event> inbox_;
  std::multimap<std::uint64_t, Event> delayed_;  // by the host's clock
  std::vector<Event> late_runs_;      // reordered posts: after the next one, or when there is nothing else
  std::vector<Event> late_messages_;  // the same for messages
  bool draining_ = false;             // a thread is doing what the inbox says
  bool armed_ = false;
  bool rung_ = false;  // bell_ has been rung since progress looked
  bool timer_set_ = false;
  bool stop_ = false;
  std::uint64_t posts_in_flight_ = 0;
  std::map<const LinkEnd*, std::shared_ptr<LinkEnd>> links_;
  std::map<const Region*, std::shared_ptr<Region>> regions_;
  std::map<std::uint32_t, std::shared_ptr<Region>> regions_by_id_;
  std::map<const RemoteRegion*, std::shared_ptr<RemoteRegion>> remotes_;
  std::map<const Request*, std::shared_ptr<Request>> requests_;
  std::map<void*, std::pair<void*, std::size_t>> mappings_;  // address handed out -> what mmap gave

  // descriptor(): an epoll set of a bell, rung while armed, and a timer for delayed things.
  Epoll epoll_;
  EventFd bell_;
  UniqueFd timer_;
  std::condition_variable work_;  // Completion::thread
  std::thread thread_;
};

}  // namespace headrace::fake
