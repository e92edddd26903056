// SPDX-License-Identifier: Apache-2.0
// Counters of include/headrace/c/agent.h.
#include "agent_handles.hpp"

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_agent_counter(headrace_agent* agent, std::uint32_t immediate, std::uint32_t scope,
                                    headrace_counter** counter, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(counter, "counter"));
    return make_handle(counter, agent->agent.counter({immediate, scope}));
  });
}

std::uint64_t headrace_counter_value(const headrace_counter* counter) {
  return counter == nullptr ? 0 : counter->counter.value();
}

std::int32_t headrace_counter_wait(const headrace_counter* counter, std::uint64_t at_least,
                                   std::int64_t timeout_ns, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(counter, "counter"));
    const headrace::Status status = counter->counter.wait(at_least, timeout_of(timeout_ns));
    if (status.ok()) return {};
    return headrace::Error{status.code, std::string(code_sentence(status.code)), headrace::no_page};
  });
}

std::int32_t headrace_counter_on_reached(headrace_counter* counter, std::uint64_t at_least,
                                         headrace_reached_function function, headrace_callback callback,
                                         headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    const auto context = context_of(callback.context, callback.drop);
    HEADRACE_C_TRY(given(counter, "counter"));
    if (function == nullptr) return missing("function");
    counter->counter.on_reached(at_least, [function, context] { function(context.get()); });
    return {};
  });
}

std::int32_t headrace_counter_event_fd(headrace_counter* counter, std::uint64_t at_least,
                                       std::int32_t* descriptor, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(counter, "counter"));
    HEADRACE_C_TRY(given(descriptor, "descriptor"));
    auto opened = counter->counter.event_fd(at_least);
    if (!opened) return std::move(opened).error();
    *descriptor = *opened;
    return {};
  });
}

std::int32_t headrace_counter_get_word(headrace_counter* counter, std::int32_t device,
                                       headrace_counter_word** word, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(counter, "counter"));
    HEADRACE_C_TRY(given(word, "word"));
    const std::optional<int> gpu = device < 0 ? std::nullopt : std::optional<int>(device);
    return make_handle(word, counter->counter.word(gpu));
  });
}

const std::uint64_t* headrace_counter_word_address(const headrace_counter_word* word) {
  return word == nullptr ? nullptr : reinterpret_cast<const std::uint64_t*>(word->word.address());
}

void headrace_counter_word_free(headrace_counter_word* word) { delete word; }
void headrace_counter_free(headrace_counter* counter) { delete counter; }
