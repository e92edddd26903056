// SPDX-License-Identifier: Apache-2.0
#include "memory/near_memory.hpp"

#include "base/affinity.hpp"
#include "topology/memory_nodes.hpp"
#include "topology/sysfs_layout.hpp"
#include "unit/topology/recorded_machine.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace headrace {
namespace {

using Cpus = std::vector<unsigned>;

Cpus range(unsigned first, unsigned count) {
  Cpus cpus(count);
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

/// The recorded machine with CPUs 0-3 and 8-11 on node 0 and CPUs 4-7 and 12-15 on node 1, and one thread
/// that runs there. The first 100 bytes of `memory` lie on node 0, the next 100 on node 1, the rest on no
/// node yet.
class NearMemoryTest : public testing::Test {
 protected:
  std::unique_ptr<CopyPlaces> places(Cpus usable) {
    const test::RecordedMachine machine("two_sockets");
    return std::make_unique<CopyPlaces>(
        Topology(read_sysfs_layout(machine.root()).value(), CpuLimits{std::move(usable), {}}, "a record"),
        ThreadSystem{[this](const void* address) { return node_of(static_cast<const std::byte*>(address)); },
                     [this] { return runs_on; },
                     [this](std::span<const unsigned> cpus) {
                       ++moves;
                       if (refused) return false;
                       runs_on.assign(cpus.begin(), cpus.end());
                       return true;
                     }});
  }
  std::optional<unsigned> node_of(const std::byte* address) const {
    const auto at = static_cast<std::size_t>(address - memory);
    return at < 200 ? std::optional(static_cast<unsigned>(at / 100)) : std::nullopt;
  }

  std::byte memory[300] = {};
  Cpus runs_on = range(0, 16);
  int moves = 0;
  bool refused = false;
};

TEST_F(NearMemoryTest, a_thread_runs_on_the_node_that_it_writes_and_gets_its_old_cpus_back) {
  const auto machine = places(range(0, 16));
  runs_on = range(1, 12);
  {
    NearMemory thread(machine.get());
    thread.write_to(memory);
    EXPECT_EQ(runs_on, (Cpus{0, 1, 2, 3, 8, 9, 10, 11}));
    thread.write_to(memory + 50);
    EXPECT_EQ(moves, 1) << "the thread is on the node already";
    thread.write_to(memory + 150);
    EXPECT_EQ(runs_on, (Cpus{4, 5, 6, 7, 12, 13, 14, 15}));
  }
  EXPECT_EQ(runs_on, range(1, 12));
}

TEST_F(NearMemoryTest, only_cpus_that_the_process_may_use_are_chosen) {
  const auto machine = places({2, 3, 4});
  NearMemory thread(machine.get());
  thread.write_to(memory);
  EXPECT_EQ(runs_on, (Cpus{2, 3}));
}

TEST_F(NearMemoryTest, without_a_cpu_on_the_node_or_without_a_page_the_thread_stays) {
  const auto machine = places({0, 1});
  NearMemory thread(machine.get());
  thread.write_to(memory + 150);
  thread.write_to(memory + 250);
  EXPECT_EQ(moves, 0);
}

TEST_F(NearMemoryTest, a_node_gets_at_most_one_thread_for_each_cpu) {
  const auto machine = places({0, 1, 4});
  std::vector<std::unique_ptr<NearMemory>> threads;
  for (int i = 0; i < 3; ++i) {
    threads.push_back(std::make_unique<NearMemory>(machine.get()));
    threads.back()->write_to(memory);
  }
  EXPECT_EQ(moves, 2);
  threads.front().reset();  // one thread leaves, so there is room
  moves = 0;
  threads.back()->write_to(memory);
  EXPECT_EQ(moves, 1);
}

TEST_F(NearMemoryTest, a_refused_affinity_leaves_the_thread_and_the_room_of_the_node) {
  const auto machine = places({0});
  refused = true;
  NearMemory first(machine.get()), second(machine.get());
  first.write_to(memory);
  EXPECT_EQ(runs_on, range(0, 16));
  refused = false;
  second.write_to(memory);
  EXPECT_EQ(runs_on, Cpus{0});
}

TEST(CopyPlaces, a_machine_has_copy_places_only_if_several_nodes_have_memory) {
  EXPECT_EQ(CopyPlaces::read() != nullptr, read_memory_nodes("").size() > 1);
}

TEST(CopyPlaces, without_copy_places_a_thread_keeps_its_cpus) {
  const auto before = read_affinity().value();
  NearMemory nowhere(nullptr);
  nowhere.write_to(&nowhere);
  EXPECT_EQ(read_affinity().value(), before);
}

}  // namespace
}  // namespace headrace
