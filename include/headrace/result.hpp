// SPDX-License-Identifier: Apache-2.0
// Results of calls: `Status` on the data path, `Result<T>` with a sentence on the control path.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#define HEADRACE_API __attribute__((visibility("default")))

namespace headrace {

/// What the caller can do next. The values are those of `headrace_code_v1` and never change.
enum class Code : std::int32_t {
  ok = 0,
  would_block = 1,       ///< not now: poll and retry
  invalid_argument = 2,  ///< the call is wrong: correct the caller
  not_found = 3,         ///< no such peer, region or name, or it is gone: refresh the metadata
  not_supported = 4,     ///< no path can do this: use another backend, memory or kind
  timed_out = 5,         ///< the deadline passed
  canceled = 6,          ///< the caller or the peer asked that it ends
  peer_lost = 7,         ///< the peer died, restarted or cannot be reached: reconnect or give up
  exhausted = 8,        ///< memory, descriptors or a declared limit ran out: release some, or raise the limit
  corrupt = 9,          ///< bytes that arrived are damaged or not what the protocol expects
  backend_failed = 10,  ///< the path failed: use another path, or retry later
  internal = 11,        ///< an invariant of Headrace is broken: report it
};

/// The name of a code as written in this header, for example "peer_lost".
HEADRACE_API std::string_view code_name(Code code) noexcept;
/// One sentence for a code: what happened and what the caller can do next. For a status without its own
/// sentence.
HEADRACE_API std::string_view code_sentence(Code code) noexcept;

inline constexpr std::uint64_t no_page = ~std::uint64_t{0};

/// The result of a data-path call. Trivially copyable, never allocates.
struct Status {
  Code code = Code::ok;
  std::int32_t os_error = 0;     ///< errno if a system call failed, else 0
  std::uint64_t page = no_page;  ///< index of the page that the error is about, or no_page

  [[nodiscard]] constexpr bool ok() const noexcept { return code == Code::ok; }
  friend constexpr bool operator==(const Status&, const Status&) = default;
};
static_assert(std::is_trivially_copyable_v<Status> && sizeof(Status) == 16);

/// The error of a control-path call: a code, a sentence, and the page that it is about.
struct Error {
  Code code = Code::internal;
  std::string message;
  std::uint64_t page = no_page;

  /// The same error with the caller's context before it: "register 4096 bytes: <message>".
  [[nodiscard]] Error within(std::string_view context) && {
    message.insert(0, ": ").insert(0, context);
    return std::move(*this);
  }
};

namespace detail {
/// The caller took the value of a Result that holds an error: a bug in the caller. Prints the error and
/// aborts.
[[noreturn]] HEADRACE_API void bad_result_access(const Error& error);
}  // namespace detail

/// A value, or the Error that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  T& value() & { return checked(), std::get<0>(state_); }
  const T& value() const& { return checked(), std::get<0>(state_); }
  T&& value() && { return checked(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] Error& error() & { return std::get<1>(state_); }
  [[nodiscard]] const Error& error() const& { return std::get<1>(state_); }
  [[nodiscard]] Error&& error() && { return std::get<1>(std::move(state_)); }
  [[nodiscard]] Code code() const noexcept { return ok() ? Code::ok : std::get<1>(state_).code; }

 private:
  void checked() const {
    if (!ok()) detail::bad_result_access(std::get<1>(state_));
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  [[nodiscard]] bool ok() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  void value() const {
    if (error_) detail::bad_result_access(*error_);
  }
  [[nodiscard]] Error& error() & { return *error_; }
  [[nodiscard]] const Error& error() const& { return *error_; }
  [[nodiscard]] Error&& error() && { return *std::move(error_); }
  [[nodiscard]] Code code() const noexcept { return error_ ? error_->code : Code::ok; }

 private:
  std::optional<Error> error_;
};

}  // namespace headrace
