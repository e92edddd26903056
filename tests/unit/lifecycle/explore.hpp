// SPDX-License-Identifier: Apache-2.0
// Explores every interleaving of a few threads whose code is cut into atomic sections.
//
// A model is a world, which has real classes of the engine where they decide, and a program for each thread:
// a step is one section of the code that it is named after, between two locks or around one atomic operation.
// The scheduler runs the steps in every order, breadth first, and leaves out states that it has seen. So the
// trace of a broken promise is the shortest one.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace headrace::lifecycle {

inline constexpr int next_step = -1;  ///< what a step returns to go on with the one below it
inline constexpr int end_of_thread = -2;

template <class World>
struct Step {
  /// `its_run` returns where the thread goes on. Without `its_may_run` it may run always.
  Step(std::string its_name, std::function<int(World&)> its_run,
       std::function<bool(const World&)> its_may_run = nullptr)
      : name(std::move(its_name)), run(std::move(its_run)), may_run(std::move(its_may_run)) {}

  std::string name;
  std::function<int(World&)> run;
  std::function<bool(const World&)> may_run;
};

template <class World>
struct Thread {
  std::string name;
  std::vector<Step<World>> steps;
  bool may_wait_for_ever = false;  ///< it waits for work, of which there may be no more
};

/// What each world has.
struct Model {
  /// The promise is broken unless `holds`.
  void require(bool holds, const std::string& promise) {
    if (!holds && broken.empty()) broken = promise;
  }
  std::string broken;
};

struct Explored {
  std::size_t states = 0;
  std::string broken;              ///< the promise; empty: none is
  std::vector<std::string> trace;  ///< the steps that break it
};

template <class World>
class Explorer {
 public:
  Explorer(std::function<std::unique_ptr<World>()> make, std::vector<Thread<World>> threads)
      : make_(std::move(make)), threads_(std::move(threads)) {}

  Explored run() {
    Explored found;
    std::deque<Schedule> waiting{{}};
    std::unordered_set<std::string> seen{print(State(*this))};
    while (!waiting.empty() && found.broken.empty()) {
      const Schedule schedule = std::move(waiting.front());
      waiting.pop_front();
      bool any = false;
      for (std::uint8_t thread = 0; thread < threads_.size() && found.broken.empty(); ++thread) {
        State state = replayed(schedule);
        if (!state.may_run(thread)) continue;
        any = true;
        state.step(thread);
        Schedule longer = schedule;
        longer.push_back(thread);
        if (!state.world->broken.empty()) found = broken_by(longer, state.world->broken);
        if (seen.insert(print(state)).second) waiting.push_back(std::move(longer));
      }
      if (!any) look_at_end(schedule, found);
    }
    found.states = seen.size();
    return found;
  }

 private:
  using Schedule = std::vector<std::uint8_t>;

  struct State {
    explicit State(const Explorer& explorer)
        : world(explorer.make_()), threads(explorer.threads_), at(threads.size(), 0) {}
    [[nodiscard]] bool ended(std::size_t thread) const {
      return at[thread] == end_of_thread ||
             static_cast<std::size_t>(at[thread]) >= threads[thread].steps.size();
    }
    [[nodiscard]] const Step<World>& present(std::size_t thread) const {
      return threads[thread].steps[static_cast<std::size_t>(at[thread])];
    }
    [[nodiscard]] bool may_run(std::size_t thread) const {
      return !ended(thread) && (!present(thread).may_run || present(thread).may_run(*world));
    }
    void step(std::size_t thread) {
      const int to = present(thread).run(*world);
      at[thread] = to == next_step ? at[thread] + 1 : to;
    }
    std::unique_ptr<World> world;
    const std::vector<Thread<World>>& threads;
    std::vector<int> at;
  };

  static std::string print(const State& state) {
    std::string text;
    for (const int at : state.at) text += std::to_string(at) + " ";
    return text + state.world->print();
  }
  State replayed(const Schedule& schedule) const {
    State state(*this);
    for (const std::uint8_t thread : schedule) state.step(thread);
    return state;
  }
  Explored broken_by(const Schedule& schedule, std::string promise) const {
    Explored found;
    found.broken = std::move(promise);
    State state(*this);
    for (const std::uint8_t thread : schedule) {
      found.trace.push_back(threads_[thread].name + ": " + state.present(thread).name);
      state.step(thread);
    }
    return found;
  }
  /// No thread can go on: each must have come to its end, and what the world promises for then must hold.
  void look_at_end(const Schedule& schedule, Explored& found) const {
    State state = replayed(schedule);
    state.world->at_end();
    for (std::size_t thread = 0; thread < threads_.size(); ++thread)
      if (!state.ended(thread) && !threads_[thread].may_wait_for_ever)
        state.world->require(
            false, threads_[thread].name + " waits for ever in \"" + state.present(thread).name + "\"");
    if (!state.world->broken.empty()) found = broken_by(schedule, state.world->broken);
  }

  const std::function<std::unique_ptr<World>()> make_;
  const std::vector<Thread<World>> threads_;
};

/// Explores the model as the code is: no promise is broken.
template <class World>
void expect_kept(const char* model, Explorer<World> explorer) {
  const Explored found = explorer.run();
  std::printf("%s: %zu states, %s\n", model, found.states,
              found.broken.empty() ? "no promise broken" : "BROKEN");
  std::string trace;
  for (const std::string& step : found.trace) trace += "\n  " + step;
  EXPECT_TRUE(found.broken.empty()) << model << ": " << found.broken << trace;
}

/// Explores it with a defect: the promise is broken, and the shortest way there is printed.
template <class World>
void expect_broken(const char* defect, Explorer<World> explorer, const std::string& promise) {
  const Explored found = explorer.run();
  std::printf("planted: %s\nfound after %zu states: %s\n", defect, found.states, found.broken.c_str());
  for (const std::string& step : found.trace) std::printf("  %s\n", step.c_str());
  EXPECT_NE(found.broken.find(promise), std::string::npos) << "not found: " << defect;
}

}  // namespace headrace::lifecycle
