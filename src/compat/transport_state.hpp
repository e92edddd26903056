// SPDX-License-Identifier: Apache-2.0
// A RdmaTransport: its posts and their futures, the writes that have come, and the failure that broke it.
#pragma once

#include "compat/comm_future.hpp"
#include "compat/endpoint.hpp"
#include "compat/registration.hpp"

#include <headrace/compat/rdma_transport.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace headrace::compat {

/// Callbacks of the fabric hold it, the transport owns it.
///   threads  any
class RdmaTransport::State : public std::enable_shared_from_this<RdmaTransport::State> {
 public:
  State(std::shared_ptr<Endpoint> endpoint, std::uint32_t scope, FabricExpectation written);
  /// Made by `open` alone: it counts writes from then on.
  [[nodiscard]] static Result<std::shared_ptr<State>> open();

  [[nodiscard]] Endpoint& endpoint() const { return *endpoint_; }
  [[nodiscard]] std::uint32_t scope() const { return scope_; }

  /// Connects once. errors: invalid_argument (connected already), those of Endpoint::watch
  [[nodiscard]] Result<void> connect(Url url);
  [[nodiscard]] std::optional<Url> peer() const;

  /// Posts, unless it is broken. The future ends with the post, or with `close`.
  using Post = std::function<Result<FabricWork>()>;
  [[nodiscard]] CommFuture post(const Post& post);
  [[nodiscard]] CommFuture next_write();

  void set_mock(MockContext mock);
  [[nodiscard]] MockType mock() const;
  void break_off(std::string why);
  [[nodiscard]] bool broken() const;
  [[nodiscard]] std::string last_error() const;

  /// Ends what is under way, when its memory is quiet.
  void close();

 private:
  using Future = std::shared_ptr<CommFuture::State>;
  struct Pending {
    FabricWork work;
    Future future;
  };

  bool write_came();
  void watch_ended(const FabricWork& watch, Status status);
  CommFuture follow(const FabricWork& work);
  void ended(std::uint64_t number, Status status);
  commResult_t result_of(Status status, const Error& error);
  void fail_waits(commResult_t result);

  const std::shared_ptr<Endpoint> endpoint_;
  const std::uint32_t scope_;
  const FabricExpectation written_;

  mutable std::mutex mutex_;
  std::optional<Url> peer_;
  FabricWork watch_;
  std::unordered_map<std::uint64_t, Pending> pending_;
  std::uint64_t next_number_ = 0;
  std::uint64_t come_ = 0;  // writes that nobody waits for yet
  std::deque<Future> waits_;
  bool broken_ = false;
  std::string last_error_;
  MockContext mock_;
};

}  // namespace headrace::compat
