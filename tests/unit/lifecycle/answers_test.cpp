// SPDX-License-Identifier: Apache-2.0
// Revocation::asked, answer and post_ended on three threads, in every order.
#include "unit/lifecycle/explore.hpp"

#include <array>

namespace headrace::lifecycle::answers {
namespace {

/// Question 1 is about a region on which a post is in flight, question 2 about one that is free.
struct AnswerWorld : Model {
  bool newcomer_tells_nobody = false;  ///< 5: a thread that finds another one answering just goes

  bool in_flight = true, answering = false, look_again = false;
  unsigned pending = 0, answered = 0;  // bits of questions
  struct Local {
    unsigned seen = 0, given = 0;
    int looks = 0;
  };
  std::array<Local, 3> local;

  [[nodiscard]] std::string print() const {
    std::string text = std::to_string(pending) + "," + std::to_string(answered);
    for (const bool value : {in_flight, answering, look_again}) text += value ? "1" : "0";
    for (const Local& one : local)
      text +=
          "," + std::to_string(one.seen) + "," + std::to_string(one.given) + "," + std::to_string(one.looks);
    return text;
  }
  void at_end() { require(pending == 0, "a question waits for ever: no thread looks again"); }
};
using W = AnswerWorld;

Step<W> look_at(std::size_t me, unsigned question) {
  return {"answer: question " + std::to_string(question) + ", is a post in flight?", [me, question](W& w) {
            const bool mine = (w.local[me].seen & question) != 0 && !(question == 1 && w.in_flight);
            if (mine) w.local[me].given |= question;
            return next_step;
          }};
}

Step<W> send(std::size_t me, unsigned question) {
  return {"answer: answer_one, question " + std::to_string(question), [me, question](W& w) {
            if ((w.local[me].given & question) == 0) return next_step;
            w.require((w.answered & question) == 0, "a question is answered twice");
            w.answered |= question;
            return next_step;
          }};
}

/// Revocation::answer, after the steps that the thread has.
void then_answer(Thread<W>& thread, std::size_t me) {
  const int loop = static_cast<int>(thread.steps.size()) + 1;
  const std::vector<Step<W>> steps{
      {"answer: one thread at a time",
       [](W& w) {
         if (!w.newcomer_tells_nobody) w.look_again = true;
         return std::exchange(w.answering, true) ? end_of_thread : next_step;
       }},
      {"answer: takes what is pending",
       [me](W& w) {
         W::Local& here = w.local[me];
         const bool first = here.looks == 0;
         here.looks = 1;
         w.answering = w.newcomer_tells_nobody ? first : std::exchange(w.look_again, false);
         if (!w.answering) here = {};
         if (!w.answering) return end_of_thread;
         here.seen = w.pending;
         here.given = 0;
         return next_step;
       }},
      look_at(me, 1),
      send(me, 1),
      look_at(me, 2),
      send(me, 2),
      {"answer: drop", [me, loop](W& w) { return w.pending &= ~w.local[me].given, loop; }}};
  thread.steps.insert(thread.steps.end(), steps.begin(), steps.end());
}

Thread<W> asked(std::size_t me, unsigned question) {
  Thread<W> thread{"question " + std::to_string(question),
                   {{"asked: keep", [question](W& w) { return w.pending |= question, next_step; }}}};
  then_answer(thread, me);
  return thread;
}

Thread<W> post_that_ends(std::size_t me) {
  Thread<W> thread{
      "end of the post",
      {{"completed: InFlight::take", [](W& w) { return w.in_flight = false, next_step; }},
       {"post_ended: pending_count_", [](W& w) { return w.pending != 0 ? next_step : end_of_thread; }}}};
  then_answer(thread, me);
  return thread;
}

Explorer<W> answers(bool newcomer_tells_nobody) {
  const auto make = [newcomer_tells_nobody] {
    auto world = std::make_unique<W>();
    world->newcomer_tells_nobody = newcomer_tells_nobody;
    return world;
  };
  return {make, {asked(0, 1), asked(1, 2), post_that_ends(2)}};
}

TEST(LifeOfAnswers, every_question_is_answered_once_whatever_ends_meanwhile) {
  expect_kept("two questions, the end of a post", answers(false));
}

TEST(LifeOfAnswers, a_lost_wake_up_is_found) {
  expect_broken("5, a thread that finds another one answering tells it nothing", answers(true),
                "a question waits for ever: no thread looks again");
}

}  // namespace
}  // namespace headrace::lifecycle::answers
