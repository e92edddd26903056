// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange.hpp"
#include "agent/agent_impl.hpp"
#include "agent/core_options.hpp"
#include "support/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

namespace headrace {
namespace {

using namespace std::chrono_literals;

/// A store that takes its time for each publish but the first.
class SlowStore final : public metadata::Store {
 public:
  struct Seen {
    std::atomic<int> begun = 0, ended = 0;
    std::chrono::microseconds pause{0};
    bool answers = true;  ///< or it waits until its calls are canceled
  };
  explicit SlowStore(Seen& seen) : seen_(seen) {}

  Result<void> publish(std::string_view, std::string_view, std::string_view bytes, std::chrono::nanoseconds,
                       Deadline) override {
    ++seen_.begun;
    if (seen_.begun > 1) std::this_thread::sleep_for(seen_.pause);
    if (seen_.begun > 1 && !seen_.answers) canceled_.wait(false);
    kept_ = bytes;
    ++seen_.ended;
    return {};
  }
  void cancel_calls() noexcept override {
    canceled_ = true;
    canceled_.notify_all();
  }
  Result<void> remove(std::string_view, std::string_view, Deadline) override { return {}; }
  Result<std::string> fetch(std::string_view, std::string_view, Deadline) override { return kept_; }
  Result<std::vector<std::string>> list(Deadline) override { return std::vector<std::string>(); }
  Result<std::unique_ptr<Watch>> watch(OnEvent) override { return std::make_unique<Watch>(); }

 private:
  Seen& seen_;
  std::string kept_;
  std::atomic<bool> canceled_ = false;
};

class ExchangeTest : public testing::Test {
 protected:
  std::unique_ptr<Agent::Impl> agent_over(SlowStore::Seen& seen) {
    auto impl = std::make_unique<Agent::Impl>(
        engine::Engine::open({.name = "a", .runtime_dir = folder_.path()}, logger_).value(),
        BackendSet::open({}).value());
    const engine::FoundBackend local = impl->set->plugins().find(std::string(engine::local_backend));
    EXPECT_TRUE(impl->engine->add_backend(local, {}).ok());
    impl->exchange =
        Exchange::open(*impl->engine, {}, std::make_unique<SlowStore>(seen), impl->set->core(), {}).value();
    return impl;
  }
  RegionId registered(Agent::Impl& impl) {
    const MemoryRange range{memory_.data(), memory_.size()};
    return impl.engine->regions().add({&range, 1}, {}, {}).value().front().id;
  }

 private:
  Logger logger_;
  const test::TemporaryFolder folder_;
  std::array<std::byte, 64> memory_{};
};

TEST_F(ExchangeTest, an_agent_may_be_closed_while_the_store_takes_in_a_change_of_its_regions) {
  SlowStore::Seen seen;
  seen.pause = 50ms;
  auto impl = agent_over(seen);
  const RegionId region = registered(*impl);
  ASSERT_TRUE(impl->exchange->publish({}, "").ok());
  ASSERT_TRUE(impl->engine->regions().deregister({&region, 1}, 0ns).ok());
  while (seen.begun < 2) std::this_thread::yield();
  impl.reset();
  EXPECT_EQ(seen.ended, seen.begun) << "the store is not used after the agent's end";
}

TEST_F(ExchangeTest, a_close_ends_the_renewal_that_the_store_does_not_answer) {
  SlowStore::Seen seen;
  seen.answers = false;
  const auto impl = agent_over(seen);
  const RegionId region = registered(*impl);
  ASSERT_TRUE(impl->exchange->publish({}, "").ok());
  ASSERT_TRUE(impl->engine->regions().deregister({&region, 1}, 0ns).ok());
  while (seen.begun < 2) std::this_thread::yield();
  impl->close();
  EXPECT_EQ(seen.ended, 2);
}

TEST_F(ExchangeTest, an_agent_that_publishes_may_be_closed_at_any_moment) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 100; ++round) {
    SlowStore::Seen seen;
    seen.pause = std::chrono::microseconds(random() % 300);
    auto impl = agent_over(seen);
    ASSERT_TRUE(impl->exchange->publish({}, "").ok());
    for (int i = 0; i < 3; ++i) {
      const RegionId region = registered(*impl);
      ASSERT_TRUE(impl->engine->regions().deregister({&region, 1}, 0ns).ok());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    impl.reset();
    ASSERT_EQ(seen.ended, seen.begun);
  }
}

TEST_F(ExchangeTest, two_threads_may_close_one_agent) {
  SlowStore::Seen seen;
  const auto impl = agent_over(seen);
  std::jthread other([&] { impl->close(); });
  impl->close();
  EXPECT_EQ(impl->exchange->publish({}, "").code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace
