// SPDX-License-Identifier: Apache-2.0
#include "metadata/etcd_store.hpp"

#include "metadata/open_store.hpp"
#include "tests/support/silent_port.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <vector>

namespace headrace::metadata {
namespace {

using namespace std::chrono_literals;

class SilentEtcd : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open() {
    return std::move(open_store("etcd://" + port_.address() + "/ns", {}, logger_)).value();
  }
  static Code publish(Store& store, std::string_view name) {
    return store.publish(name, "", "bytes", 10s, late()).code();
  }
  static Deadline late() { return Deadline::after(60s); }

  test::SilentPort port_;
  Logger logger_;
};

TEST_F(SilentEtcd, canceling_the_calls_of_a_store_ends_those_of_no_other_store) {
  const auto ours = open(), other = open();  // of one session
  std::vector<std::future<Code>> calls;
  const auto begin = [&](std::function<Code()> call) {
    return std::async(std::launch::async, std::move(call));
  };
  calls.push_back(begin([&] { return publish(*ours, "a"); }));
  ASSERT_TRUE(port_.accepts(1)) << "it asks for a lease";
  calls.push_back(begin([&] { return publish(*ours, "a"); }));  // waits for its turn to write the entry
  calls.push_back(begin([&] { return publish(*ours, "b"); }));  // waits for its turn to ask for the lease
  calls.push_back(begin([&] { return ours->fetch("c", "", late()).code(); }));
  calls.push_back(begin([&] { return ours->list(late()).code(); }));
  auto published = begin([&] { return publish(*other, "d"); });  // waits for the lease that ours asks for
  auto fetched = begin([&] { return other->fetch("c", "", late()).code(); });
  ASSERT_TRUE(port_.accepts(4)) << "a lease, two fetches, a list";

  const auto canceled = std::chrono::steady_clock::now();
  ours->cancel_calls();
  for (auto& call : calls) EXPECT_EQ(call.get(), Code::canceled);
  EXPECT_LT(std::chrono::steady_clock::now() - canceled, 30s) << "before their deadlines";
  EXPECT_EQ(ours->list(late()).code(), Code::canceled) << "later calls do not wait";

  EXPECT_TRUE(port_.accepts(5)) << "the other store asks for the lease itself";
  EXPECT_EQ(published.wait_for(0s), std::future_status::timeout);
  EXPECT_EQ(fetched.wait_for(0s), std::future_status::timeout);
  other->cancel_calls();
  EXPECT_EQ(published.get(), Code::canceled);
  EXPECT_EQ(fetched.get(), Code::canceled);
}

TEST_F(SilentEtcd, without_a_cancel_calls_end_by_their_deadlines) {
  const auto store = open();
  const Deadline soon = Deadline::after(200ms);
  EXPECT_EQ(store->publish("a", "", "bytes", 10s, soon).code(), Code::timed_out);
  EXPECT_EQ(store->fetch("a", "", soon).code(), Code::timed_out);
  EXPECT_EQ(store->list(soon).code(), Code::timed_out);
}

}  // namespace
}  // namespace headrace::metadata
