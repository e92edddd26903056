// SPDX-License-Identifier: Apache-2.0
// A prepared request: one that threads copy, or one that a GPU moves.
#pragma once

#include "local/instance.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstdint>

namespace headrace::local {

/// The entries of the plugin table that take a request.
class Request {
 public:
  /// GPU memory is moved by a GPU where one reaches both sides, else copied by the driver.
  ///   errors   invalid_argument (at the page: a write to a read-only region), not_found (a region's memory
  ///   was
  ///            freed), exhausted, backend_failed
  [[nodiscard]] static Result<Request*> prepare(Instance& instance, const headrace_prepare_v1& args);

  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  [[nodiscard]] virtual Status post(const headrace_post_v1& args) = 0;
  virtual bool poll() = 0;
  virtual void cancel() = 0;
  /// The host gives it back.
  virtual void release() = 0;

  [[nodiscard]] virtual Result<bool> capture(const headrace_capture_v1& args) = 0;
  virtual void end_capture() = 0;
  [[nodiscard]] virtual Result<void> set_indices(const headrace_indices_v1& args) = 0;
  [[nodiscard]] virtual Result<std::uint64_t> check() = 0;

 protected:
  Request() = default;
  virtual ~Request() = default;
};

}  // namespace headrace::local
