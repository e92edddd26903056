// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/speed.hpp"
#include "backends/shm/backend.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace headrace::shm {
namespace {

TEST(SpeedOfPaths, is_measured_once_a_process_however_many_agents_ask) {
  test::World world;
  std::vector<std::unique_ptr<test::Instance>> agents;
  for (std::uint64_t i = 1; i <= 4; ++i)
    agents.push_back(std::make_unique<test::Instance>(
        world, plugin::table<ShmBackend>(), test::Settings{},
        test::PluginHost::Args{.agent_name = "agent-" + std::to_string(i), .incarnation = i}));
  std::vector<std::jthread> first_requests;
  for (const auto& agent : agents)
    first_requests.emplace_back([&agent] {
      headrace_side_v1 attached{};
      attached.struct_size = sizeof attached;
      headrace_prepare_v1 args{};
      args.struct_size = sizeof args;
      args.remote = &attached;
      headrace_cost_v1 cost{};
      cost.struct_size = sizeof cost;
      EXPECT_EQ(plugin::table<ShmBackend>()->cost(agent->handle(), &args, &cost), HEADRACE_OK);
      (void)speed_of_copies();  // of mapped memory
    });
  first_requests.clear();
  EXPECT_LE(copy_measurements(), 2U) << "one of copies in mapped memory, one of copies by attach";
}

}  // namespace
}  // namespace headrace::shm
