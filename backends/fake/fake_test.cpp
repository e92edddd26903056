// SPDX-License-Identifier: Apache-2.0
// The faults, each by its script. That the rest of the contract holds is the contract suite's business.
#include "backends/fake/backend.hpp"
#include "support/plugin_instance.hpp"

#include <gtest/gtest.h>

namespace headrace::fake {
namespace {

using namespace headrace::test;  // NOLINT: the tests are written in the harness's words
using test::Instance, test::Link, test::Region, test::Request;  // not the backend's own of these names

constexpr std::uint64_t pages = 16, page_bytes = 1000;

/// The fake as a table whose instances join the test's own network: what a table cannot be told goes by these
/// variables.
struct TestBackend {
  static constexpr const char* name = FakeBackend::name;
  static constexpr const char* version = FakeBackend::version;
  static constexpr std::uint32_t memory_kinds = FakeBackend::memory_kinds;
  static constexpr bool maps = FakeBackend::maps;
  static std::span<const headrace_option_v1> options() { return FakeBackend::options(); }

  static FakeNetwork* network;
  static std::shared_ptr<FaultScript> script;
  static Result<std::unique_ptr<FakeBackend>> open(plugin::Host host, const plugin::CreateArgs& args) {
    return FakeBackend::open(host, args, *network, script);
  }
};
FakeNetwork* TestBackend::network = nullptr;
std::shared_ptr<FaultScript> TestBackend::script;

class Faults : public testing::TestWithParam<std::string> {
 protected:
  Faults() {
    a = open("a", script);
    b = open("b", std::make_shared<FaultScript>());
    ab = a->connect(*b);
    EXPECT_TRUE(world.until([&] { return ab.ready(); }));
    const HostLink seen = b->host().accepted_links().at(0);
    ba = Link(*b, seen.connection, seen.token);
    mine = std::make_unique<Region>(*a, source);
    theirs = std::make_unique<Region>(*b, target);
    remote = std::make_unique<Remote>(ab, theirs->facts());
  }

  std::unique_ptr<Instance> open(const std::string& agent_name, std::shared_ptr<FaultScript> faults) {
    TestBackend::network = &network;
    TestBackend::script = std::move(faults);
    return std::make_unique<Instance>(
        world, plugin::table<TestBackend>(), Settings{{"completion", GetParam()}},
        PluginHost::Args{
            .agent_name = agent_name, .incarnation = agent_name == "a" ? 11U : 22U, .clock = &clock});
  }
  std::unique_ptr<Request> write() {
    return std::make_unique<Request>(*a, HEADRACE_WRITE, &ab,
                                     uniform_side(mine->handle(), 0, page_bytes, page_bytes),
                                     uniform_side(remote->handle(), 0, 2 * page_bytes, page_bytes), pages);
  }
  void go_wrong(const std::string& text) { script->add(FaultScript::parse(text).value()); }
  /// How many pages of the target hold what the source holds.
  std::uint64_t pages_moved() const {
    std::uint64_t moved = 0;
    for (std::uint64_t page = 0; page < pages; ++page)
      if (same_bytes(source.bytes().subspan(page * page_bytes, page_bytes),
                     target.bytes().subspan(2 * page * page_bytes, page_bytes)))
        ++moved;
    return moved;
  }
  std::vector<std::string> heard() {
    std::vector<std::string> texts;
    for (const HostMessage& message : b->host().messages()) texts.push_back(message.bytes);
    return texts;
  }
  /// Gives time until nothing has happened for many passes: for what must not happen.
  void let_everything_happen() {
    for (int i = 0; i < 200; ++i) (void)world.progress();
  }

