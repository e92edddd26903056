// SPDX-License-Identifier: Apache-2.0
// The life of links: made here or by a peer, ready, lost, closed.
#pragma once

#include "backends/fake/instance.hpp"
#include "backends/fake/link_end.hpp"
#include "backends/fake/requests.hpp"

#include <string>
#include <string_view>

namespace headrace::fake {

class Links {
 public:
  Links(FakeInstance& here, Requests& requests) : here_(here), requests_(requests) {}

  /// What peers need to reach the instance with this number.
  [[nodiscard]] std::string info(std::uint64_t number) const;

  // Without the lock.

  Result<LinkEnd*> connect(const headrace_connect_v1& args);
  void disconnect(const LinkEnd& end);
  /// Links that came in and were never accepted, or that the host forgot.
  void disconnect_all();

  // Events, with the lock held; they let it go to call the host.

  void accept(Lock& lock, const std::shared_ptr<LinkEnd>& link);
  void ready(Lock& lock, const std::shared_ptr<LinkEnd>& link);
  void lost(Lock& lock, const std::shared_ptr<LinkEnd>& link);

 private:
  [[nodiscard]] Result<std::uint64_t> number_in(std::string_view info, const char* peer_name) const;
  [[nodiscard]] Result<FakeInstance*> find(std::uint64_t number, const headrace_connect_v1& args) const;
  [[nodiscard]] std::string prefix() const;

  FakeInstance& here_;
  Requests& requests_;
};

}  // namespace headrace::fake
