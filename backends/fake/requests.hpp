// SPDX-License-Identifier: Apache-2.0
// The life of requests: prepared, posted, carried out or canceled, ended once for each post.
#pragma once

#include "backends/fake/messages.hpp"
#include "backends/fake/page_copy.hpp"
#include "backends/fake/request.hpp"

#include <string>

namespace headrace::fake {

class Requests {
 public:
  Requests(FakeInstance& here, Messages& messages, Completion completion, std::uint64_t queue_depth)
      : here_(here), messages_(messages), completion_(completion), queue_depth_(queue_depth) {}

  // Without the lock.

  Result<Request*> prepare(const LinkEnd* link, const headrace_prepare_v1& args);
  Status post(const Request& handle, const headrace_post_v1& args);
  bool poll(const Request& handle);
  void cancel(const Request& handle);
  void release(const Request& handle);

  // With the lock held; they let it go to copy or to call the host.

  /// The event that a post asked for.
  void run(Lock& lock, const Event& event);
  /// Ends the posts on the link that no thread carries out.
  void end_waiting(Lock& lock, LinkEnd& link, Status status, const std::string& text);

 private:
  [[nodiscard]] Status may_post(const Request& request, const headrace_post_v1& args) const;
  void begin(const std::shared_ptr<Request>& request, const headrace_post_v1& args);
  void schedule(const std::shared_ptr<Request>& request, std::uint64_t now);
  void carry_out(Lock& lock, const std::shared_ptr<Request>& request);
  void end(Lock& lock, std::shared_ptr<Request> request, const Outcome& outcome);
  void tell_peer(Request& request, bool succeeded);

  FakeInstance& here_;
  Messages& messages_;
  const Completion completion_;
  const std::uint64_t queue_depth_;
  // Guarded by the network's lock.
  HandleTable<Request> handles_;
  std::uint64_t in_flight_ = 0;
};

}  // namespace headrace::fake