  FakeNetwork network;
  FakeClock clock;
  World world;
  std::shared_ptr<FaultScript> script = std::make_shared<FaultScript>();
  Memory source{Memory::Kind::plain, pages* page_bytes, 1},
      target{Memory::Kind::plain, 2 * pages* page_bytes, 2};
  std::unique_ptr<Instance> a, b;
  Link ab, ba;
  std::unique_ptr<Region> mine, theirs;
  std::unique_ptr<Remote> remote;
};
INSTANTIATE_TEST_SUITE_P(completion, Faults, testing::Values("inline", "progress", "thread"),
                         [](const auto& chosen) { return chosen.param; });

TEST_P(Faults, a_dropped_post_waits_until_it_is_canceled) {
  go_wrong("drop@1");
  const auto request = write();
  request->post("dropped");
  let_everything_happen();
  EXPECT_TRUE(request->in_flight());
  EXPECT_EQ(pages_moved(), 0U);
  request->cancel();
  EXPECT_EQ(request->wait().status.code, Code::canceled);
  EXPECT_EQ(pages_moved(), 0U);
  request->post("second");
  EXPECT_TRUE(request->wait().status.ok());
  ASSERT_TRUE(world.until([&] { return !heard().empty(); }))
      << "a message must not wait for one whose request failed";
  EXPECT_EQ(heard(), std::vector<std::string>{"second"});
}

TEST_P(Faults, a_dropped_post_ends_with_its_link) {
  go_wrong("drop");
  const auto request = write();
  request->post();
  ba.disconnect();
  EXPECT_EQ(request->wait().status.code, Code::peer_lost);
}

TEST_P(Faults, a_dropped_post_is_canceled_by_disconnect) {
  go_wrong("drop");
  const auto request = write();
  request->post();
  ab.disconnect();
  EXPECT_FALSE(request->in_flight());
  EXPECT_EQ(a->host().last_end(request->slot())->status.code, Code::canceled);
}

TEST_P(Faults, a_delayed_post_waits_for_the_hosts_clock) {
  go_wrong("delay:5ms@1");
  const auto request = write();
  request->post();
  let_everything_happen();
  EXPECT_TRUE(request->in_flight());
  clock.advance(std::chrono::microseconds(4'999));
  let_everything_happen();
  EXPECT_TRUE(request->in_flight());
  EXPECT_EQ(pages_moved(), 0U);
  clock.advance(std::chrono::microseconds(1));
  EXPECT_TRUE(request->wait().status.ok());
  EXPECT_EQ(pages_moved(), pages);
}

TEST_P(Faults, a_delayed_message_holds_back_those_sent_after_it) {
  go_wrong("delay:1s@1");
  ASSERT_TRUE(ab.notify(0, "first").ok());
  ASSERT_TRUE(ab.notify(0, "second").ok());
  ASSERT_TRUE(ab.notify(1, "other channel").ok());
  ASSERT_TRUE(world.until([&] { return heard().size() == 1; }));
  EXPECT_EQ(heard(), std::vector<std::string>{"other channel"});
  clock.advance(std::chrono::seconds(1));
  ASSERT_TRUE(world.until([&] { return heard().size() == 3; }));
  EXPECT_EQ(heard(), (std::vector<std::string>{"other channel", "first", "second"}));
}

TEST_P(Faults, duplicates_write_the_same_bytes_and_deliver_one_message) {
  go_wrong("duplicate");
  const auto request = write();
  for (int i = 0; i < 5; ++i) {
    request->post("post " + std::to_string(i));
    EXPECT_TRUE(request->wait().status.ok());
    ASSERT_TRUE(ab.notify(0, "note " + std::to_string(i)).ok());
  }
  ASSERT_TRUE(world.until([&] { return heard().size() >= 10; }));
  let_everything_happen();
  EXPECT_EQ(heard(), (std::vector<std::string>{"post 0", "note 0", "post 1", "note 1", "post 2", "note 2",
                                               "post 3", "note 3", "post 4", "note 4"}));
  EXPECT_EQ(pages_moved(), pages);
  EXPECT_EQ(request->ends(), 5U);
}

TEST_P(Faults, reordered_posts_end_in_another_order_and_their_messages_do_not) {
  go_wrong("reorder@1");
  std::vector<std::uint64_t> order;
  std::mutex mutex;
  a->host().on_completed = [&](std::uint64_t slot, Status) {
    const std::scoped_lock lock(mutex);
    order.push_back(slot);
  };
  const auto first = write(), second = write();
  first->post("first");
  second->post("second");
  EXPECT_TRUE(second->wait().status.ok());
  EXPECT_TRUE(first->wait().status.ok());
  ASSERT_TRUE(world.until([&] { return heard().size() == 2; }));
  EXPECT_EQ(heard(), (std::vector<std::string>{"first", "second"}));
  if (GetParam() != "thread") {  // there the first may have been carried out before the second was posted
    EXPECT_EQ(order, (std::vector<std::uint64_t>{second->slot(), first->slot()}));
  }
}

TEST_P(Faults, a_reordered_post_that_nothing_follows_is_carried_out_all_the_same) {
  go_wrong("reorder");
  const auto request = write();
  request->post("alone");
  EXPECT_TRUE(request->wait().status.ok());
  ASSERT_TRUE(world.until([&] { return heard().size() == 1; }));
}

TEST_P(Faults, reordered_messages_arrive_in_order) {
  go_wrong("reorder@1, reorder@3..4, duplicate@2");
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(ab.notify(0, std::to_string(i)).ok());
  ASSERT_TRUE(world.until([&] { return heard().size() >= 6; }));
  EXPECT_EQ(heard(), (std::vector<std::string>{"0", "1", "2", "3", "4", "5"}));
}

TEST_P(Faults, a_killed_link_is_lost_on_both_sides_at_the_page) {
  go_wrong("kill:5");
  const auto request = write();
  request->post("never");
  const PostEnd end = request->wait();
  EXPECT_EQ(end.status.code, Code::peer_lost);
  EXPECT_EQ(end.status.page, 5U);
  EXPECT_EQ(pages_moved(), 5U);
  EXPECT_TRUE(world.until([&] { return ab.lost() && ba.lost(); })) << world.describe();
  EXPECT_TRUE(heard().empty());
  EXPECT_EQ(request->try_post().code, Code::peer_lost);
}

TEST_P(Faults, a_message_can_kill_its_link) {
  go_wrong("kill:0@2");
  ASSERT_TRUE(ab.notify(0, "first").ok());
  (void)ab.notify(0, "second");
  EXPECT_TRUE(world.until([&] { return ab.lost() && ba.lost(); })) << world.describe();
  EXPECT_EQ(heard(), std::vector<std::string>{"first"});
}

TEST_P(Faults, a_partial_post_fails_at_the_page_where_it_stopped) {
  go_wrong("partial:2500@1");
  const auto request = write();
  request->post("never");
  const PostEnd end = request->wait();
  EXPECT_EQ(end.status.code, Code::backend_failed);
  EXPECT_EQ(end.status.page, 2U);
  EXPECT_EQ(pages_moved(), 2U);
  EXPECT_TRUE(same_bytes(source.bytes().subspan(2000, 500), target.bytes().subspan(4000, 500)));
  EXPECT_FALSE(ab.lost());
  EXPECT_TRUE(request->run().status.ok());
  EXPECT_EQ(pages_moved(), pages);
  EXPECT_TRUE(heard().empty());
}

TEST_P(Faults, a_denied_preparation_sends_the_host_to_its_next_path) {
  go_wrong("deny@2");
  const auto first = write();
  EXPECT_THROW(write(), std::runtime_error);
  const auto third = write();
  EXPECT_TRUE(third->run().status.ok());
}

TEST_P(Faults, the_queue_has_an_end) {
  go_wrong("drop");
  TestBackend::network = &network;
  TestBackend::script = script;
  const auto c = std::make_unique<Instance>(world, plugin::table<TestBackend>(),
                                            Settings{{"completion", GetParam()}, {"queue_depth", "3"}},
                                            PluginHost::Args{.agent_name = "c", .incarnation = 33});
  const Region own(*c, source);
  const Remote far(*c, own);
  std::vector<std::unique_ptr<Request>> requests;
  for (int i = 0; i < 4; ++i)
    requests.push_back(std::make_unique<Request>(*c, HEADRACE_WRITE, nullptr,
                                                 uniform_side(own.handle(), 0, 8, 8),
                                                 uniform_side(far.handle(), 100, 8, 8), 1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(requests[static_cast<std::size_t>(i)]->try_post().ok());
  EXPECT_EQ(requests[3]->try_post().code, Code::would_block);
  requests[0]->cancel();
  EXPECT_EQ(requests[0]->wait().status.code, Code::canceled);
  EXPECT_TRUE(requests[3]->try_post().ok());
}

TEST_P(Faults, instances_of_another_network_are_out_of_reach) {
  FakeNetwork elsewhere;
  TestBackend::network = &elsewhere;
  TestBackend::script = std::make_shared<FaultScript>();
  const auto c =
      std::make_unique<Instance>(world, plugin::table<TestBackend>(), Settings{{"completion", GetParam()}},
                                 PluginHost::Args{.agent_name = "c", .incarnation = 33});
  const auto link = a->try_connect("c", 33, c->connection_info());
  ASSERT_FALSE(link);
  EXPECT_EQ(link.code(), Code::not_supported);
}

// ------------------------------------------------------------------------------------------- the script

TEST(fault_script, reads_kinds_values_and_counts) {
  const auto faults = FaultScript::parse(" drop@3 , delay:5ms@4..6,partial:4KiB, kill:7@9.. ");
  ASSERT_TRUE(faults) << faults.error().message;
  ASSERT_EQ(faults->size(), 4U);
  EXPECT_EQ((*faults)[0].first, 3U);
  EXPECT_EQ((*faults)[0].last, 3U);
  EXPECT_EQ((*faults)[1].value, 5'000'000U);
  EXPECT_EQ((*faults)[1].first, 4U);
  EXPECT_EQ((*faults)[1].last, 6U);
  EXPECT_EQ((*faults)[2].value, 4096U);
  EXPECT_EQ((*faults)[2].first, 1U);
  EXPECT_EQ((*faults)[2].last, UINT64_MAX);
  EXPECT_EQ((*faults)[3].first, 9U);
  EXPECT_TRUE(FaultScript::parse("")->empty());
}

TEST(fault_script, refuses_what_makes_no_sense_and_quotes_it) {
  for (const char* text : {"explode", "drop:3", "delay", "delay:soon", "kill:x", "drop@0", "drop@5..4",
                           "drop@", "drop@x", "partial:-1", "kill:1@2..x"}) {
    const auto faults = FaultScript::parse(std::string("duplicate,") + text);
    ASSERT_EQ(faults.code(), Code::invalid_argument) << text;
    EXPECT_NE(faults.error().message.find(text), std::string::npos) << faults.error().message;
  }
}

TEST(fault_script, is_read_from_the_options_at_create) {
  World world;
  PluginHost host({});
  const headrace_backend_v1* const table = plugin::table<FakeBackend>();
  for (const auto& [option, value] : {std::pair<std::string, std::string>{"faults", "explode"},
                                      {"completion", "never"},
                                      {"queue_depth", "0"}}) {
    const CreateArguments arguments(*table, {{option, value}}, world.runtime_dir());
    ErrorText error;
    void* instance = nullptr;
    EXPECT_EQ(table->create(host.table(), arguments.args(), &instance, error.out()),
              HEADRACE_INVALID_ARGUMENT)
        << option;
    EXPECT_NE(error.str().find(value), std::string::npos) << error.str();
  }
}

}  // namespace
}  // namespace headrace::fake
