// SPDX-License-Identifier: Apache-2.0
// Where peers come in: listening sockets, and the connections on them that have not shaken hands yet.
#pragma once

#include "backends/tcp/connection_info.hpp"
#include "backends/tcp/context.hpp"
#include "backends/tcp/greeting.hpp"
#include "base/once_a_second.hpp"
#include "base/unique_fd.hpp"

#include <list>
#include <memory>
#include <string>
#include <vector>

namespace headrace::tcp {

class Link;

/// Who decides about peers that come in. Called on the listener's thread.
class Admission {
 public:
  virtual ~Admission() = default;
  /// The link that this connection belongs to; for channel 0 a new one, which the host has accepted.
  virtual Result<std::shared_ptr<Link>> admit(const wire::Hello& peer) = 0;
};

class Listener {
 public:
  /// Listens where the options say. All of its life after this is on `context.first_thread()`.
  static Result<std::unique_ptr<Listener>> open(Context& context, Admission& admission);
  ~Listener();

  [[nodiscard]] const ConnectionInfo& info() const { return info_; }
  /// The addresses of all its sockets, separated by commas.
  [[nodiscard]] std::string ports() const;

 private:
  class Door;
  Listener(Context& context, Admission& admission) : context_(context), admission_(admission) {}
  Result<void> listen();
  Result<void> advertise();
  void accept_from(Door& door);
  [[nodiscard]] Result<UniqueFd> accept_one(const Door& door);
  void pause(Door& door);
  void greet(UniqueFd fd);
  void refuse(UniqueFd fd, const Error& why);
  void log_refusal(const Error& why);
  void drop_one_too_many();
  [[nodiscard]] wire::Handshake::Config handshake() const;
  void greeted(Greeting::Outcome outcome, const std::shared_ptr<Link>& link, const std::string& from);

  Context& context_;
  Admission& admission_;
  ConnectionInfo info_;
  OnceASecond refusals_;
  std::vector<std::shared_ptr<Door>> doors_;
  std::list<std::shared_ptr<Greeting>> pending_;  // oldest first; of the first thread alone
  // Each connection that is refused for want of descriptors holds it until its socket is closed.
  const std::shared_ptr<const void> refusing_ = std::make_shared<char>();
};

}  // namespace headrace::tcp
