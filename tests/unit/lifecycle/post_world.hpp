// SPDX-License-Identifier: Apache-2.0
// One request over one path: its posts, its deadline, cancels, the end, and the close of its agent.
#pragma once

#include "engine/gate.hpp"
#include "engine/post_life.hpp"
#include "unit/lifecycle/explore.hpp"

#include <headrace/result.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace headrace::lifecycle {

struct PostWorld : Model {
  enum Who : std::size_t { caller, canceler, backend };
  static constexpr std::uint64_t none = UINT64_MAX;

  // --- defects of earlier code, to be found
  bool expiry_names_no_post = false;       ///< 4: what expires is canceled, whichever post it is by then
  bool refusal_keeps_deadline = false;     ///< 4: a refused post leaves its deadline
  bool looks_at_gate_before_post = false;  ///< 1: a post looks at the gate before it has begun
  // --- what happens
  bool first_is_refused = false;  ///< by the backend, whose queue is full
  bool backend_ends_posts = true;

  engine::PostLife life;
  engine::Gate calls, link;
  std::uint64_t deadline = none;  ///< that of a post; it has passed
  std::uint64_t cancel_asked = 0, timed_out = 0;
  bool flying = false;           ///< in the in-flight list
  std::uint64_t in_backend = 0;  ///< the post that the backend has, 0: none
  int inside_path = 0;           ///< threads under the shared lock of the path
  bool path = true, quiet = true, instance = true, close_has_returned = false;
  std::map<std::uint64_t, Code> ends;  ///< by post

  /// What a thread knows.
  struct Local {
    engine::PostLife::Now now;
    RequestState before = RequestState::prepared;
    std::uint64_t ending = 0;  ///< the post that it ends
    Code code = Code::ok;
  };
  std::array<Local, 3> local;

  [[nodiscard]] std::string print() const {
    const engine::PostLife::Now now = life.now();
    std::string text;
    const auto add = [&](std::uint64_t value) { text += std::to_string(value) + ","; };
    for (const std::uint64_t value : {now.post, static_cast<std::uint64_t>(now.state), deadline, cancel_asked,
                                      timed_out, in_backend, static_cast<std::uint64_t>(inside_path)})
      add(value);
    for (const bool value :
         {calls.closed(), link.closed(), flying, path, quiet, instance, close_has_returned})
      add(value ? 1 : 0);
    for (const auto& [post, code] : ends) add(post), add(static_cast<std::uint64_t>(code));
    for (const Local& one : local)
      for (const std::uint64_t value :
           {one.now.post, static_cast<std::uint64_t>(one.now.state), static_cast<std::uint64_t>(one.before),
            one.ending, static_cast<std::uint64_t>(one.code)})
        add(value);
    return text;
  }
  void at_end() {
    require(in_backend == 0, "a post is in the backend, and no thread will end it");
    require(engine::has_ended(life.state()), "a post has no end");
  }
};

using PostStep = Step<PostWorld>;

/// The end of a post that this thread has claimed, RequestCore::completed and end.
inline std::vector<PostStep> ending(PostWorld::Who who) {
  using W = PostWorld;
  return {
      {"completed: InFlight::take", [](W& w) { return w.flying = false, next_step; }},
      {"end: no deadline any more", [](W& w) { return w.deadline = W::none, next_step; }},
      {"end: the outcome",
       [who](W& w) {
         W::Local& me = w.local[who];
         if (me.code == Code::canceled && w.timed_out == w.life.post()) me.code = Code::timed_out;
         w.require(!w.ends.contains(me.ending), "a post ends twice");
         w.ends[me.ending] = me.code;
         w.require(me.ending == 1 || me.code != Code::timed_out,
                   "the deadline of another post ends post 2, which has none");
         return next_step;
       }},
      {"finish: PostLife::set",
       [who](W& w) {
         w.life.set(engine::state_after({w.local[who].code}));
         w.local[who] = {};
         return next_step;
       }},
  };
}

/// The backend ends the post that it has: PostSlots::complete, by one thread.
inline bool claim(PostWorld& w, PostWorld::Who who, Code code) {
  w.require(w.instance, "a backend is used after its end");
  if (w.in_backend == 0) return false;
  w.local[who].ending = std::exchange(w.in_backend, 0);
  w.local[who].code = code;
  return true;
}

/// RequestCore::cancel of the post in `local.now`, then `ending`, then on. Steps from number `from` on.
inline std::vector<PostStep> canceling(PostWorld::Who who, int from) {
  using W = PostWorld;
  std::vector<PostStep> steps{{"cancel: raise(cancel_asked_)",
                               [who](W& w) {
                                 if (w.expiry_names_no_post) w.local[who].now.post = w.life.post();
                                 w.cancel_asked = std::max(w.cancel_asked, w.local[who].now.post);
                                 return next_step;
                               }},
                              {"cancel: PostLife::change",
                               [who, from](W& w) {
                                 const bool mine = w.life.change(w.local[who].now.post, RequestState::posted,
                                                                 RequestState::canceling);
                                 return mine ? next_step : from + 7;
                               }},
                              {"cancel_on_path: BackendInstance::cancel", [who, from](W& w) {
                                 return w.path && claim(w, who, Code::canceled) ? next_step : from + 7;
                               }}};
  for (PostStep& step : ending(who)) steps.push_back(std::move(step));
  return steps;  // 7
}

