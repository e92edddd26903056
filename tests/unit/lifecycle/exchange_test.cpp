// SPDX-License-Identifier: Apache-2.0
// The close of an agent beside the callback thread, which publishes changes of its regions, in every order.
#include "engine/gate.hpp"
#include "unit/lifecycle/explore.hpp"

namespace headrace::lifecycle::exchange {
namespace {

struct ExchangeWorld : Model {
  bool destroys_exchange_first = false;  ///< 1: before the callback thread is joined

  engine::Gate calls;
  bool on_changed = true, exchange = true, queue_closed = false, inside_callback = false,
       close_returned = false;
  int queued = 0;

  [[nodiscard]] std::string print() const {
    std::string text = std::to_string(queued);
    for (const bool value :
         {calls.closed(), calls.empty(), on_changed, exchange, queue_closed, inside_callback})
      text += value ? "1" : "0";
    return text;
  }
  void at_end() { require(close_returned, "the close does not return"); }
};
using W = ExchangeWorld;

/// LocalRegions::deregister.
Thread<W> deregistering() {
  return {"deregister",
          {{"Call: Gate::enter", [](W& w) { return w.calls.enter() ? next_step : end_of_thread; }},
           {"changed: CallbackQueue::push",
            [](W& w) {
              if (w.on_changed && !w.queue_closed) ++w.queued;
              return next_step;
            }},
           {"Call: Gate::leave", [](W& w) { return w.calls.leave(), next_step; }}}};
}

Thread<W> callbacks() {
  return {"callback thread",
          {{"CallbackQueue::run: takes a call",
            [](W& w) {
              --w.queued;
              w.inside_callback = true;
              return next_step;
            },
            [](const W& w) { return !w.queue_closed && w.queued > 0; }},
           {"publish_again: reads what is published",
            [](W& w) {
              w.require(w.exchange, "the callback thread is inside an exchange that is gone");
              return next_step;
            }},
           {"publish_again: Store::publish",
            [](W& w) {
              w.require(w.exchange, "the callback thread is inside an exchange that is gone");
              return next_step;
            }},
           {"CallbackQueue::run: the call is over", [](W& w) { return w.inside_callback = false, 0; }}},
          true};
}

Thread<W> closing_agent(bool exchange_first) {
  const Step<W> destroy{"Impl: the exchange is destroyed",
                        [](W& w) { return w.exchange = false, next_step; }};
  Thread<W> thread{"closer",
                   {{"Exchange::close: on_changed({})", [](W& w) { return w.on_changed = false, next_step; }},
                    {"Engine::close: CallGate::shut", [](W& w) { return (void)w.calls.shut(), next_step; }},
                    {"Engine::close: CallGate::empty", [](W&) { return next_step; },
                     [](const W& w) { return w.calls.empty(); }},
                    {"CallbackQueue::close: drops what is queued",
                     [](W& w) {
                       w.queue_closed = true;
                       w.queued = 0;
                       return next_step;
                     }},
                    {"CallbackQueue::close: joins", [](W& w) { return w.close_returned = true, next_step; },
                     [](const W& w) { return !w.inside_callback; }}}};
  thread.steps.insert(exchange_first ? thread.steps.begin() + 1 : thread.steps.end(), destroy);
  return thread;
}

Explorer<W> closing(bool exchange_first) {
  return {[] { return std::make_unique<W>(); },
          {deregistering(), callbacks(), closing_agent(exchange_first)}};
}

TEST(LifeOfExchange, no_callback_is_inside_an_exchange_that_is_gone) {
  expect_kept("deregister, publish again, close", closing(false));
}

TEST(LifeOfExchange, an_exchange_that_goes_before_the_callback_thread_is_joined_is_found) {
  expect_broken("1, the exchange is destroyed before the callback thread is joined", closing(true),
                "the callback thread is inside an exchange that is gone");
}

}  // namespace
}  // namespace headrace::lifecycle::exchange
