// SPDX-License-Identifier: Apache-2.0
// Works of include/headrace/c/comm.h.
#include "comm_handles.hpp"

using namespace headrace::c;
using headrace::Result;
using headrace::WorkStatus;

static_assert(HEADRACE_WORK_FAILED == static_cast<std::int32_t>(WorkStatus::failed));

const char* headrace_work_status_name(std::int32_t status) {
  return headrace::work_status_name(static_cast<WorkStatus>(status)).data();
}

std::int32_t headrace_work_status(const headrace_work* work) {
  return work == nullptr ? HEADRACE_WORK_NOT_STARTED : static_cast<std::int32_t>(work->work.status());
}

std::int32_t headrace_work_is_completed(const headrace_work* work) {
  return work != nullptr && work->work.is_completed() ? 1 : 0;
}

std::int32_t headrace_work_wait(const headrace_work* work, std::int64_t timeout_ns, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(work, "work"));
    return work->work.wait(timeout_of(timeout_ns));
  });
}

std::int32_t headrace_work_wait_on(const headrace_work* work, void* stream, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(work, "work"));
    return work->work.wait_on(stream);
  });
}

std::int32_t headrace_work_error(const headrace_work* work, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(work, "work"));
    headrace::Error why = work->work.error();
    if (why.code == headrace::Code::ok) return {};
    return why;
  });
}

std::int32_t headrace_work_source(const headrace_work* work) {
  return work == nullptr ? -1 : work->work.source();
}

void headrace_work_free(headrace_work* work) { delete work; }