// The steps of a post have these numbers.
inline constexpr int path_gone = 10, backend_refuses = 11, post_waits = 14;

/// RequestCore::post_at until the path: steps 0 to 2.
inline std::vector<PostStep> entering(bool looks_at_gate_first) {
  using W = PostWorld;
  const PostStep begin{"post_at: PostLife::begin",
                       [](W& w) { return w.life.begin(w.local[W::caller].before) ? next_step : post_waits; }};
  const PostStep look{"post: CallGate::closed", [looks_at_gate_first](W& w) {
                        if (!w.calls.closed()) return next_step;
                        if (!looks_at_gate_first) w.life.set(w.local[W::caller].before);
                        return end_of_thread;  // invalid_argument
                      }};
  const PostStep store{"post_at: the deadline is stored", [](W& w) {
                         w.deadline = w.life.post() == 1 ? 1 : W::none;
                         return next_step;
                       }};
  if (looks_at_gate_first) return {look, begin, store};
  return {begin, look, store};
}

/// RequestCore::try_path and hand_over, with the end of a post that was canceled before: steps 3 to 9.
inline std::vector<PostStep> handing_over() {
  using W = PostWorld;
  std::vector<PostStep> steps{{"try_path: the path's lock, InFlight::insert",
                               [](W& w) {
                                 if (!w.path) return path_gone;
                                 ++w.inside_path;
                                 w.flying = true;
                                 return next_step;
                               }},
                              {"hand_over: BackendInstance::post",
                               [](W& w) {
                                 w.require(w.instance, "a backend is used after its end");
                                 if (w.first_is_refused && w.life.post() == 1 && w.ends.empty())
                                   return backend_refuses;
                                 w.in_backend = w.life.post();
                                 return next_step;
                               }},
                              {"hand_over: a cancel that came before is repeated", [](W& w) {
                                 if (w.cancel_asked == w.life.post() && claim(w, W::caller, Code::canceled))
                                   return next_step;
                                 --w.inside_path;
                                 return post_waits;
                               }}};
  for (PostStep& step : ending(W::caller)) steps.push_back(std::move(step));
  steps.back().run = [run = steps.back().run](W& w) {
    --w.inside_path;
    (void)run(w);
    return post_waits;
  };
  return steps;
}

/// What ends or takes back a post that no backend has: steps 10 to 13.
inline std::vector<PostStep> not_handed_over() {
  using W = PostWorld;
  return {{"try_path: the path is gone, and the closed agent makes no other",
           [](W& w) {
             w.deadline = W::none;
             w.ends[w.life.post()] = Code::canceled;
             w.life.set(RequestState::canceled);
             return post_waits;
           }},
          {"try_path: the backend refuses, InFlight::take",
           [](W& w) {
             w.flying = false;
             --w.inside_path;
             return next_step;
           }},
          {"post_at: refused, no deadline",
           [](W& w) {
             if (!w.refusal_keeps_deadline) w.deadline = W::none;
             return next_step;
           }},
          {"post_at: refused, PostLife::set", [](W& w) {
             w.life.set(w.local[W::caller].before);
             w.first_is_refused = false;
             return 0;
           }}};
}

/// RequestCore::post_at and Transfer::wait, twice. The first post has a deadline, which has passed.
inline Thread<PostWorld> caller_of_two_posts(const PostWorld& given) {
  using W = PostWorld;
  Thread<W> thread{"caller", {}};
  for (std::vector<PostStep> steps :
       {entering(given.looks_at_gate_before_post), handing_over(), not_handed_over()})
    for (PostStep& step : steps) thread.steps.push_back(std::move(step));
  thread.steps.push_back({"wait: PostLife::ended", [](W& w) { return w.life.post() < 2 ? 0 : end_of_thread; },
                          [](const W& w) { return w.life.ended(); }});
  return thread;
}

/// The backend's thread: ends what it has.
inline Thread<PostWorld> completing_backend() {
  using W = PostWorld;
  Thread<W> thread{"backend", {}, true};
  thread.steps.push_back({"completed: PostSlots::complete",
                          [](W& w) { return claim(w, W::backend, Code::ok) ? next_step : 0; },
                          [](const W& w) { return w.backend_ends_posts && w.in_backend != 0; }});
  for (PostStep& step : ending(W::backend)) thread.steps.push_back(std::move(step));
  thread.steps.back().run = [run = thread.steps.back().run](W& w) { return (void)run(w), 0; };
  return thread;
}

}  // namespace headrace::lifecycle
