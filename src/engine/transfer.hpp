// SPDX-License-Identifier: Apache-2.0
// What a caller's handle asks of: a request to one peer (RequestCore), or requests to several that are one
// (RequestGroup).
#pragma once

#include <headrace/request.hpp>

namespace headrace::engine {

/// Each function is that of its name in Request.
class Transfer {
 public:
  Transfer() = default;
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// `options` may be null.
  virtual Status post(const PostOptions* options) = 0;
  virtual RequestState poll() = 0;
  virtual Status wait(Timeout timeout) = 0;
  virtual void cancel() = 0;
  virtual Result<void> set_indices(const PageIndices& indices, void* stream) = 0;
  virtual Result<std::uint64_t> check() = 0;
  virtual void on_done(std::function<void(Status)> done) = 0;
  virtual Result<int> event_fd() = 0;

  [[nodiscard]] virtual RequestState state() const = 0;
  [[nodiscard]] virtual Error error() const = 0;
  [[nodiscard]] virtual RequestTimes times() const = 0;
  [[nodiscard]] virtual std::string explain() const = 0;
  [[nodiscard]] virtual std::string backend() const = 0;
  [[nodiscard]] virtual Result<CostEstimate> cost() const = 0;
  [[nodiscard]] virtual std::vector<PartInfo> parts() const = 0;
  [[nodiscard]] virtual Op op() const = 0;
  [[nodiscard]] virtual std::uint64_t pages() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes() const = 0;
  [[nodiscard]] virtual std::string_view peer() const = 0;
};

/// Whether no post of it is under way; one that lies in a graph is not.
[[nodiscard]] inline bool has_ended(RequestState state) {
  return state != RequestState::posted && state != RequestState::canceling;
}

[[nodiscard]] inline bool may_post(RequestState state) {
  return has_ended(state) && state != RequestState::captured;
}

/// How a post that ended so leaves its request.
[[nodiscard]] inline RequestState state_after(Status status) {
  if (status.ok()) return RequestState::done;
  return status.code == Code::canceled ? RequestState::canceled : RequestState::failed;
}

}  // namespace headrace::engine
