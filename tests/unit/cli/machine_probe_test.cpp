// SPDX-License-Identifier: Apache-2.0
#include "cli/machine_probe.hpp"

#include "unit/topology/recorded_machine.hpp"

#include <gtest/gtest.h>

namespace headrace::cli {
namespace {

TEST(machine_probe, tells_of_each_node_its_memory_cpus_and_gpus) {
  test::RecordedMachine machine("two_sockets");
  const auto add = [&](const std::string& slot, const std::string& vendor, const std::string& kind) {
    const std::string device = "/sys/bus/pci/devices/" + slot;
    machine.append(device + "/vendor", vendor);
    machine.append(device + "/class", kind);
    machine.append(device + "/numa_node", "1");
  };
  add("0000:9d:00.0", "0x10de", "0x030200");
  add("0000:1b:00.0", "0x10de", "0x030200");
  add("0000:1c:00.0", "0x10de", "0x068000");  // the bridge between GPUs
  add("0000:1d:00.0", "0x8086", "0x030000");
  const std::string text = probe_numa(machine.root()).value;
  EXPECT_EQ(text.find("node 0: 135.1 GB, CPUs 0-3,8-11; node 1: "), 0U) << text;
  EXPECT_TRUE(text.ends_with(", CPUs 4-7,12-15, GPU 0000:1b:00.0 and 0000:9d:00.0")) << text;
}

TEST(machine_probe, tells_when_the_kernel_knows_no_nodes) {
  const test::RecordedMachine machine;
  EXPECT_EQ(probe_numa(machine.root()).value, "the kernel tells of no nodes");
}

}  // namespace
}  // namespace headrace::cli
