// SPDX-License-Identifier: Apache-2.0
// Two engines in two network namespaces, with two virtual cables between them that the test makes, limits and
// pulls out. Needs root, `ip` and `tc`.
#include "base/clock.hpp"
#include "rail/engine.hpp"
#include "rail/tcp/provider.hpp"
#include "unit/rail/two_engines.hpp"
#include "unit/rail/wait_for_nics.hpp"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace headrace::rail {
namespace {

using namespace std::chrono_literals;
using test_engines::EnginePair;
using test_engines::Side;
using test_engines::Writes;

constexpr int cable_count = 2;
const PostPlan cable_counted{Spread::free, 0, CountedAt{}};

bool run_command(const std::string& command) {
  // NOLINTNEXTLINE(bugprone-command-processor): commands of this file alone
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

/// The namespace of the calling thread.
UniqueFd current_namespace() { return UniqueFd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)); }

/// The calling thread is in its own namespace again when this goes; the others end with their last socket.
class Namespaces {
 public:
  /// Empty: this process may not make them.
  static std::unique_ptr<Namespaces> make() {
    std::unique_ptr<Namespaces> made(new Namespaces);
    for (UniqueFd& side : made->sides_) {
      if (::unshare(CLONE_NEWNET) != 0) return nullptr;
      made->moved_ = true;
      side = current_namespace();
      if (!run_command("ip link set lo up")) return nullptr;
    }
    for (int cable = 0; cable < cable_count; ++cable)
      if (!made->connect(cable)) return nullptr;
    return made;
  }
  ~Namespaces() {
    if (moved_) EXPECT_EQ(::setns(home_.get(), CLONE_NEWNET), 0);
  }

  void enter(int side) const { EXPECT_EQ(::setns(sides_[side].get(), CLONE_NEWNET), 0); }
  static std::string address(int side, int cable) { return fmt::format("10.77.{}.{}", cable, side + 1); }
  /// `{}` stands for the cable's name; the command is run on both sides.
  [[nodiscard]] bool on_cable(int cable, const std::string& command) const {
    bool all = true;
    for (int side = 0; side < 2; ++side) {
      enter(side);
      all = run_command(fmt::format(fmt::runtime(command), fmt::format("cable{}", cable))) && all;
    }
    return all;
  }
  /// Frames of 9000 bytes: of small ones the headers alone take more than is measured here.
  [[nodiscard]] bool limit(int cable, int mbit) const {
    return on_cable(cable, "ip link set {} mtu 9000") &&
           on_cable(
               cable,
               fmt::format("tc qdisc replace dev {{}} root tbf rate {}mbit burst 128kb limit 16mb", mbit));
  }

 private:
  Namespaces() : home_(current_namespace()) {}
  [[nodiscard]] bool connect(int cable) const {
    enter(1);
    const std::string far = fmt::format("/proc/{}/fd/{}", ::getpid(), sides_[0].get());
    if (!run_command(fmt::format("ip link add cable{0} type veth peer name cable{0} netns {1}", cable, far)))
      return false;
    for (int side = 0; side < 2; ++side) {
      enter(side);
      if (!run_command(fmt::format("ip address add {}/24 dev cable{}", address(side, cable), cable)))
        return false;
    }
    return on_cable(cable, "ip link set {} up");
  }

  UniqueFd home_;
  bool moved_ = false;
  UniqueFd sides_[2];
};

/// One thread drives both engines, each in its namespace.
class CableEngines final : public EnginePair {
 public:
  CableEngines(const Namespaces& namespaces, const LinkOptions& options) : namespaces_(namespaces) {
    for (int side = 0; side < 2; ++side) start_again(side, options);
  }
  void start_again(int side, const LinkOptions& options) {
    namespaces_.enter(side);
    sides[side].engine.reset();
    std::vector<std::unique_ptr<Provider>> providers;
    for (int cable = 0; cable < cable_count; ++cable) {
      auto opened = tcp::TcpProvider::open(Namespaces::address(side, cable));
      EXPECT_TRUE(opened) << opened.error().message;
      nics_[side * cable_count + cable] = opened->get();
      providers.push_back(std::move(*opened));
    }
    open(side, std::move(providers), clock_, options);
    namespaces_.enter(0);
  }
  ~CableEngines() override {
    for (Side& side : sides) side.engine.reset();
  }
  void step() override {
    std::size_t events = 0;
    for (int side = 0; side < 2; ++side) {
      namespaces_.enter(side);
      events += sides[side].engine->poll();
    }
    namespaces_.enter(0);  // `connect` and `post` are side 0's
    if (events == 0) sleep_until_ready();
  }
  [[nodiscard]] bool both_cables_live() const {
    return sides[0].link->live_rails() == cable_count && sides[1].link->live_rails() == cable_count;
  }

