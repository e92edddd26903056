// SPDX-License-Identifier: Apache-2.0
#include "transport/host_calls.hpp"

#include <thread>
#include <utility>

namespace headrace::transport {

void HostCalls::Link::wait_for_host_calls() const {
  while (inside_.load() != 0) std::this_thread::yield();
}

void HostCalls::flush() {
  const plugin::Host& host = link_.host_;
  if (sent_ > 0) host.count("sent_bytes", std::exchange(sent_, 0));
  if (received_ > 0) host.count("received_bytes", std::exchange(received_, 0));
  if (refused_ > 0) host.count("refused_chunks", std::exchange(refused_, 0));
  for (const End& end : std::exchange(ends_, {})) host.completed(end.token, end.status, end.text);
  if (std::exchange(deliver_, false)) link_.deliver();
  if (auto loss = std::exchange(loss_, std::nullopt)) link_.lose(loss->status, std::move(loss->why));
}

}  // namespace headrace::transport
