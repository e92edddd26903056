// SPDX-License-Identifier: Apache-2.0
#include "gpu/near_node.hpp"

#include "gpu_test.hpp"
#include "unit/topology/recorded_machine.hpp"

#include <gmock/gmock.h>

namespace headrace::gpu {
namespace {

using NearNodeTest = GpuTest;

TEST_F(NearNodeTest, the_near_node_is_the_node_of_the_gpus_pci_slot) {
  test::RecordedMachine machine("two_sockets");
  machine.append("/sys/bus/pci/devices/0000:01:00.0/numa_node", "0");
  machine.append("/sys/bus/pci/devices/0000:02:00.0/numa_node", "1");
  EXPECT_EQ(node_near(driver, 0, machine.root()).value(), 0U);
  EXPECT_EQ(node_near(driver, 1, machine.root()).value(), 1U);
}

TEST_F(NearNodeTest, there_is_no_near_node_if_the_firmware_names_none) {
  test::RecordedMachine machine("two_sockets");
  machine.append("/sys/bus/pci/devices/0000:01:00.0/numa_node", "-1");
  EXPECT_EQ(node_near(driver, 0, machine.root()).value(), std::nullopt);
  EXPECT_EQ(node_near(driver, 1, machine.root()).value(), std::nullopt);
}

TEST_F(NearNodeTest, a_missing_gpu_is_refused_with_the_number_of_gpus) {
  const auto node = node_near(driver, 2);
  EXPECT_EQ(node.code(), Code::invalid_argument);
  EXPECT_THAT(node.error().message,
              testing::AllOf(testing::HasSubstr("no GPU 2"), testing::HasSubstr("sees 2")));
}

}  // namespace
}  // namespace headrace::gpu
