// SPDX-License-Identifier: Apache-2.0
#include "topology/topology.hpp"

#include "topology/sysfs_layout.hpp"
#include "unit/topology/recorded_machine.hpp"

#include <gtest/gtest.h>

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>

namespace headrace {
namespace {

using test::RecordedMachine;
using Numbers = std::vector<unsigned>;

const MachineLayout& two_sockets() {
  static const MachineLayout layout = read_sysfs_layout(RecordedMachine("two_sockets").root()).value();
  return layout;
}

Numbers to_vector(std::span<const unsigned> numbers) { return {numbers.begin(), numbers.end()}; }

Numbers all_cpus() {
  Numbers cpus(16);
  std::iota(cpus.begin(), cpus.end(), 0U);
  return cpus;
}

TEST(Topology, SocketsCoresAndThreadsAreCounted) {
  const Topology topology(two_sockets(), {all_cpus(), std::nullopt}, "test");
  EXPECT_EQ(topology.packages(), 2U);
  EXPECT_EQ(topology.cores(), 8U);
  EXPECT_EQ(topology.cpus().size(), 16U);
  EXPECT_EQ(topology.usable_threads(), 16U);
  EXPECT_EQ(topology.source(), "test");
}

TEST(Topology, OnlyTheCpusOfTheProcessAreUsable) {
  const Topology topology(two_sockets(), {{2, 3, 12, 99}, std::nullopt}, "test");
  EXPECT_EQ(to_vector(topology.usable_cpus()), (Numbers{2, 3, 12}));
  EXPECT_EQ(topology.usable_cpus_of(0), (Numbers{2, 3}));
  EXPECT_EQ(topology.usable_cpus_of(1), (Numbers{12}));
  EXPECT_EQ(topology.usable_cpus_of(7), Numbers{});
  EXPECT_EQ(topology.usable_threads(), 3U);
}

TEST(Topology, AQuotaLimitsTheThreadsToWholeCpusAndAtLeastOne) {
  const auto threads = [](double quota) {
    return Topology(two_sockets(), {all_cpus(), quota}, "test").usable_threads();
  };
  EXPECT_EQ(threads(6), 6U);
  EXPECT_EQ(threads(2.9), 2U);
  EXPECT_EQ(threads(0.5), 1U);
  EXPECT_EQ(threads(400), 16U);
}

TEST(Topology, NodesOfCpusAndDistancesAreKnown) {
  const Topology topology(two_sockets(), {all_cpus(), std::nullopt}, "test");
  EXPECT_EQ(topology.node_of_cpu(5), 1U);
  EXPECT_EQ(topology.node_of_cpu(8), 0U);
  EXPECT_EQ(topology.node_of_cpu(64), std::nullopt);
  EXPECT_EQ(topology.distance(0, 0), 10U);
  EXPECT_EQ(topology.distance(1, 0), 21U);
  EXPECT_EQ(topology.distance(0, 2), std::nullopt);
}

TEST(Topology, WithoutATableOfDistancesAnotherNodeHasDistance20) {
  MachineLayout layout = two_sockets();
  layout.distances.clear();
  const Topology topology(std::move(layout), {all_cpus(), std::nullopt}, "test");
  EXPECT_EQ(topology.distance(1, 1), 10U);
  EXPECT_EQ(topology.distance(0, 1), 20U);
}

TEST(Topology, TheTopologyOfThisMachineIsRead) {
  const Topology topology = Topology::read().value();
  EXPECT_FALSE(topology.cpus().empty());
  EXPECT_FALSE(topology.nodes().empty());
  EXPECT_GE(topology.cores(), topology.packages());
  EXPECT_GE(topology.usable_threads(), 1U);
  EXPECT_LE(topology.usable_threads(), topology.usable_cpus().size());
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  EXPECT_EQ(topology.usable_cpus().size(), static_cast<std::size_t>(CPU_COUNT(&mask)));
}

TEST(Topology, APageInMemoryHasANodeOfTheMachine) {
  const Topology topology = Topology::read().value();
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  *static_cast<char*>(page) = 1;
  const auto node = topology.node_of_address(page);
  ASSERT_TRUE(node.ok()) << node.error().message;
  EXPECT_TRUE(std::ranges::any_of(topology.nodes(), [&](const NumaNode& one) { return one.id == *node; }));
  ::munmap(page, 4096);
}

TEST(CpuLimits, TheLowestQuotaOfAllParentGroupsApplies) {
  RecordedMachine machine("two_sockets");
  EXPECT_EQ(read_cpu_quota(machine.root()), 6.0);
  machine.replace("/sys/fs/cgroup/job/inner/cpu.max", "150000 100000");
  EXPECT_EQ(read_cpu_quota(machine.root()), 1.5);
  machine.replace("/sys/fs/cgroup/job/cpu.max", "max 100000");
  machine.replace("/sys/fs/cgroup/job/inner/cpu.max", "max 100000");
  EXPECT_EQ(read_cpu_quota(machine.root()), std::nullopt);
}

TEST(CpuLimits, AContainerReadsTheQuotaOfItsGroupAtTheMount) {
  RecordedMachine machine;
  machine.append("/proc/self/cgroup", "0::/a/name/that/exists/outside");
  machine.append("/sys/fs/cgroup/cpu.max", "200000 100000");
  EXPECT_EQ(read_cpu_quota(machine.root()), 2.0);
}

TEST(CpuLimits, QuotasOfVersionOneGroupsApply) {
  RecordedMachine machine;
  machine.append("/proc/self/cgroup", "5:memory:/x");
  machine.append("/proc/self/cgroup", "4:cpu,cpuacct:/x");
  machine.append("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "350000");
  machine.append("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read_cpu_quota(machine.root()), 3.5);
  machine.replace("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(read_cpu_quota(machine.root()), std::nullopt);
  EXPECT_EQ(read_cpu_quota(RecordedMachine().root()), std::nullopt);
}

}  // namespace
}  // namespace headrace
