// SPDX-License-Identifier: Apache-2.0
// Links: made, made twice, refused, given up, and lost.
#include "contract/fixture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace headrace::contract {
namespace {

class Links : public Contract {
 protected:
  /// How an attempt that cannot succeed ends: at once, or as a link that is lost.
  Status failure_of(Instance& from, const std::string& peer, std::uint64_t incarnation,
                    const std::string& info) {
    auto link = from.try_connect(peer, incarnation, info);
    if (!link) return {link.code()};
    EXPECT_TRUE(world.until([&] { return link->lost(); })) << world.describe();
    EXPECT_FALSE(link->ready());
    const auto state = from.host().link(link->token());
    return state ? state->lost_status : Status{};
  }

  /// Proves that a link carries requests and messages both ways.
  void expect_works(const Link& ab, const Link& ba) {
    for (const auto& [from, to] : {std::pair(&ab, &ba), std::pair(&ba, &ab)}) {
      const Memory source(Memory::Kind::plain, 5000, 3), target(Memory::Kind::plain, 5000, 4);
      const Region mine(from->instance(), source), theirs(to->instance(), target);
      const Remote remote(*from, theirs.facts());
      Request request(from->instance(), HEADRACE_WRITE, from, uniform_side(mine.handle(), 0, 500, 500),
                      uniform_side(remote.handle(), 0, 500, 500), 10);
      const std::size_t heard = to->instance().host().message_count();
      request.post("from " + from->instance().name());
      const PostEnd end = request.wait();
      ASSERT_TRUE(end.status.ok()) << end.text;
      ASSERT_TRUE(same_bytes(source.bytes(), target.bytes()));
      ASSERT_TRUE(world.until([&] { return to->instance().host().message_count() > heard; }))
          << world.describe();
      const HostMessage message = to->instance().host().messages().back();
      EXPECT_EQ(message.link, to->token());
      EXPECT_EQ(message.bytes, "from " + from->instance().name());
    }
  }
};
HEADRACE_FOR_EACH_BACKEND_THAT(Links, HEADRACE_REMOTE);

TEST_P(Links, tell_both_sides_who_is_there) {
  const Pair pair = open_pair();
  const auto seen = pair.b->host().link(pair.ba.token());
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->peer_name, "a");
  EXPECT_EQ(seen->peer_incarnation, pair.a->incarnation());
  expect_works(pair.ab, pair.ba);
}

TEST_P(Links, made_by_both_sides_at_once_are_two_that_both_work) {
  const auto a = open("a"), b = open("b");
  const Link ab = a->connect(*b), ba = b->connect(*a);
  ASSERT_TRUE(world.until([&] { return ab.ready() && ba.ready(); })) << world.describe();
  const Link at_b = accepted(*b, *a), at_a = accepted(*a, *b);
  expect_works(ab, at_b);
  expect_works(ba, at_a);
}

TEST_P(Links, of_one_pair_are_independent) {
  const Pair pair = open_pair();
  Link second = pair.a->connect(*pair.b);
  ASSERT_TRUE(world.until([&] { return second.ready(); }));
  // pair.ba has taken up the first of b's links, so the one that is left is the second.
  Link second_at_b;
  ASSERT_TRUE(world.until([&] { return pair.b->host().accepted_links().size() == 2; }));
  for (const HostLink& link : pair.b->host().accepted_links())
    if (link.token != pair.ba.token()) second_at_b = Link(*pair.b, link.connection, link.token);
  expect_works(second, second_at_b);
  second.disconnect();
  ASSERT_TRUE(world.until([&] { return second_at_b.lost(); }));
  EXPECT_FALSE(pair.ba.lost());
  expect_works(pair.ab, pair.ba);
}

TEST_P(Links, to_an_instance_that_is_gone_fail) {
  const auto a = open("a");
  auto b = open("b");
  const std::string info = b->connection_info();
  const std::uint64_t incarnation = b->incarnation();
  b.reset();
  EXPECT_TRUE(one_of(failure_of(*a, "b", incarnation, info).code,
                     {Code::peer_lost, Code::not_supported, Code::timed_out}));
}

