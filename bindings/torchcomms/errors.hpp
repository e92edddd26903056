// SPDX-License-Identifier: Apache-2.0
// Errors of a communicator as exceptions: torchcomms' Python package raises RuntimeError for them.
#pragma once

#include <headrace/result.hpp>

#include <stdexcept>
#include <utility>

namespace headrace::torchcomms_backend {

/// The message is that of the error, which says what to do.
class CommError final : public std::runtime_error {
 public:
  explicit CommError(const Error& error) : std::runtime_error(error.message), code_(error.code) {}
  [[nodiscard]] Code code() const { return code_; }

 private:
  Code code_;
};

/// The value of a result. Throws CommError.
template <class T>
T take(Result<T> result) {
  if (!result) throw CommError(result.error());
  return std::move(result).value();
}
inline void take(Result<void> result) {
  if (!result) throw CommError(result.error());
}

}  // namespace headrace::torchcomms_backend
