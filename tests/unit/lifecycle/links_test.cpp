// SPDX-License-Identifier: Apache-2.0
// A post and a cancel while the link of the post is lost and another one is there, in every order.
#include "engine/gate.hpp"
#include "engine/post_life.hpp"
#include "unit/lifecycle/explore.hpp"

#include <headrace/result.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace headrace::lifecycle::links {
namespace {

/// Link 0 will be lost, link 1 stays. The request's path is over one of them.
struct LinkWorld : Model {
  bool closes_without_waiting = false;  ///< a link's connection goes while a thread is inside its gate

  engine::PostLife life;
  std::array<engine::Gate, 2> gates;
  std::array<bool, 2> lost{}, connected{true, true}, has_post{};  ///< has_post: the backend, for that link
  std::size_t path = 0, canceled_on = 0;
  bool flying = false, cancel_asked = false;
  int ends = 0;
  std::array<bool, 3> claimed{};  ///< by thread: it ends the post

  [[nodiscard]] std::string print() const {
    const engine::PostLife::Now now = life.now();
    std::string text = std::to_string(now.post) + "," + std::to_string(static_cast<int>(now.state)) + "," +
                       std::to_string(path) + std::to_string(canceled_on) + "," + std::to_string(ends);
    for (const bool value :
         {flying, cancel_asked, lost[0], connected[0], has_post[0], has_post[1], gates[0].closed(),
          gates[0].empty(), gates[1].empty(), claimed[0], claimed[1], claimed[2]})
      text += value ? "1" : "0";
    return text;
  }
  void use(std::size_t link) { require(connected[link], "a backend is used with a connection that is gone"); }
  bool claim(std::size_t me, std::size_t link) {
    claimed[me] = std::exchange(has_post[link], false);
    return claimed[me];
  }
  void end(RequestState state) {
    require(++ends == 1, "a post ends twice");
    flying = false;
    life.set(state);
  }
  void at_end() {
    require(!has_post[0] && !has_post[1], "a post is in the backend, and no thread will end it");
    require(ends == 1, "a post has no end");
  }
};
using W = LinkWorld;

enum Who : std::size_t { caller, loser, canceler };

/// RequestCore::post. What is refused by a closed link ends; what finds its link lost takes the other one.
Thread<W> posting() {
  constexpr int refused = 8, bind = 9;
  return {
      "caller",
      {{"post_at: PostLife::begin",
        [](W& w) {
          RequestState before{};
          return w.life.begin(before) ? next_step : end_of_thread;
        }},
       {"try_path: Link::state", [](W& w) { return w.lost[w.path] ? bind : next_step; }},
       {"try_path: InFlight::insert", [](W& w) { return w.flying = true, next_step; }},
       {"hand_over: Gate::enter", [](W& w) { return w.gates[w.path].enter() ? next_step : refused; }},
       {"hand_over: BackendInstance::post",
        [](W& w) {
          w.use(w.path);
          w.has_post[w.path] = true;
          return next_step;
        }},
       {"hand_over: a cancel that came before is repeated",
        [](W& w) {
          if (w.cancel_asked && w.claim(caller, w.path)) w.end(RequestState::canceled);
          return next_step;
        }},
       {"hand_over: Gate::leave", [](W& w) { return w.gates[w.path].leave(), next_step; }},
       {"wait: PostLife::ended", [](W&) { return end_of_thread; }, [](const W& w) { return w.life.ended(); }},
       {"try_path: the link is closed, InFlight::take, end",
        [](W& w) { return w.end(RequestState::failed), end_of_thread; }},
       {"bind: PathChoice::choose", [](W& w) { return w.path = 1, 1; }}}};
}

/// Links::lose, then Links::end.
Thread<W> losing() {
  return {"loss",
          {{"Links::lose: Link::set_lost", [](W& w) { return w.lost[0] = true, next_step; }},
           {"Link::close: Gate::shut", [](W& w) { return (void)w.gates[0].shut(), next_step; }},
           {"Link::close: Gate::empty", [](W&) { return next_step; },
            [](const W& w) { return w.gates[0].empty() || w.closes_without_waiting; }},
           {"Link::close: BackendInstance::disconnect",
            [](W& w) {
              w.connected[0] = false;
              return w.claim(loser, 0) ? next_step : end_of_thread;
            }},
           {"completed: InFlight::take, end", [](W& w) {
              w.end(RequestState::failed);
              return next_step;
            }}}};
}

/// RequestCore::cancel. What is over the link that stays ends by it alone: nothing else ends a post here.
Thread<W> canceling() {
  return {
      "cancel",
      {{"cancel: raise(cancel_asked_)", [](W& w) { return w.cancel_asked = true, next_step; },
        [](const W& w) { return w.life.post() == 1; }},
       {"cancel: PostLife::change",
        [](W& w) {
          return w.life.change(1, RequestState::posted, RequestState::canceling) ? next_step : end_of_thread;
        }},
       {"cancel_on_path: Gate::enter",
        [](W& w) {
          w.canceled_on = w.path;
          return w.gates[w.path].enter() ? next_step : end_of_thread;
        }},
       {"cancel_on_path: BackendInstance::cancel",
        [](W& w) {
          w.use(w.canceled_on);
          if (w.claim(canceler, w.canceled_on)) w.end(RequestState::canceled);
          return next_step;
        }},
       {"cancel_on_path: Gate::leave", [](W& w) { return w.gates[w.canceled_on].leave(), end_of_thread; }}},
      true};
}

Explorer<W> links(bool closes_without_waiting) {
  const auto make = [closes_without_waiting] {
    auto world = std::make_unique<W>();
    world->closes_without_waiting = closes_without_waiting;
    return world;
  };
  return {make, {posting(), losing(), canceling()}};
}

TEST(LifeOfLinks, a_post_ends_once_and_no_connection_is_used_after_its_link_was_closed) {
  expect_kept("a post, the loss of its link, a cancel", links(false));
}

TEST(LifeOfLinks, a_link_that_closes_without_waiting_for_its_gate_is_found) {
  expect_broken("a link's connection goes while a thread is inside its gate", links(true),
                "a backend is used with a connection that is gone");
}

}  // namespace
}  // namespace headrace::lifecycle::links
