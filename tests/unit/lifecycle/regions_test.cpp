// SPDX-License-Identifier: Apache-2.0
// A region that its owner takes back, and a peer that posts on it over one or two links and learns of it from
// a store, in every order.
#include "engine/peer_life.hpp"
#include "engine/take_metadata.hpp"
#include "memory/region_table.hpp"
#include "unit/lifecycle/explore.hpp"

#include <cstdint>
#include <string>

namespace headrace::lifecycle::regions {
namespace {

/// The owner has region 1. The peer's record of the owner and the owner's table are the real classes.
struct RegionWorld : Model {
  bool asks_old_links_alone = false;         ///< 3: a link that is made during a round is not asked
  bool old_metadata_brings_back = false;     ///< 3: what has been revoked is not kept
  bool version_rises_after_answers = false;  ///< 3: an export during the round has the version of before
  bool looks_once = false;                   ///< 3: who connects after the last answer is not waited for
  bool may_give_up = false;                  ///< the owner's patience may end
  unsigned links = 1;                        ///< bits of links 1 and 2
  bool imports = true, connects = false;

  // --- the owner
  RegionTable<int> table;
  bool listed = true, round = false, given_back = false, put_back = false, returned = false;
  std::uint64_t asked_in = 0;
  unsigned waiting = 0, sent = 0, arrived = 0;  // bits of links
  // --- the store, and the peer
  wire::Metadata published;
  engine::PeerLife life{"owner", 7};
  unsigned pending = 0;
  bool flying = false, writing = false, told = false;
  int rounds = 0;

