// SPDX-License-Identifier: Apache-2.0
// Windows of include/headrace/c/comm_window.h.
#include "comm_handles.hpp"

#include <headrace/c/comm_window.h>
#include <headrace/comm_window.hpp>

struct headrace_window {
  headrace::Window window;
};

struct headrace_remote_tensor {
  std::shared_ptr<const void> owner;
};

namespace headrace::c {
namespace {

static_assert(HEADRACE_WINDOW_SEPARATE == static_cast<int>(WindowAccess::separate));
static_assert(HEADRACE_SIGNAL_SET == static_cast<int>(Signal::Kind::set));
static_assert(HEADRACE_COMPARE_GE == static_cast<int>(Comparison::ge));

headrace_elements elements_for_c(const Elements& elements) {
  return {elements.data, elements.count, static_cast<std::int32_t>(elements.dtype)};
}

Result<WindowOptions> options_of(const headrace_window_options* given) {
  WindowOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  options.async = given->async != 0;
  options.timeout = timeout_of(given->timeout_ns);
  options.stream = given->stream;
  return options;
}

/// give_work for an operation of a window.
template <class Start>
std::int32_t operate_on(headrace_window* window, const headrace_window_options* options, headrace_work** work,
                        headrace_error** error, const Start& start) {
  return give_work(work, error, [&]() -> Result<Work> {
    HEADRACE_C_TRY(given(window, "window"));
    const auto wanted = options_of(options);
    if (!wanted) return wanted.error();
    return start(window->window, *wanted);
  });
}

/// Calls `ask`, which returns Result<T>, and assigns its value to a caller that asked for one.
template <class Out, class Ask>
std::int32_t ask_for(headrace_window* window, Out* out, headrace_error** error, const Ask& ask) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(window, "window"));
    auto value = ask(window->window);
    if (!value) return std::move(value).error();
    if (out != nullptr) *out = *value;
    return {};
  });
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;
using headrace::Window;
using headrace::WindowOptions;
using headrace::Work;

std::int32_t headrace_comm_new_window(headrace_comm* comm, headrace_window** window, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(window, "window"));
    auto made = comm->comm.new_window();
    if (!made) return std::move(made).error();
    *window = new headrace_window{std::move(*made)};
    return {};
  });
}

void headrace_window_free(headrace_window* window) { delete window; }

// ------------------------------------------------------------------ memory

std::int32_t headrace_window_tensor_register(headrace_window* window, const headrace_elements* tensor,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(window, "window"));
    HEADRACE_C_TRY(given(tensor, "tensor"));
    return window->window.tensor_register(output_of(*tensor));
  });
}

std::int32_t headrace_window_allocate(headrace_window* window, std::uint64_t count, std::int32_t dtype,
                                      headrace_elements* tensor, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(window, "window"));
    auto made = window->window.allocate(count, static_cast<headrace::DType>(dtype));
    if (!made) return std::move(made).error();
    if (tensor != nullptr) *tensor = elements_for_c(*made);
    return {};
  });
}

std::int32_t headrace_window_tensor_deregister(headrace_window* window, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(window, "window"));
    return window->window.tensor_deregister();
  });
}

std::int32_t headrace_window_tensor(const headrace_window* window, headrace_elements* tensor,
                                    headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(window, "window"));
    HEADRACE_C_TRY(given(tensor, "tensor"));
    auto own = window->window.tensor();
    if (!own) return std::move(own).error();
    *tensor = elements_for_c(*own);
    return {};
  });
}

const char* headrace_window_access_name(std::int32_t access) {
  return headrace::window_access_name(static_cast<headrace::WindowAccess>(access)).data();
}

std::int32_t headrace_window_get_attr(const headrace_window* window, std::int32_t peer_rank,
                                      headrace_window_attr* attr, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(window, "window"));
    HEADRACE_C_TRY(whole(attr, "attr"));
    auto found = window->window.get_attr(peer_rank);
    if (!found) return std::move(found).error();
    attr->access = static_cast<std::int32_t>(found->access);
    attr->count = found->count;
    return {};
  });
}

std::int32_t headrace_window_map_remote_tensor(headrace_window* window, std::int32_t rank,
                                               headrace_elements* elements, headrace_remote_tensor** owner,
                                               headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(window, "window"));
    HEADRACE_C_TRY(given(elements, "elements"));
    HEADRACE_C_TRY(given(owner, "owner"));
    auto mapped = window->window.map_remote_tensor(rank);
    if (!mapped) return std::move(mapped).error();
    *owner = new headrace_remote_tensor{std::move(mapped->owner)};
    *elements = elements_for_c(mapped->elements);
    return {};
  });
}

void headrace_remote_tensor_free(headrace_remote_tensor* owner) { delete owner; }

// ------------------------------------------------------------------ operations

std::int32_t headrace_window_put(headrace_window* window, const headrace_elements* tensor,
                                 std::int32_t dst_rank, std::uint64_t target_offset_nelems,
                                 const headrace_window_options* options, headrace_work** work,
                                 headrace_error** error) {
  return operate_on(window, options, work, error, [&](Window& on, const WindowOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(tensor, "tensor"));
    return on.put(input_of(*tensor), dst_rank, target_offset_nelems, how);
  });
}

std::int32_t headrace_window_get(headrace_window* window, const headrace_elements* tensor,
                                 std::int32_t src_rank, std::uint64_t source_offset_nelems,
                                 const headrace_window_options* options, headrace_work** work,
                                 headrace_error** error) {
  return operate_on(window, options, work, error, [&](Window& on, const WindowOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(tensor, "tensor"));
    return on.get(output_of(*tensor), src_rank, source_offset_nelems, how);
  });
}

std::int32_t headrace_window_signal(headrace_window* window, std::int32_t peer_rank, std::int32_t kind,
                                    std::uint64_t value, const headrace_window_options* options,
                                    headrace_work** work, headrace_error** error) {
  return operate_on(window, options, work, error, [&](Window& on, const WindowOptions& how) {
    return on.signal(peer_rank, {static_cast<headrace::Signal::Kind>(kind), value}, how);
  });
}

std::int32_t headrace_window_wait_signal(headrace_window* window, std::int32_t peer_rank,
                                         std::int64_t timeout_ns, std::uint64_t* before,
                                         headrace_error** error) {
  return ask_for(window, before, error,
                 [&](Window& on) { return on.wait_signal(peer_rank, timeout_of(timeout_ns)); });
}

std::int32_t headrace_window_wait_signal_until(headrace_window* window, std::int32_t peer_rank,
                                               std::int32_t comparison, std::uint64_t value,
                                               std::int64_t timeout_ns, std::uint64_t* seen,
                                               headrace_error** error) {
  const headrace::SignalCondition condition{static_cast<headrace::Comparison>(comparison), value};
  return ask_for(window, seen, error,
                 [&](Window& on) { return on.wait_signal(peer_rank, condition, timeout_of(timeout_ns)); });
}

std::int32_t headrace_window_atomic_add(headrace_window* window, std::int32_t dst_rank,
                                        std::uint64_t target_offset_nelems, std::int64_t value,
                                        std::int64_t timeout_ns, std::int64_t* before,
                                        headrace_error** error) {
  return ask_for(window, before, error, [&](Window& on) {
    return on.atomic_add(dst_rank, target_offset_nelems, value, timeout_of(timeout_ns));
  });
}

std::int32_t headrace_window_flush(headrace_window* window, std::int64_t timeout_ns, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(window, "window"));
    return window->window.flush(timeout_of(timeout_ns));
  });
}
