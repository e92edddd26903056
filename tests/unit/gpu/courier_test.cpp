// SPDX-License-Identifier: Apache-2.0
// The host half of the courier over the fake driver. Another thread plays the courier and polls the ring.
#include "gpu/courier.hpp"

#include "gpu/device_memory.hpp"
#include "gpu_test.hpp"
#include "support/fake_courier.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace headrace::gpu {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class CourierTest : public GpuTest {
 protected:
  CourierTest() : device(open()), kernels(Kernels::open(library(), device).value()) {}

  std::shared_ptr<Courier> courier(std::chrono::nanoseconds idle = 1h, std::chrono::nanoseconds stay = 2h) {
    return Courier::make(kernels, {.on = true, .most_bytes = 65536, .idle = idle, .stay = stay}).value();
  }
  DeviceMemory filled(std::size_t bytes) {
    auto memory = DeviceMemory::allocate(device, bytes).value();
    std::generate_n(at(memory), bytes, [this] { return static_cast<unsigned char>(random()); });
    return memory;
  }
  static unsigned char* at(const DeviceMemory& memory) {
    return reinterpret_cast<unsigned char*>(memory.address());
  }
  static Courier::State wait(Courier& courier, Courier::Ticket ticket) {
    for (;;)
      if (const auto state = courier.look(ticket); state != Courier::State::pending) return state;
  }
  [[nodiscard]] int launches() const { return fake.calls("headrace_courier"); }
  /// Waits until no work is queued on the GPU, so no courier runs.
  void wait_until_it_left() {
    const ContextGuard guard(*device);
    EXPECT_EQ(driver.ctx_synchronize(), cuda::Outcome::success);
  }

  std::mt19937 random{11};
  std::shared_ptr<const Device> device;
  std::shared_ptr<const Kernels> kernels;
};

TEST_F(CourierTest, the_courier_is_launched_at_the_first_job_and_once_for_many) {
  const auto source = filled(4096), target = filled(4096);
  const auto it = courier();
  EXPECT_EQ(launches(), 0);
  for (unsigned i = 0; i < 300; ++i) {
    at(source)[i] = static_cast<unsigned char>(i + 1);
    const std::array runs{Courier::Run{source.address(), target.address(), 4096}};
    const auto ticket = it->post(runs);
    ASSERT_TRUE(ticket);
    ASSERT_EQ(wait(*it, *ticket), Courier::State::done);
    ASSERT_EQ(std::memcmp(at(source), at(target), 4096), 0) << i;
  }
  EXPECT_EQ(launches(), 1);
}

TEST_F(CourierTest, runs_of_any_length_and_offset_arrive_and_no_byte_beside_them_changes) {
  const auto source = filled(64 * 1024), target = filled(64 * 1024);
  const auto it = courier();
  for (int round = 0; round < 200; ++round) {
    std::vector<unsigned char> expected(at(target), at(target) + target.bytes());
    std::vector<Courier::Run> runs;
    const std::size_t count = 1 + random() % Courier::most_runs;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = random() % 6000, from = random() % (64 * 1024 - bytes),
                          to = i * 6500 + random() % 500;
      if (to + bytes > target.bytes()) break;
      runs.push_back({source.address() + from, target.address() + to, bytes});
      std::memcpy(&expected[to], at(source) + from, bytes);
    }
    ASSERT_TRUE(it->takes(runs));
    ASSERT_EQ(wait(*it, it->post(runs).value()), Courier::State::done);
    ASSERT_EQ(std::memcmp(at(target), expected.data(), expected.size()), 0) << round;
  }
}

TEST_F(CourierTest, jobs_end_in_the_order_of_their_tickets) {
  const auto source = filled(64), target = filled(64);
  const auto it = courier();
  const std::array runs{Courier::Run{source.address(), target.address(), 64}};
  fake.hold();
  Courier::Ticket last = 0;
  for (int i = 0; i < HEADRACE_COURIER_SLOTS; ++i) {
    const auto ticket = it->post(runs);
    ASSERT_TRUE(ticket);
    EXPECT_EQ(*ticket, last + 1);
    last = *ticket;
    EXPECT_EQ(it->look(last), Courier::State::pending);
  }
  fake.release();
  EXPECT_EQ(wait(*it, last), Courier::State::done);
  for (Courier::Ticket ticket = 1; ticket < last; ++ticket) EXPECT_EQ(it->look(ticket), Courier::State::done);
}

