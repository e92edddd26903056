// SPDX-License-Identifier: Apache-2.0
// A host for one backend instance in tests. It records the calls of the backend, and every broken rule.
//
// It checks the rules of backend_v1.h that a host can observe: a completion of a post that is not in flight,
// a link event for a link that is closed or had that event before, a message on an unknown link, any call
// after `destroy`. A test reads `broken_rules()` at its end; the Instance in plugin_instance.hpp does so in
// its destructor.
#pragma once

#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "base/worker_pool.hpp"

#include <headrace/plugin/backend_v1.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::test {

/// The completion of a post.
struct PostEnd {
  Status status;
  std::string text;
};

struct HostLink {
  std::uint64_t token = 0;
  void* connection = nullptr;  ///< of accepted links; for our own links the caller of `connect` has it
  std::string peer_name;
  std::uint64_t peer_incarnation = 0;
  bool was_accepted = false;  ///< the peer connected to us
  bool ready = false;
  bool lost = false;
  Status lost_status;
  std::string lost_text;
};

struct HostMessage {
  std::uint64_t link = 0;
  std::uint32_t channel = 0;
  std::string bytes;
};

struct HostCount {
  std::uint64_t link = 0;
  std::uint32_t scope = 0;
  std::uint32_t immediate = 0;
  std::uint64_t amount = 0;
};

class PluginHost {
 public:
  struct Args {
    std::string agent_name = "agent";
    std::uint64_t incarnation = 1;
    const Clock* clock = nullptr;  ///< null: the system's clock
    std::size_t pool_threads = 2;
  };
  explicit PluginHost(Args args);
  ~PluginHost();
  PluginHost(const PluginHost&) = delete;
  PluginHost& operator=(const PluginHost&) = delete;

  [[nodiscard]] const headrace_host_v1* table() const { return &table_; }
  [[nodiscard]] const Args& args() const { return args_; }

  // Posts. A request has a slot; the token of a post is its slot and a number that no other post has. The
  // harness calls these before the entry, so that a completion inside `post` finds its post.
  [[nodiscard]] std::uint64_t new_slot();
  [[nodiscard]] std::uint64_t post_begins(std::uint64_t slot);  ///< returns the token
  void post_refused(
      std::uint64_t token);  ///< the entry did not return ok: no completion may have come or may come
  [[nodiscard]] bool in_flight(std::uint64_t slot) const;
  [[nodiscard]] std::optional<PostEnd> last_end(std::uint64_t slot) const;  ///< none: never completed
  [[nodiscard]] std::uint64_t ends(std::uint64_t slot) const;               ///< of all its posts

  // Links.
  [[nodiscard]] std::uint64_t new_link(std::string peer_name,
                                       std::uint64_t peer_incarnation);  ///< for `connect`
  void link_closed(std::uint64_t token);  ///< `disconnect` has returned, or `connect` failed
  [[nodiscard]] std::optional<HostLink> link(std::uint64_t token) const;
  [[nodiscard]] std::vector<HostLink> accepted_links()
      const;  ///< those that are still open, in the order of their arrival
  void accept_links(bool yes) { accepting_ = yes; }  ///< false: `accepted` returns 0

  // Messages in the order of their arrival.
  [[nodiscard]] std::vector<HostMessage> messages() const;
  [[nodiscard]] std::size_t message_count() const;

  /// Posts that were counted: of peers, on all links together, and of replays inside this agent.
  [[nodiscard]] std::uint64_t count_of(std::uint32_t scope, std::uint32_t immediate) const;

  /// Called inside the host functions of the same name, without the host's lock. Set them before traffic
  /// begins.
  std::function<void(const HostMessage&)> on_received;
  std::function<void(const HostCount&)> on_counted;
  std::function<void(std::uint64_t slot, Status)> on_completed;
  std::function<void(const HostLink&)> on_accepted;
  std::function<void()> on_log;

  [[nodiscard]] std::uint64_t counter(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> log() const;
  /// An eventfd that every `wake` signals, and every other change that a sleeping test may wait for.
  [[nodiscard]] const EventFd& bell() const { return bell_; }
  [[nodiscard]] std::uint64_t wakes() const { return wakes_.load(); }

  /// `destroy` has returned: from now on each call to the host breaks a rule.
  void instance_is_gone();
  [[nodiscard]] std::vector<std::string> broken_rules() const;
  /// The present links and posts, for the message of a test whose wait timed out.
  [[nodiscard]] std::string describe() const;

 private:
  struct Slot {
    std::uint64_t posts = 0;
    std::set<std::uint64_t> in_flight;  // tokens; two while the backend refuses the second
    std::uint64_t ends = 0;
    std::optional<PostEnd> last;
  };

  void completed(std::uint64_t token, Status status, std::string_view text);
  std::uint64_t accepted(void* connection, const char* name, std::uint64_t incarnation);
  void link_event(std::uint64_t token, std::int32_t event, Status status, std::string_view text);
  void received(std::uint64_t token, std::uint32_t channel, std::string_view bytes);
  void counted(const HostCount& count);
  void broken(std::string rule);             // with mutex_ held
  void may_be_called(const char* function);  // with mutex_ held

  const Args args_;
  const SteadyClock steady_;
  headrace_host_v1 table_{};
  EventFd bell_;
  std::unique_ptr<WorkerPool> pool_;
  std::atomic<bool> accepting_{true};
  std::atomic<std::uint64_t> wakes_{0};

  mutable std::mutex mutex_;
  bool gone_ = false;
  std::uint64_t next_link_ = 1'000'001;  // less than every token of a post, so that a mix-up is noticed
  std::vector<Slot> slots_;
  std::map<std::uint64_t, HostLink> links_;
  std::vector<HostMessage> messages_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> counts_;  // by scope and immediate
  std::map<std::string, std::uint64_t> counters_;
  std::vector<std::string> log_;
  std::vector<std::string> broken_;
};

}  // namespace headrace::test
