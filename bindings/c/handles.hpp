// SPDX-License-Identifier: Apache-2.0
// What all parts of the C API share: errors and bytes that cross the border, no exception that does, and the
// caller's structs and texts as C++ values.
#pragma once

#include <headrace/c/types.h>
#include <headrace/request.hpp>

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct headrace_error {
  headrace::Error error;
};

struct headrace_bytes {
  std::string text;
};

namespace headrace::c {

/// Reports a failure: its code as the result, and the whole error to a caller that asked for it.
inline std::int32_t fail(Error error, headrace_error** out) noexcept {
  const auto code = static_cast<std::int32_t>(error.code);
  if (out != nullptr) *out = new (std::nothrow) headrace_error{std::move(error)};
  return code;
}

inline std::int32_t fail(Code code, std::string text, headrace_error** out) noexcept {
  return fail(Error{code, std::move(text), no_page}, out);
}

/// Runs `work`, which returns Result<void>. No exception crosses the border.
template <class Work>
std::int32_t guarded(headrace_error** out, Work&& work) noexcept {
  if (out != nullptr) *out = nullptr;
  try {
    Result<void> done = work();
    return done ? 0 : fail(std::move(done).error(), out);
  } catch (const std::bad_alloc&) {
    return fail(Error{Code::exhausted, {}, no_page}, out);
  } catch (const std::exception& thrown) {
    return fail(Code::internal, thrown.what(), out);
  }
}

inline Error wrong(std::string text) { return Error{Code::invalid_argument, std::move(text), no_page}; }
inline Error missing(const char* what) { return wrong(std::string(what) + " is NULL"); }

/// The process that made a handle. A forked child shares the eventfd of the handle's copy with its parent: it
/// must not drain it.
class HomeProcess {
 public:
  [[nodiscard]] Result<void> is_here(const char* what) const {
    if (::getpid() == id_) return {};
    return wrong(std::string(what) +
                 " belongs to the parent process: make one in this process, after the fork");
  }

 private:
  pid_t id_ = ::getpid();
};

/// Checks a pointer that a function cannot do without.
template <class Object>
Result<void> given(const Object* handle, const char* what) {
  return handle == nullptr ? Result<void>(missing(what)) : Result<void>();
}

/// Whether the caller's struct has at least the size of this version's: no shorter version exists.
template <class Struct>
Result<void> whole(const Struct* given, const char* what) {
  if (given == nullptr) return missing(what);
  if (given->struct_size < sizeof(Struct) || given->struct_size % alignof(Struct) != 0)
    return wrong(std::string(what) + ": its struct_size is not set to its sizeof");
  return {};
}
/// The same for a struct that may be NULL.
template <class Struct>
Result<void> whole_or_null(const Struct* given, const char* what) {
  return given == nullptr ? Result<void>() : whole(given, what);
}

/// Struct `index` of the caller's array. A caller of a later version has longer structs, so the first says
/// how far apart they are. The result is for `whole` to check.
template <class Struct>
const Struct* element(const Struct* first, std::uint64_t index) {
  if (!whole(first, "")) return first;
  return reinterpret_cast<const Struct*>(reinterpret_cast<const char*>(first) + index * first->struct_size);
}

/// The caller's array. A count that no process has memory for is a mistake; reading there would crash.
template <class T>
Result<std::span<const T>> array_in(const T* first, std::uint64_t count, const char* what) {
  constexpr std::uint64_t addresses = 1ULL << 48;
  if (first == nullptr && count > 0) return missing(what);
  if (count > addresses / sizeof(T))
    return wrong(std::string(what) + ": " + std::to_string(count) +
                 " are more than a process has memory for: check the count");
  return std::span(first, static_cast<std::size_t>(count));
}

inline std::string text_or_empty(const char* text) { return text == nullptr ? std::string() : text; }

inline std::vector<std::string> names_in(const char* const* names) {
  std::vector<std::string> all;
  for (; names != nullptr && *names != nullptr; ++names) all.emplace_back(*names);
  return all;
}

/// name, value, name, value, ..., NULL.
inline Result<std::map<std::string, std::string>> pairs_in(const char* const* pairs) {
  std::map<std::string, std::string> all;
  for (; pairs != nullptr && pairs[0] != nullptr; pairs += 2) {
    if (pairs[1] == nullptr) return wrong(std::string("option ") + pairs[0] + " has no value");
    all[pairs[0]] = pairs[1];
  }
  return all;
}

inline Timeout timeout_of(std::int64_t ns) {
  return ns < 0 ? Timeout() : Timeout(std::chrono::nanoseconds(ns));
}

inline void give(headrace_bytes** out, std::string text) { *out = new headrace_bytes{std::move(text)}; }

/// A callback's context. `drop` runs when the last function object that holds it is gone.
inline std::shared_ptr<void> context_of(void* context, void (*drop)(void*)) {
  return {context, [drop](void* held) {
            if (drop != nullptr) drop(held);
          }};
}

}  // namespace headrace::c

/// Returns the error of a Result from the function; else goes on.
#define HEADRACE_C_TRY(...)                                                     \
  do {                                                                          \
    if (auto tried_ = (__VA_ARGS__); !tried_) return std::move(tried_).error(); \
  } while (false)