TEST_F(CourierTest, a_full_ring_refuses_a_job_until_an_earlier_one_has_ended) {
  const auto source = filled(64), target = filled(64);
  const auto it = courier();
  const std::array runs{Courier::Run{source.address(), target.address(), 64}};
  fake.hold();
  for (int i = 0; i < HEADRACE_COURIER_SLOTS; ++i) ASSERT_TRUE(it->post(runs));
  EXPECT_FALSE(it->post(runs));
  EXPECT_FALSE(it->take_failure());
  fake.release();
  EXPECT_EQ(wait(*it, 1), Courier::State::done);
  const auto ticket = it->post(runs);
  ASSERT_TRUE(ticket);
  EXPECT_EQ(wait(*it, *ticket), Courier::State::done);
}

TEST_F(CourierTest, the_courier_refuses_too_many_runs_too_many_bytes_and_too_high_addresses) {
  const auto it = courier();
  const std::uint64_t top = std::uint64_t{1} << 48;
  const auto takes = [&](std::vector<Courier::Run> runs) { return it->takes(runs); };
  EXPECT_FALSE(takes({}));
  EXPECT_TRUE(takes(std::vector<Courier::Run>(Courier::most_runs, {4096, 8192, 16})));
  EXPECT_FALSE(takes(std::vector<Courier::Run>(Courier::most_runs + 1, {4096, 8192, 16})));
  EXPECT_TRUE(takes({{4096, 8192, 65536}}));
  EXPECT_FALSE(takes({{4096, 8192, 65537}}));
  EXPECT_FALSE(takes({{4096, 8192, 65536}, {4096, 8192, 1}}));
  EXPECT_FALSE(takes({{4096, 8192, ~std::uint64_t{0}}, {4096, 8192, 1}}));
  EXPECT_TRUE(takes({{top - 17, 8192, 16}}));
  EXPECT_FALSE(takes({{top - 16, 8192, 17}}));
  EXPECT_FALSE(takes({{4096, top, 16}}));
  EXPECT_FALSE(takes({{~std::uint64_t{0}, 4096, 16}}));
}

TEST_F(CourierTest, an_idle_courier_leaves_the_gpu_and_is_launched_again_for_a_job) {
  const auto source = filled(64), target = filled(64);
  const auto it = courier(1us);
  const std::array runs{Courier::Run{source.address(), target.address(), 64}};
  for (int round = 1; round <= 5; ++round) {
    ++at(source)[0];
    ASSERT_EQ(wait(*it, it->post(runs).value()), Courier::State::done);
    wait_until_it_left();
    EXPECT_EQ(at(target)[0], at(source)[0]);
  }
  EXPECT_GE(launches(), 5);
}

TEST_F(CourierTest, the_courier_leaves_after_its_stay_and_no_queued_job_is_lost) {
  const auto source = filled(64), target = filled(64);
  const auto it = courier(1h, 1us);
  const std::array runs{Courier::Run{source.address(), target.address(), 64}};
  fake.hold();
  for (int i = 0; i < HEADRACE_COURIER_SLOTS; ++i) ASSERT_TRUE(it->post(runs));
  fake.release();
  EXPECT_EQ(wait(*it, HEADRACE_COURIER_SLOTS), Courier::State::done);
  EXPECT_GE(launches(), 2);
}

TEST_F(CourierTest, posts_of_several_threads_race_with_a_leaving_courier_and_none_is_lost) {
  constexpr int threads = 3, posts = 400;
  std::vector<DeviceMemory> sources, targets;
  for (int i = 0; i < threads; ++i) sources.push_back(filled(64)), targets.push_back(filled(64));
  const auto it = courier(0ns, 100us);  // it leaves as soon as it finds no job
  {
    std::vector<std::jthread> posters;
    for (int i = 0; i < threads; ++i)
      posters.emplace_back([&, i] {
        auto* const from = at(sources[static_cast<std::size_t>(i)]);
        auto* const to = at(targets[static_cast<std::size_t>(i)]);
        const std::array runs{
            Courier::Run{reinterpret_cast<cuda::Address>(from), reinterpret_cast<cuda::Address>(to), 64}};
        for (int post = 0; post < posts; ++post) {
          from[0] = static_cast<unsigned char>(post);
          from[63] = static_cast<unsigned char>(post >> 8);
          const auto ticket = it->post(runs);
          ASSERT_TRUE(ticket);
          ASSERT_EQ(wait(*it, *ticket), Courier::State::done);
          ASSERT_EQ(std::memcmp(from, to, 64), 0) << post;
        }
      });
  }
  EXPECT_GT(launches(), 1);
}

