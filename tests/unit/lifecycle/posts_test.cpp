// SPDX-License-Identifier: Apache-2.0
// Posts, deadlines, cancels and the close of the agent, in every order.
#include "unit/lifecycle/post_world.hpp"

namespace headrace::lifecycle::posts {
namespace {

using W = PostWorld;

/// RequestCore::expire, on the thread that runs the timers.
Thread<W> expiring() {
  Thread<W> thread{"timer", {}, true};
  thread.steps = {
      {"expire: PostLife::now", [](W& w) { return w.local[W::canceler].now = w.life.now(), next_step; },
       [](const W& w) { return w.deadline != W::none; }},
      {"expire: the deadline is read",
       [](W& w) {
         const bool idle = engine::has_ended(w.local[W::canceler].now.state) || w.deadline == W::none;
         return idle ? end_of_thread : next_step;
       }},
      {"expire: raise(timed_out_)", [](W& w) {
         const std::uint64_t post = w.expiry_names_no_post ? w.life.post() : w.local[W::canceler].now.post;
         w.timed_out = std::max(w.timed_out, post);
         return next_step;
       }}};
  for (PostStep& step : canceling(W::canceler, 3)) thread.steps.push_back(std::move(step));
  return thread;
}

/// The part of Engine::close that ends posts.
Thread<W> closing() {
  Thread<W> thread{"closer", {}};
  thread.steps = {{"Engine::close: CallGate::shut", [](W& w) { return (void)w.calls.shut(), next_step; }},
                  {"cancel_all: PostLife::post",
                   [](W& w) { return w.local[W::canceler].now = w.life.now(), next_step; }}};
  for (PostStep& step : canceling(W::canceler, 2)) thread.steps.push_back(std::move(step));
  const auto more = std::vector<PostStep>{
      {"cancel_all: waits for the end", [](W&) { return next_step; },
       [](const W& w) { return w.life.ended(); }},
      {"Links::close: Gate::close", [](W& w) { return w.link.close(), next_step; }},
      {"release_all: RequestCore::release, PostLife::ended",
       [](W& w) { return w.quiet = w.life.ended(), next_step; }},
      {"release_all: release_path, the path's lock", [](W& w) { return w.path = !w.quiet, next_step; },
       [](const W& w) { return w.inside_path == 0; }},
      {"Backends::end, unless a post is under way", [](W& w) {
         w.instance = !w.quiet;
         w.require(w.instance || w.in_backend == 0, "a backend ends while it has a post");
         w.close_has_returned = true;
         return next_step;
       }}};
  thread.steps.insert(thread.steps.end(), more.begin(), more.end());
  return thread;
}

Explorer<W> posts_and_deadline(const std::function<void(W&)>& set) {
  W given;
  set(given);
  const auto make = [set] {
    auto world = std::make_unique<W>();
    set(*world);
    return world;
  };
  return {make, {caller_of_two_posts(given), expiring(), completing_backend()}};
}

Explorer<W> posts_and_close(const std::function<void(W&)>& set) {
  W given;
  set(given);
  const auto make = [set] {
    auto world = std::make_unique<W>();
    set(*world);
    return world;
  };
  return {make, {caller_of_two_posts(given), closing(), completing_backend()}};
}

TEST(LifeOfPosts, a_deadline_ends_its_own_post_alone_in_every_order) {
  expect_kept("two posts, a deadline, the backend", posts_and_deadline([](W&) {}));
  expect_kept("a refused post, another, a deadline",
              posts_and_deadline([](W& w) { w.first_is_refused = true; }));
}

TEST(LifeOfPosts, an_expiry_without_the_number_of_its_post_is_found) {
  expect_broken("4, an expiry cancels whichever post is under way",
                posts_and_deadline([](W& w) { w.expiry_names_no_post = true; }),
                "the deadline of another post ends post 2");
}

TEST(LifeOfPosts, a_deadline_that_a_refused_post_leaves_is_found) {
  expect_broken("4, a refused post leaves its deadline armed",
                posts_and_deadline([](W& w) { w.first_is_refused = w.refusal_keeps_deadline = true; }),
                "the deadline of another post ends post 2");
}

TEST(LifeOfPosts, a_close_at_any_moment_ends_each_post_once_and_leaves_none) {
  expect_kept("two posts, a close, the backend", posts_and_close([](W&) {}));
  expect_kept("two posts, a close, a backend that ends what is canceled alone",
              posts_and_close([](W& w) { w.backend_ends_posts = false; }));
}

TEST(LifeOfPosts, a_post_that_looks_at_the_gate_before_it_begins_is_found) {
  expect_broken("1, a post looks whether the agent is closed before it has begun", posts_and_close([](W& w) {
                  w.looks_at_gate_before_post = true;
                  w.backend_ends_posts = false;
                }),
                "no thread will end it");
}

}  // namespace
}  // namespace headrace::lifecycle::posts
