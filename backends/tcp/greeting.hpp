// SPDX-License-Identifier: Apache-2.0
// A connection before it is one of a link: it shakes hands, in a bounded time.
#pragma once

#include "backends/tcp/context.hpp"
#include "base/unique_fd.hpp"
#include "wire/handshake.hpp"

#include <functional>
#include <memory>
#include <string>

namespace headrace::tcp {

class Greeting final : public Watched {
 public:
  /// What came of it. On success `fd` is the connection, and `early` what the peer said right after its
  /// handshake.
  struct Outcome {
    Result<void> result;
    UniqueFd fd;
    std::string early;
    wire::Hello peer;
  };
  using Done = std::function<void(Outcome)>;

  /// Begins; `done` is called once, on `thread`, unless it is stopped before. With `connecting` the socket's
  /// connect is under way. `held` is let go when the socket of a refused peer is closed, or another one is
  /// handed out.
  static Result<std::shared_ptr<Greeting>> start(const Context& context, IoThread& thread, UniqueFd fd,
                                                 wire::Handshake::Config config, bool connecting, Done done,
                                                 std::shared_ptr<const void> held = {});

  // On its thread only.

  /// Closes it without a word to anybody.
  void stop();
  /// Closes it; it has failed for this reason.
  void drop(Error why) { finish(std::move(why)); }
  [[nodiscard]] bool over() const { return !fd_; }

  void on_ready(std::uint32_t events) override;
  std::uint64_t on_time(std::uint64_t now_ns) override;
  void on_stop() override { done_ = nullptr; }

 private:
  Greeting(const Context& context, IoThread& thread, UniqueFd fd, wire::Handshake handshake, bool connecting,
           Done done, std::shared_ptr<const void> held);

  void move_on();
  bool send();
  bool receive();
  void finish(Result<void> result);

  const Context& context_;
  IoThread& thread_;
  UniqueFd fd_;
  wire::Handshake handshake_;
  bool connecting_;
  bool wants_out_;
  Done done_;
  std::shared_ptr<const void> held_;
  std::string early_;
  const std::uint64_t deadline_ns_;
};

}  // namespace headrace::tcp
