// SPDX-License-Identifier: Apache-2.0
// Completion queues of include/headrace/c/agent.h.
#include "agent_handles.hpp"

#include <span>

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_completion_queue_open(headrace_completion_queue** queue, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(queue, "queue"));
    return make_handle(queue, headrace::CompletionQueue::open());
  });
}

std::int32_t headrace_completion_queue_add(headrace_completion_queue* queue, const headrace_request* request,
                                           std::uint64_t number, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(queue, "queue"));
    HEADRACE_C_TRY(given(request, "request"));
    HEADRACE_C_TRY(queue->home.is_here("the completion queue"));
    queue->queue.add(request->request, number);
    return {};
  });
}

std::int32_t headrace_completion_queue_take(headrace_completion_queue* queue, std::uint64_t* numbers,
                                            std::uint64_t capacity, std::uint64_t* count,
                                            headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(queue, "queue"));
    HEADRACE_C_TRY(given(count, "count"));
    if (numbers == nullptr && capacity > 0) return missing("numbers");
    HEADRACE_C_TRY(queue->home.is_here("the completion queue"));
    *count = queue->queue.take(std::span(numbers, static_cast<std::size_t>(capacity)));
    return {};
  });
}

std::int32_t headrace_completion_queue_event_fd(const headrace_completion_queue* queue,
                                                std::int32_t* descriptor, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(queue, "queue"));
    HEADRACE_C_TRY(given(descriptor, "descriptor"));
    HEADRACE_C_TRY(queue->home.is_here("the completion queue"));
    *descriptor = queue->queue.event_fd();
    return {};
  });
}

void headrace_completion_queue_free(headrace_completion_queue* queue) { delete queue; }