  [[nodiscard]] bool all_up() const {
    return std::all_of(nics_.begin(), nics_.end(), [](const auto* nic) { return nic->health().up; });
  }

 private:
  void sleep_until_ready() { test::wait_for_nics(nics_); }

  const Namespaces& namespaces_;
  SteadyClock clock_;
  std::vector<tcp::TcpProvider*> nics_ = std::vector<tcp::TcpProvider*>(2 * cable_count);
};

// NOLINTNEXTLINE(readability-identifier-naming): the end of the name is a label
class RailTcpCables_slow : public testing::Test {
 protected:
  void SetUp() override {
    namespaces_ = Namespaces::make();
    if (namespaces_ == nullptr)
      GTEST_SKIP() << "this machine allows no network namespaces of one's own, or has no ip and tc";
  }
  /// Writes of 2 MiB in pages, which take turns; how many bits a second arrive.
  double measure(std::uint64_t page_bytes, int writes_count) {
    CableEngines engines(*namespaces_, {.chunk_bytes = 256 << 10, .rail_bytes = 4 << 20});
    engines.connect();
    EXPECT_TRUE(engines.until([&] { return engines.both_cables_live(); }));
    constexpr std::uint64_t write_bytes = 2 << 20;
    Writes writes(engines, writes_count * write_bytes);
    const std::uint64_t begin_ns = now_ns();
    for (int i = 0; i < writes_count; ++i)
      EXPECT_TRUE(writes.post(write_bytes / page_bytes, page_bytes, cable_counted).ok());
    EXPECT_TRUE(engines.until([&] { return writes.all_counted(); }));
    const auto took_ns = static_cast<double>(now_ns() - begin_ns);
    EXPECT_TRUE(engines.until([&] { return writes.all_ended(); }));
    writes.check_quiet();
    return static_cast<double>(writes_count * write_bytes * 8) * 1e9 / took_ns;
  }

  /// Of both cables together, 400 Mbit/s. Much more than that: they were not limited. Other programs may take
  /// the CPU away from one run, hardly from three.
  void expect_share(std::uint64_t page_bytes, double least) {
    double best = 0;
    for (int run = 0; run < 3 && best < least * 400e6; ++run) best = std::max(best, measure(page_bytes, 80));
    EXPECT_GE(best, least * 400e6);
    EXPECT_LE(best, 1.1 * 400e6);
  }

  std::unique_ptr<Namespaces> namespaces_;
};

TEST_F(RailTcpCables_slow, single_writes_fill_two_equal_cables_alone) {
  ASSERT_TRUE(namespaces_->limit(0, 200) && namespaces_->limit(1, 200));
  expect_share(2 << 20, 0.95);
}

TEST_F(RailTcpCables_slow, paged_writes_fill_two_equal_cables_alone) {
  ASSERT_TRUE(namespaces_->limit(0, 200) && namespaces_->limit(1, 200));
  expect_share(4096, 0.95);
}

TEST_F(RailTcpCables_slow, writes_fill_two_unequal_cables_alone) {
  ASSERT_TRUE(namespaces_->limit(0, 100) && namespaces_->limit(1, 300));
  expect_share(2 << 20, 0.90);
}

TEST_F(RailTcpCables_slow, delay_loss_and_reordering_change_no_byte_and_no_count) {
  for (int cable = 0; cable < cable_count; ++cable)
    if (!namespaces_->on_cable(cable, "tc qdisc replace dev {} root netem delay 2ms 1ms loss 1% reorder 10%"))
      GTEST_SKIP() << "this kernel has no netem";
  CableEngines engines(*namespaces_, {.chunk_bytes = 64 << 10});
  engines.connect();
  Writes writes(engines, 8 << 20);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(writes.post(1 + i % 20, 4000, cable_counted).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  for (const auto& [immediate, count] : engines.sides[1].counts) EXPECT_EQ(count, 1U) << immediate;
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok());
  writes.check_quiet();
}

