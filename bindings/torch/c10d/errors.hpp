// SPDX-License-Identifier: Apache-2.0
// Errors of a communicator as torch's exceptions.
#pragma once

#include <headrace/result.hpp>

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace headrace::torch_group {

/// torch.distributed.DistBackendError with the error of the communicator. Where it reaches Python as this
/// class it is the exception of Headrace, too: translate_errors.
class CommError final : public c10::DistBackendError {
 public:
  explicit CommError(headrace::Error error);
  [[nodiscard]] const headrace::Error& error() const { return error_; }

 private:
  headrace::Error error_;  // c10::Error is called Error in here
};

/// The value of a result. Throws CommError.
template <class T>
T take(Result<T> result) {
  if (!result) throw CommError(std::move(result).error());
  return std::move(result).value();
}
inline void take(Result<void> result) {
  if (!result) throw CommError(std::move(result).error());
}

/// The exception of Headrace for an error, which is a DistBackendError too. With the GIL.
pybind11::object python_exception(const Error& error);

/// Registers what makes Python's exceptions of CommError. Once, with the GIL.
void translate_errors();

/// Runs the signal handlers of Python, if this is the thread that may. Throws their exception: Ctrl-C.
void check_signals();

}  // namespace headrace::torch_group