TEST_F(CourierTest, ticket_numbers_wrap_and_no_job_is_taken_for_an_old_one) {
  const auto source = filled(16), target = filled(16);
  const auto it = courier();
  const std::array runs{Courier::Run{source.address(), target.address(), 16}};
  // A ticket number has 16 bits in the ring.
  constexpr Courier::Ticket rounds = (1 << 16) + 2 * HEADRACE_COURIER_SLOTS;
  for (Courier::Ticket posted = 0; posted < rounds;) {
    const auto ticket = it->post(runs);
    if (ticket)
      posted = *ticket;
    else
      ASSERT_EQ(wait(*it, posted), Courier::State::done);
  }
  ASSERT_EQ(wait(*it, rounds), Courier::State::done);
  at(source)[3] ^= 1;
  ASSERT_EQ(wait(*it, it->post(runs).value()), Courier::State::done);
  EXPECT_EQ(std::memcmp(at(source), at(target), 16), 0);
}

TEST_F(CourierTest, a_courier_that_cannot_be_launched_refuses_jobs_and_reports_why_once) {
  const auto source = filled(64), target = filled(64);
  const auto it = courier();
  const std::array runs{Courier::Run{source.address(), target.address(), 64}};
  fake.fail("cuLaunchKernelEx", cuda::Outcome::out_of_memory);
  EXPECT_FALSE(it->post(runs));
  const auto failure = it->take_failure();
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, HasSubstr("launch the courier on GPU 0"));
  EXPECT_FALSE(it->take_failure());
  EXPECT_FALSE(it->post(runs)) << "the launch is not tried again";
  EXPECT_EQ(fake.calls("cuLaunchKernelEx"), 1);
}

TEST_F(CourierTest, a_job_that_the_leaving_courier_missed_launches_it_again) {
  const auto source = filled(64), target = filled(64);
  const auto it = courier();
  const std::array runs{Courier::Run{source.address(), target.address(), 64}};
  cuda::add_courier_that_leaves(fake);
  const auto ticket = it->post(runs);
  ASSERT_TRUE(ticket);
  wait_until_it_left();
  cuda::add_reference_courier(fake);
  EXPECT_EQ(it->look(*ticket), Courier::State::pending);
  EXPECT_EQ(launches(), 2);
  EXPECT_EQ(wait(*it, *ticket), Courier::State::done);
  EXPECT_EQ(launches(), 2);
  EXPECT_EQ(std::memcmp(at(source), at(target), 64), 0);
}

TEST_F(CourierTest, jobs_that_the_leaving_courier_missed_are_dropped_if_the_next_launch_fails) {
  const auto source = filled(64), target = filled(64);
  const auto it = courier();
  const std::array runs{Courier::Run{source.address(), target.address(), 64}};
  const auto before = std::vector(at(target), at(target) + 64);
  cuda::add_courier_that_leaves(fake);
  const auto ticket = it->post(runs);
  ASSERT_TRUE(ticket);
  wait_until_it_left();
  fake.fail("cuLaunchKernelEx", cuda::Outcome::out_of_memory);
  EXPECT_EQ(it->look(*ticket), Courier::State::dropped);
  EXPECT_TRUE(it->take_failure());
  EXPECT_FALSE(it->post(runs));
  EXPECT_EQ(it->look(*ticket), Courier::State::dropped);
  EXPECT_TRUE(std::ranges::equal(before, std::span(at(target), 64)));
}

TEST_F(CourierTest, a_job_stays_pending_after_a_fault_and_the_driver_reports_the_fault) {
  const auto target = filled(64);
  const auto it = courier();
  const std::array runs{Courier::Run{4096, target.address(), 64}};
  const auto ticket = it->post(runs);
  ASSERT_TRUE(ticket);
  const auto other = Stream::make(device);
  while (other->poll_idle()) EXPECT_EQ(it->look(*ticket), Courier::State::pending);
  EXPECT_EQ(it->look(*ticket), Courier::State::pending);
}

TEST_F(CourierTest, the_courier_leaves_when_its_host_half_is_destroyed_and_frees_everything) {
  const auto source = filled(64), target = filled(64);
  const auto before = fake.live();
  auto it = courier();  // otherwise it would stay for an hour
  const std::array runs{Courier::Run{source.address(), target.address(), 64}};
  ASSERT_EQ(wait(*it, it->post(runs).value()), Courier::State::done);
  it.reset();
  EXPECT_EQ(fake.live(), before);
  wait_until_it_left();
}

}  // namespace
}  // namespace headrace::gpu