TEST_F(RailTcpCables_slow, a_cable_that_is_down_in_mid_run_costs_nothing_and_carries_again) {
  ASSERT_TRUE(namespaces_->limit(0, 200) && namespaces_->limit(1, 200));
  CableEngines engines(
      *namespaces_,
      {.chunk_bytes = 64 << 10, .rail_bytes = 1 << 20, .rail_timeout = 500ms, .retry_after = 100ms});
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.both_cables_live(); }));
  Writes writes(engines, 64 << 20);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(writes.post(16, 64 << 10, cable_counted).ok());
  ASSERT_TRUE(engines.until([&] { return engines.sides[1].counts.size() >= 5; }));
  ASSERT_TRUE(namespaces_->on_cable(1, "ip link set {} down"));
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
  EXPECT_EQ(engines.sides[0].link->live_rails(), 1U);
  for (const auto& [immediate, count] : engines.sides[1].counts) EXPECT_EQ(count, 1U) << immediate;
  for (const auto& [request, status] : engines.sides[0].ends) EXPECT_TRUE(status.ok());
  writes.check_quiet();

  ASSERT_TRUE(namespaces_->on_cable(1, "ip link set {} up"));
  ASSERT_TRUE(engines.until([&] { return engines.both_cables_live(); }));
  ASSERT_TRUE(namespaces_->on_cable(0, "ip link set {} down"));  // so the other one must carry
  ASSERT_TRUE(writes.post(16, 64 << 10, cable_counted).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended() && writes.all_counted(); }));
}

TEST_F(RailTcpCables_slow, requests_end_with_peer_lost_when_both_cables_are_down) {
  CableEngines engines(*namespaces_, {.rail_timeout = 300ms});
  engines.connect();
  Writes writes(engines, 8 << 20);
  for (int cable = 0; cable < cable_count; ++cable)
    ASSERT_TRUE(namespaces_->on_cable(cable, "ip link set {} down"));
  ASSERT_TRUE(writes.post(16, 64 << 10, cable_counted).ok());
  ASSERT_TRUE(engines.until([&] { return writes.all_ended(); }));
  EXPECT_EQ(engines.sides[0].ends.begin()->second.code, Code::peer_lost);
  for (int cable = 0; cable < cable_count; ++cable) {
    const std::string reason = Namespaces::address(0, cable) + " to its NIC " + std::to_string(cable) + ": ";
    EXPECT_NE(engines.sides[0].why_lost.find(reason), std::string::npos) << engines.sides[0].why_lost;
  }
}

TEST_F(RailTcpCables_slow, a_NIC_says_whether_its_interface_is_up) {
  namespaces_->enter(0);
  const auto nic = tcp::TcpProvider::open(Namespaces::address(0, 0));
  ASSERT_TRUE(nic) << nic.error().message;
  const auto says = [&](const std::string& why) {  // the kernel takes its time to notice a cable
    for (int i = 0; i < 20'000 && (*nic)->health().why != why; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ((*nic)->health().why, why);
    EXPECT_EQ((*nic)->health().up, why.empty());
  };
  says("");
  namespaces_->enter(1);
  ASSERT_TRUE(run_command("ip link set cable0 down"));
  says("interface cable0 has no link");
  namespaces_->enter(0);
  ASSERT_TRUE(run_command("ip link set cable0 down"));
  says("interface cable0 is down");
  ASSERT_TRUE(namespaces_->on_cable(0, "ip link set {} up"));
  says("");
}

TEST_F(RailTcpCables_slow, the_old_link_of_a_host_that_starts_again_ends_at_its_first_hello) {
  const LinkOptions silent{.heartbeat = 1h, .silent_after = 24h};
  CableEngines engines(*namespaces_, silent);
  ASSERT_TRUE(engines.until([&] { return engines.all_up(); }));
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.both_cables_live(); }));
  for (int cable = 0; cable < cable_count; ++cable)
    ASSERT_TRUE(namespaces_->on_cable(cable, "ip link set {} down"));
  engines.start_again(0, silent);  // as if its host had lost power: side 1 hears nothing of it
  for (int cable = 0; cable < cable_count; ++cable)
    ASSERT_TRUE(namespaces_->on_cable(cable, "ip link set {} up"));
  ASSERT_TRUE(engines.until([&] { return engines.all_up(); }));
  ASSERT_TRUE(engines.sides[1].why_lost.empty());
  ASSERT_TRUE(engines.sides[0].engine->connect(engines.address_of_1()));
  // Before keep-alive of the sockets asks.
  EXPECT_TRUE(engines.until([&] { return !engines.sides[1].why_lost.empty(); }, 2000));
}

TEST_F(RailTcpCables_slow, a_cable_that_is_pulled_while_nothing_uses_it_is_missed) {
  CableEngines engines(*namespaces_, {.retry_after = 100ms, .heartbeat = 100ms, .silent_after = 500ms});
  engines.connect();
  ASSERT_TRUE(engines.until([&] { return engines.both_cables_live(); }));
  ASSERT_TRUE(namespaces_->on_cable(1, "ip link set {} down"));
  ASSERT_TRUE(engines.until(
      [&] { return engines.sides[0].link->live_rails() == 1 && engines.sides[1].link->live_rails() == 1; }));
  ASSERT_TRUE(namespaces_->on_cable(1, "ip link set {} up"));
  ASSERT_TRUE(engines.until([&] { return engines.both_cables_live(); }));
}

}  // namespace
}  // namespace headrace::rail
