// SPDX-License-Identifier: Apache-2.0
// Who has a name: a peer with a ready link, a stranger that says hello under its name, and the peer itself
// after a restart, in every order.
#include "unit/lifecycle/explore.hpp"

#include <set>
#include <utility>

namespace headrace::lifecycle::names {
namespace {

/// A life is (name, incarnation). Life 1 has the name, link 1 is its; a hello comes over link 2.
struct NameWorld : Model {
  bool hello_replaces = false;  ///< 10: a hello with another incarnation takes the name at once
  bool told_by_claim = false;   ///< 10: what was seen before is told by the incarnation that a peer claims
  bool peer_restarts = false;   ///< the hello is that of the peer itself

  bool alive = true, link_ready = true, contest = false, asked = false, present = false;
  int holder = 1;
  std::set<std::pair<int, int>> seen;  // life or claimed incarnation, post
  bool delivered = false;

  [[nodiscard]] std::string print() const {
    std::string text = std::to_string(holder) + "," + std::to_string(seen.size());
    for (const auto& [life, post] : seen) text += "," + std::to_string(life);
    for (const bool value : {alive, link_ready, contest, asked, present, delivered})
      text += value ? "1" : "0";
    return text;
  }
  void at_end() {
    require(alive || !peer_restarts || holder == 2, "a peer that has restarted does not get its name back");
    require(!alive || delivered, "a message of the peer is taken for one that was seen before");
  }
  void take_name() {
    require(!alive, "a hello replaces a peer that is alive");
    holder = 2;
  }
};
using W = NameWorld;

/// The peer sends the message of its post 7, answers what it is asked, and may die.
Thread<W> peer(bool restarts) {
  Thread<W> thread{"peer", {{"Notifications::received: Inbox::seen", [](W& w) {
                               w.delivered = w.seen.insert({1, 7}).second;
                               return next_step;
                             }}}};
  if (restarts) {
    thread.steps.push_back({"the peer dies", [](W& w) { return w.alive = false, next_step; }});
    thread.steps.push_back(
        {"Links::lose: it is noticed", [](W& w) { return w.link_ready = false, next_step; }});
  } else {
    thread.steps.push_back({"the peer answers: NameContests::present",
                            [](W& w) { return w.present = true, next_step; },
                            [](const W& w) { return w.asked; }});
  }
  thread.may_wait_for_ever = true;  // it may never be asked
  return thread;
}

Thread<W> newcomer(bool restarts) {
  return {restarts ? "the peer, restarted" : "stranger",
          {{"Peers::accepted: a hello of another incarnation",
            [](W& w) {
              if (w.hello_replaces || !w.link_ready)
                w.take_name();
              else
                w.contest = true;
              return next_step;
            },
            [restarts](const W& w) { return !restarts || !w.alive; }},
           {"a message with the incarnation and the post of the peer: Inbox::seen", [](W& w) {
              if (!w.peer_restarts) w.seen.insert({w.told_by_claim ? 1 : 2, 7});
              return next_step;
            }}}};
}

/// Our thread that runs progress: NameContests::look.
Thread<W> deciding() {
  return {"progress",
          {{"look: put_question", [](W& w) { return w.asked = true, next_step; },
            [](const W& w) { return w.contest; }},
           {"look: decided",
            [](W& w) {
              if (!w.present) w.take_name();
              return next_step;
            },
            // It has answered, or its link is lost, or the time for an answer is over: that is longer than a
            // living peer needs.
            [](const W& w) { return w.present || !w.link_ready || !w.alive; }}},
          true};
}

Explorer<W> names(const std::function<void(W&)>& set) {
  W given;
  set(given);
  const auto make = [set] {
    auto world = std::make_unique<W>();
    set(*world);
    return world;
  };
  return {make, {peer(given.peer_restarts), newcomer(given.peer_restarts), deciding()}};
}

TEST(LifeOfNames, a_living_peer_keeps_its_name_and_a_restarted_one_gets_it) {
  expect_kept("a peer, a stranger", names([](W&) {}));
  expect_kept("a peer that restarts", names([](W& w) { w.peer_restarts = true; }));
}

TEST(LifeOfNames, a_hello_that_replaces_a_living_peer_is_found) {
  expect_broken("10, a hello with another incarnation takes the name at once",
                names([](W& w) { w.hello_replaces = true; }), "a hello replaces a peer that is alive");
}

TEST(LifeOfNames, a_forged_incarnation_that_hides_messages_is_found) {
  expect_broken("10, what was seen is told by the incarnation that a peer claims",
                names([](W& w) { w.told_by_claim = true; }),
                "a message of the peer is taken for one that was seen before");
}

}  // namespace
}  // namespace headrace::lifecycle::names
