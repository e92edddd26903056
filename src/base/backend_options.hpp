// SPDX-License-Identifier: Apache-2.0
// The options of one backend as its plugin reads them: the value that the host resolved, else the row's
// default.
//
// The reader keeps the first error, so that a table is read in one piece:
//   BackendOptions options("tcp", rows, args);
//   settings.window_bytes = options.bytes("window", 4096, UINT64_MAX);
//   return options.checked(std::move(settings));
#pragma once

#include <headrace/plugin/backend.hpp>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

/// Every error is invalid_argument: "option tcp.sockets is "two" and must be auto or a number from 1 to 64".
/// A reader that refuses a value returns the least one. The constructor's arguments must outlive the object.
class BackendOptions {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  BackendOptions(const char* backend, std::span<const headrace_option_v1> rows,
                 const plugin::CreateArgs& args)
      : backend_(backend), rows_(rows), args_(args) {}

  /// "4096", "64KiB", "4M".
  std::uint64_t bytes(const char* name, std::uint64_t least, std::uint64_t most);
  std::uint64_t count(const char* name, std::uint64_t least, std::uint64_t most);
  /// "50us", "5s".
  Nanoseconds duration(const char* name, Nanoseconds least = Nanoseconds(0),
                       Nanoseconds most = Nanoseconds::max());
  /// "auto" is none.
  std::optional<std::uint64_t> count_or_auto(const char* name, std::uint64_t least, std::uint64_t most);
  std::optional<Nanoseconds> duration_or_auto(const char* name);
  /// Which of these it is.
  std::size_t choice(const char* name, std::initializer_list<std::string_view> choices);
  /// "auto" is true, "off" is false.
  bool automatic(const char* name) { return choice(name, {"off", "auto"}) == 1; }
  /// "on" is true, "off" is false.
  bool enabled(const char* name) { return choice(name, {"off", "on"}) == 1; }
  /// Without white space at its ends.
  [[nodiscard]] std::string text(const char* name) const;
  /// The texts between commas, trimmed, without empty ones.
  [[nodiscard]] std::vector<std::string> list(const char* name) const;

  /// Refuses a value for a reason of the backend's own: "must be a multiple of 64KiB" without the first two
  /// words.
  void refuse(const char* name, std::string_view need);
  /// `value`, unless an option was refused.
  template <class T>
  [[nodiscard]] Result<T> checked(T value) {
    if (error_) return *std::move(error_);
    return value;
  }

 private:
  [[nodiscard]] const headrace_option_v1* row(std::string_view name) const;

  const char* backend_;
  std::span<const headrace_option_v1> rows_;
  const plugin::CreateArgs& args_;
  std::optional<Error> error_;
};

}  // namespace headrace
