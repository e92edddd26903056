// SPDX-License-Identifier: Apache-2.0
// A link whose first socket the system does not let us watch (the limit of watches is reached).
#include "backends/tcp/context.hpp"
#include "backends/tcp/link.hpp"
#include "support/plugin_host.hpp"

#include <fcntl.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace::tcp {
namespace {

/// The defaults of the options.
Settings default_settings() {
  std::vector<headrace_setting_v1> given;
  for (const headrace_option_v1& row : Settings::rows()) given.push_back({row.name, row.default_value});
  return Settings::read({given, ""}).value();
}

TEST(UnwatchedSocket, ends_the_link_that_waits_for_it) {
  test::PluginHost host{{}};
  Context context(plugin::Host(host.table()), default_settings(), std::make_unique<SystemCalls>(),
                  gpu::GpuSource::installed(), false);
  context.threads.push_back(IoThread::open(
                                0, [&] { return context.host.now_ns(); }, std::chrono::nanoseconds(0))
                                .value());
  const std::uint64_t token = host.new_link("b", 7);
  const auto link = std::make_shared<Link>(context, "b", 7, 1, token, 1);
  // epoll refuses a plain file, as it refuses any descriptor beyond its limit.
  UniqueFd unwatchable(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(link->attach(0, std::move(unwatchable), ""));
  EXPECT_FALSE(link->connecting());
  EXPECT_TRUE(host.link(token)->lost);
  link->disconnect();
  host.link_closed(token);
  context.threads.front()->stop();
  host.instance_is_gone();
}

}  // namespace
}  // namespace headrace::tcp