  RegionWorld() {
    table.add(0, 64, 1);
    published = exported();  // the store has it from before
    take(published);
  }
  void take(wire::Metadata m) { (void)engine::take_metadata(life, m); }
  [[nodiscard]] wire::Metadata exported() const {
    wire::Metadata m;
    m.name = "owner";
    m.incarnation = 7;
    m.version = table.version();
    if (!listed) return m;
    m.ids = {1};
    m.addresses = {0x1000};
    m.lengths = {64};
    m.kinds = {HEADRACE_DRAM};
    m.masks = {0};
    return m;
  }
  [[nodiscard]] bool knows() const { return life.regions.find(1) != nullptr; }
  [[nodiscard]] std::string print() const {
    std::string text;
    for (const std::uint64_t value : {std::uint64_t{links}, std::uint64_t{waiting}, std::uint64_t{sent},
                                      std::uint64_t{arrived}, std::uint64_t{pending}, table.version(),
                                      asked_in, life.version, static_cast<std::uint64_t>(rounds)})
      text += std::to_string(value) + ",";
    for (const bool value : {listed, round, given_back, put_back, returned, flying, writing, told, knows()})
      text += value ? "1" : "0";
    return text;
  }
  void at_end() {
    require(returned || put_back, "the deregistration does not end");
    if (!put_back) return;
    take(exported());
    require(knows(), "a region that stays after all is hidden from its peer");
  }
};
using W = RegionWorld;

constexpr int give_up = 9;

/// LocalRegions::deregister and Revocation::ask_peers.
Thread<W> owner() {
  return {"owner",
          {{"deregister: withdraw, changed",
            [](W& w) {
              w.listed = false;
              if (!w.version_rises_after_answers) w.table.withdraw(1);
              w.asked_in = w.table.version();
              return next_step;
            }},
           {"begin_rounds: the round is in the table", [](W& w) { return w.round = true, next_step; }},
           {"begin_rounds: Links::all, add", [](W& w) { return w.waiting |= w.links, next_step; }},
           {"ask: take_unsent, send", [](W& w) { return w.sent |= w.waiting, next_step; }},
           {"ask_peers: all_answered", [](W& w) { return w.waiting != 0 ? give_up : next_step; },
            [](const W& w) { return w.waiting == 0 || w.may_give_up; }},
           {"ask_peers: give_back, the backends refuse", [](W& w) { return w.given_back = true, next_step; }},
           {"ask_peers: all_answered, once more", [](W&) { return next_step; },
            [](const W& w) { return w.waiting == 0 || w.looks_once; }},
           {"ask_peers: end_rounds", [](W& w) { return w.round = false, next_step; }},
           {"deregister: remove, the memory is the caller's",
            [](W& w) {
              (void)w.table.remove(1);
              w.returned = true;
              w.require(!w.writing, "a peer writes into memory that deregister has given back");
              return end_of_thread;
            }},
           {"ask_peers: patience is over, end_rounds", [](W& w) { return w.round = false, next_step; }},  // 9
           {"deregister: put_back, changed", [](W& w) {
              w.table.put_back(1);
              w.listed = w.put_back = true;
              return end_of_thread;
            }}}};
}

/// The caller of the peer: takes in what the store had when it asked, connects, posts; twice.
Thread<W> peers_caller(const W& given) {
  Thread<W> thread{"peer's caller", {}};
  auto& steps = thread.steps;
  const auto before = std::make_shared<const wire::Metadata>(given.published);
  if (given.imports)
    steps.push_back({"Peers::import of metadata from before: take_metadata", [before](W& w) {
                       const bool forgets = w.old_metadata_brings_back;
                       if (forgets) w.life.revoked = {};
                       w.take(*before);
                       return next_step;
                     }});
  if (given.connects) {
    steps.push_back(
        {"Links::add: link 2 is in the owner's table", [](W& w) { return w.links |= 2, next_step; }});
    steps.push_back({"Revocation::link_added: add", [](W& w) {
                       if (w.round && !w.asks_old_links_alone) w.waiting |= 2;
                       return next_step;
                     }});
    steps.push_back({"Revocation::link_added: ask", [](W& w) { return w.sent |= w.waiting, next_step; }});
  }
  steps.push_back({"try_path: InFlight::insert", [](W& w) { return w.flying = true, next_step; },
                   [](const W& w) { return w.links != 0; }});
  const int ends = static_cast<int>(steps.size()) + 2;
  steps.push_back({"try_path: still_valid", [ends](W& w) { return w.knows() ? next_step : ends; }});
  steps.push_back({"the backend begins to write, if the owner still has the region", [](W& w) {
                     w.writing = !w.given_back;
                     return next_step;
                   }});
  steps.push_back({"completed: InFlight::take, post_ended", [](W& w) {
                     w.flying = w.writing = false;
                     return ++w.rounds < 2 ? 0 : end_of_thread;
                   }});
  return thread;
}

/// The peer's thread that runs progress.
Thread<W> peers_progress() {
  return {
      "peer's progress",
      {{"Revocation::asked: RevokedIds::add, RemoteRegions::erase, keep",
        [](W& w) {
          const unsigned link = (w.sent & ~w.arrived & 1) != 0 ? 1 : 2;
          const std::vector<engine::IdRange> ranges{{1, 1}};
          w.arrived |= link;
          w.pending |= link;
          w.life.revoked.add(ranges, w.asked_in);
          w.life.regions.erase(ranges);
          w.told = true;
          return next_step;
        },
        [](const W& w) { return (w.sent & ~w.arrived) != 0; }},
       {"answer: no post is in flight", [](W&) { return next_step; }, [](const W& w) { return !w.flying; }},
       {"answer: answer_one",
        [](W& w) {
          for (unsigned* const links : {&w.waiting, &w.sent, &w.arrived}) *links &= ~w.pending;
          w.pending = 0;
          return 0;
        }}},
      true};
}

Explorer<W> regions(const std::function<void(W&)>& set) {
  W given;
  set(given);
  const auto make = [set] {
    auto world = std::make_unique<W>();
    set(*world);
    return world;
  };
  return {make, {owner(), peers_caller(given), peers_progress()}};
}

void over_a_new_link(W& w) {
  w.links = 0;
  w.connects = true;
  w.imports = false;
}

TEST(LifeOfRegions, no_peer_writes_into_a_region_that_was_given_back_in_any_order) {
  expect_kept("one link, metadata of a store", regions([](W&) {}));
  expect_kept("a link that is made meanwhile", regions(over_a_new_link));
  expect_kept("two links, one of them made meanwhile", regions([](W& w) { w.connects = true; }));
  expect_kept("a revocation that fails", regions([](W& w) { w.may_give_up = true; }));
}

TEST(LifeOfRegions, a_round_that_asks_the_links_of_its_beginning_alone_is_found) {
  expect_broken("3, a link that is made during a round is not asked", regions([](W& w) {
                  over_a_new_link(w);
                  w.asks_old_links_alone = true;
                }),
                "a peer writes into memory that deregister has given back");
}

TEST(LifeOfRegions, a_link_that_is_made_after_the_last_answer_and_not_waited_for_is_found) {
  expect_broken("3, the answers are not looked at again once the backends refuse", regions([](W& w) {
                  over_a_new_link(w);
                  w.looks_once = true;
                }),
                "a peer writes into memory that deregister has given back");
}

TEST(LifeOfRegions, old_metadata_that_brings_a_region_back_is_found) {
  expect_broken("3, metadata from before a revocation brings the region back",
                regions([](W& w) { w.old_metadata_brings_back = true; }),
                "a peer writes into memory that deregister has given back");
}

TEST(LifeOfRegions, a_version_that_does_not_rise_before_peers_are_asked_is_found) {
  expect_broken("3, the version rises after the answers",
                regions([](W& w) { w.version_rises_after_answers = true; }),
                "a peer writes into memory that deregister has given back");
}

}  // namespace
}  // namespace headrace::lifecycle::regions
