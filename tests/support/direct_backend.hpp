// SPDX-License-Identifier: Apache-2.0
// A backend that a test calls directly and not through its table, for cases that the contract suite cannot
// reach.
#pragma once

#include "support/page_side.hpp"
#include "support/plugin_host.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>

namespace headrace::test {

/// A derived fixture opens `backend`, and closes it before the members that it uses are destroyed.
template <class BackendType>
class DirectBackend : public ::testing::Test {
 protected:
  using Region = typename BackendType::Region;
  using Remote = typename BackendType::Remote;
  using Request = typename BackendType::Request;

  void close() {
    backend.reset();
    host.instance_is_gone();
    EXPECT_THAT(host.broken_rules(), ::testing::IsEmpty());
  }

  /// Arguments of `prepare`, valid until the next call.
  headrace_prepare_v1 request(headrace_op_v1 op, PageSide local, PageSide remote, std::uint64_t count) {
    local_side_ = std::move(local);
    remote_side_ = std::move(remote);
    local_view_ = local_side_.view();
    remote_view_ = remote_side_.view();
    headrace_prepare_v1 args{};
    args.struct_size = sizeof args;
    args.op = op;
    args.count = count;
    args.bytes = count * local_side_.page_bytes;
    args.local = &local_view_;
    args.remote = &remote_view_;
    return args;
  }
  Status post(Request* request, headrace_post_v1 args = {}) {
    args.struct_size = sizeof args;
    args.token = host.post_begins(slot(request));
    const Status status = backend->post(*request, args);
    if (!status.ok()) host.post_refused(args.token);
    return status;
  }
  [[nodiscard]] bool in_flight(const Request* request) { return host.in_flight(slot(request)); }
  [[nodiscard]] std::uint64_t ends(const Request* request) { return host.ends(slot(request)); }
  /// Of the last post, which has ended.
  [[nodiscard]] PostEnd end_of(const Request* request) { return host.last_end(slot(request)).value(); }

  PluginHost host{{}};
  std::unique_ptr<BackendType> backend;

 private:
  std::uint64_t slot(const Request* request) {
    const auto at = slots_.find(request);
    return at != slots_.end() ? at->second : slots_.emplace(request, host.new_slot()).first->second;
  }

  PageSide local_side_, remote_side_;
  headrace_side_v1 local_view_{}, remote_view_{};
  std::map<const Request*, std::uint64_t> slots_;  // in the host, of the requests
};

}  // namespace headrace::test
