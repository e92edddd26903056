// SPDX-License-Identifier: Apache-2.0
// A host for one backend instance in tests: it writes down what the backend tells it, and notes every broken
// rule.
//
// The rules of backend_v1.h that a host can see are checked as the calls come in: an end for a post that is
// not in flight, a link event for a link that is closed or had it before, a message on an unknown link, any
// call after `destroy`. A test reads `broken_rules()` at its end; the Instance in plugin_instance.hpp does so
// by itself.
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
#include <string>
#include <string_view>
#include <vector>

namespace headrace::test {

/// How a post ended.
struct PostEnd {
  Status status;
  std::string text;
};

struct HostLink {
  std::uint64_t token = 0;
  void* connection = nullptr;  ///< of accepted links; of our own ones the caller of `connect` has it
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

class PluginHost {
 public:
  struct Args {
    std::string agent_name = "agent";
    std::uint64_t incarnation = 1;
    const Clock* clock = nullptr;  ///< none: the system's
    std::size_t pool_threads = 2;
  };
  explicit PluginHost(Args args);
  ~PluginHost();
  PluginHost(const PluginHost&) = delete;
  PluginHost& operator=(const PluginHost&) = delete;

  [[nodiscard]] const headrace_host_v1* table() const { return &table_; }
  [[nodiscard]] const Args& args() const { return args_; }

  // Posts. The harness says what it does before it does it, so that an end inside `post` finds its post.
  [[nodiscard]] std::uint64_t new_token();
  void post_begins(std::uint64_t token);
  void post_refused(
      std::uint64_t token);  ///< the entry did not answer ok: no end may have come and none may come
  [[nodiscard]] bool in_flight(std::uint64_t token) const;
  [[nodiscard]] std::optional<PostEnd> last_end(std::uint64_t token) const;  ///< none: never ended
  [[nodiscard]] std::uint64_t ends(std::uint64_t token) const;

  // Links.
  [[nodiscard]] std::uint64_t new_link(std::string peer_name,
                                       std::uint64_t peer_incarnation);  ///< for `connect`
  void link_closed(std::uint64_t token);  ///< `disconnect` has returned, or `connect` failed
  [[nodiscard]] std::optional<HostLink> link(std::uint64_t token) const;
  [[nodiscard]] std::vector<HostLink> accepted_links() const;  ///< those still open, in the order they came
  void accept_links(bool yes) { accepting_ = yes; }            ///< no: `accepted` answers 0

  // Messages, in the order they came.
  [[nodiscard]] std::vector<HostMessage> messages() const;
  [[nodiscard]] std::size_t message_count() const;

  /// Called inside the host functions of the same name, without the host's lock. Set before traffic begins.
  std::function<void(const HostMessage&)> on_received;
  std::function<void(std::uint64_t token, Status)> on_completed;
  std::function<void(const HostLink&)> on_accepted;
  std::function<void()> on_log;

  [[nodiscard]] std::uint64_t counter(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> log() const;
  /// Every `wake` rings it, and so does everything else that a sleeping test may be waiting for.
  [[nodiscard]] const EventFd& bell() const { return bell_; }
  [[nodiscard]] std::uint64_t wakes() const { return wakes_.load(); }

  /// From now on each call to the host is a broken rule: `destroy` has returned.
  void instance_is_gone();
  [[nodiscard]] std::vector<std::string> broken_rules() const;
  /// Links and posts as they stand, for the message of a test that waited in vain.
  [[nodiscard]] std::string describe() const;

 private:
  struct Post {
    bool in_flight = false;
    std::uint64_t ends = 0;
    std::optional<PostEnd> last;
  };

  void completed(std::uint64_t token, Status status, std::string_view text);
  std::uint64_t accepted(void* connection, const char* name, std::uint64_t incarnation);
  void link_event(std::uint64_t token, std::int32_t event, Status status, std::string_view text);
  void received(std::uint64_t token, std::uint32_t channel, std::string_view bytes);
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
  std::uint64_t next_token_ = 1;
  std::uint64_t next_link_ = 1'000'001;  // unlike any post's token, so that a mix-up shows
  std::map<std::uint64_t, Post> posts_;
  std::map<std::uint64_t, HostLink> links_;
  std::vector<HostMessage> messages_;
  std::map<std::string, std::uint64_t> counters_;
  std::vector<std::string> log_;
  std::vector<std::string> broken_;
};

}  // namespace headrace::test