TEST_P(Links, to_another_life_of_the_peer_fail_as_peer_lost) {
  const auto a = open("a"), b = open("b");
  EXPECT_EQ(failure_of(*a, "b", b->incarnation() ^ 2, b->connection_info()).code, Code::peer_lost);
  EXPECT_TRUE(b->host().accepted_links().empty());
}

TEST_P(Links, with_damaged_connection_information_fail_and_harm_nobody) {
  const auto a = open("a"), b = open("b");
  const std::string info = b->connection_info();
  // Cut, lengthened and replaced, not flipped at random: a flipped address would be a stranger's.
  std::vector<std::string> damaged{"", "x", std::string(70'000, '\xff'), std::string(info.size(), '\0'),
                                   info + "tail"};
  for (std::size_t length = 1; length < info.size(); length += 1 + info.size() / 20)
    damaged.push_back(info.substr(0, length));
  for (const std::string& bytes : damaged) {
    // What was cut off may not have mattered, so it may work; it must end either way, and harm nobody.
    auto link = a->try_connect("b", b->incarnation(), bytes);
    if (!link) {
      EXPECT_FALSE(link.error().message.empty());
      continue;
    }
    EXPECT_TRUE(world.until([&] { return link->lost() || link->ready(); })) << world.describe();
  }
  for (const HostLink& link : b->host().accepted_links()) Link(*b, link.connection, link.token).disconnect();
  const Link ab = a->connect(*b);
  ASSERT_TRUE(world.until([&] { return ab.ready(); })) << world.describe();
  const Link ba = accepted(*b, *a);
  expect_works(ab, ba);
}

TEST_P(Links, that_the_peer_refuses_are_lost_where_they_were_made) {
  const auto a = open("a"), b = open("b");
  b->host().accept_links(false);
  EXPECT_TRUE(one_of(failure_of(*a, "b", b->incarnation(), b->connection_info()).code,
                     {Code::peer_lost, Code::canceled}));
  b->host().accept_links(true);
  const Link again = a->connect(*b);
  EXPECT_TRUE(world.until([&] { return again.ready(); })) << "a refusal must not last";
}

TEST_P(Links, closed_by_one_side_are_lost_at_the_other) {
  for (const bool by_the_maker : {true, false}) {
    Pair pair = open_pair();
    Link& closing = by_the_maker ? pair.ab : pair.ba;
    const Link& other = by_the_maker ? pair.ba : pair.ab;
    closing.disconnect();
    ASSERT_TRUE(world.until([&] { return other.lost(); })) << world.describe();
    EXPECT_EQ(other.instance().host().link(other.token())->lost_status.code, Code::peer_lost);
    EXPECT_EQ(other.notify(0, "too late").code, Code::peer_lost);
  }
}

TEST_P(Links, may_be_given_up_before_they_are_ready) {
  const auto a = open("a"), b = open("b");
  for (int i = 0; i < 20; ++i) {
    Link link = a->connect(*b);
    if (i % 2 == 0) (void)world.progress();
    link.disconnect();
  }
  const Link ab = a->connect(*b);
  ASSERT_TRUE(world.until([&] { return ab.ready(); })) << world.describe();
}

TEST_P(Links, refuse_what_comes_before_they_are_ready) {
  const auto a = open("a"), b = open("b");
  const Memory source(Memory::Kind::plain, 4000, 1), target(Memory::Kind::plain, 4000, 2);
  const Region mine(*a, source), theirs(*b, target);
  const Link ab = a->connect(*b);
  const Remote remote(ab, theirs.facts());
  Request request(*a, HEADRACE_WRITE, &ab, uniform_side(mine.handle(), 0, 400, 400),
                  uniform_side(remote.handle(), 0, 400, 400), 10);
  std::vector<std::string> expected, refused;
  const auto give = [&](const std::string& text) {
    const Status status = text == "post" ? request.try_post(&text) : ab.notify(HEADRACE_CHANNEL_USER, text);
    EXPECT_TRUE(one_of(status.code, {Code::ok, Code::would_block}));
    EXPECT_TRUE(!status.ok() || !b->host().accepted_links().empty()) << text;
    (status.ok() ? expected : refused).push_back(text);
  };
  for (const char* text : {"before", "post", "after"}) give(text);
  ASSERT_TRUE(world.until([&] { return ab.ready(); })) << world.describe();

  // What was refused has left nothing behind, and is taken now.
  for (const std::string& text : std::exchange(refused, {})) give(text);
  EXPECT_EQ(refused, std::vector<std::string>{});
  const PostEnd end = request.wait();
  ASSERT_TRUE(end.status.ok()) << end.text;
  EXPECT_EQ(request.ends(), 1U);
  EXPECT_TRUE(same_bytes(source.bytes(), target.bytes()));
  const auto heard = [&] {
    std::vector<std::string> texts;
    for (const HostMessage& message : b->host().messages()) texts.push_back(message.bytes);
    return texts;
  };
  ASSERT_TRUE(world.until([&] { return heard().size() >= 3; })) << world.describe();
  ab.send(world, HEADRACE_CHANNEL_USER, "last");  // behind anything that would come twice
  expected.emplace_back("last");
  ASSERT_TRUE(world.until([&] { return !heard().empty() && heard().back() == "last"; })) << world.describe();
  EXPECT_EQ(heard(), expected);
}

TEST_P(Links, that_come_in_are_ready_before_the_host_answers) {
  const auto a = open("a"), b = open("b");
  const Memory source(Memory::Kind::plain, 4000, 1), target(Memory::Kind::plain, 4000, 2);
  const Region mine(*b, source), theirs(*a, target);
  std::optional<Link> ba;
  std::optional<Remote> remote;
  std::optional<Request> request;
  b->host().on_accepted = [&](const HostLink& link) {
    ba.emplace(*b, link.connection, link.token);
    remote.emplace(*ba, theirs.facts());
    request.emplace(*b, HEADRACE_WRITE, &*ba, uniform_side(mine.handle(), 0, 400, 400),
                    uniform_side(remote->handle(), 0, 400, 400), 10);
    EXPECT_TRUE(request->try_post().ok());
    EXPECT_TRUE(ba->notify(HEADRACE_CHANNEL_USER, "message").ok());
  };
  const Link ab = a->connect(*b);
  ASSERT_TRUE(world.until([&] { return ab.ready() && a->host().message_count() == 1; })) << world.describe();
  ASSERT_TRUE(request->wait().status.ok());
  EXPECT_TRUE(same_bytes(source.bytes(), target.bytes()));
}

TEST_P(Links, between_many_agents_do_not_mix) {
  constexpr std::size_t count = 6;
  std::vector<std::unique_ptr<Instance>> agents;
  for (std::size_t i = 0; i < count; ++i) agents.push_back(open(fmt::format("agent-{}", i)));
  std::vector<Link> links;
  for (auto& from : agents)
    for (auto& to : agents)
      if (from != to) links.push_back(from->connect(*to));
  ASSERT_TRUE(world.until([&] {
    return std::ranges::all_of(links, [](const Link& link) { return link.ready(); });
  })) << world.describe();
  std::size_t l = 0;
  for (auto& from : agents)
    for (auto& to : agents)
      if (from != to) links[l++].send(world, HEADRACE_CHANNEL_USER, from->name() + " to " + to->name());
  for (auto& agent : agents) {
    ASSERT_TRUE(world.until([&] { return agent->host().message_count() == count - 1; })) << world.describe();
    for (const HostMessage& message : agent->host().messages()) {
      const auto link = agent->host().link(message.link);
      ASSERT_TRUE(link);
      EXPECT_EQ(message.bytes, link->peer_name + " to " + agent->name());
    }
  }
}

TEST_P(Links, made_and_closed_a_hundred_times_leave_nothing_behind) {
  const auto a = open("a"), b = open("b");
  for (int i = 0; i < 100; ++i) {
    Link ab = a->connect(*b);
    ASSERT_TRUE(world.until([&] { return ab.ready(); })) << world.describe();
    Link ba = accepted(*b, *a);
    if (i % 2 == 0) std::swap(ab, ba);
    ab.disconnect();
    ASSERT_TRUE(world.until([&] { return ba.lost(); })) << world.describe();
  }
}

}  // namespace
}  // namespace headrace::contract
