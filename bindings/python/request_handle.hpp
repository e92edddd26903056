// SPDX-License-Identifier: Apache-2.0
// A request for Python.
#pragma once

#include <headrace/request.hpp>

#include "bindings/python/convert.hpp"

#include <memory>

namespace headrace::python {

class PyRequest {
 public:
  explicit PyRequest(headrace::Request request)
      : request_(std::make_shared<headrace::Request>(std::move(request))) {}
  ~PyRequest();
  PyRequest(const PyRequest&) = delete;
  PyRequest& operator=(const PyRequest&) = delete;

  [[nodiscard]] headrace::Request& request() const { return *request_; }
  /// Raises if the request belongs to the parent of this process.
  void check_home() const;

  void post(const PostOptions& options);
  /// Posts with page numbers for a part; each of local and remote may be None.
  void post(PostOptions& options, nb::handle local, nb::handle remote, std::size_t part);
  /// Raises the error of a post that was refused with this status.
  [[noreturn]] void raise_refusal(Status status, const PostOptions& options,
                                  RequestState before = RequestState::prepared) const;
  RequestState poll();
  void wait(const Timeout& timeout);
  void cancel();
  void set_indices(nb::handle local, nb::handle remote, nb::handle stream, std::size_t part);
  std::uint64_t check();
  /// Cancels it and waits until the memory is quiet. Called before an exception leaves a call that owns the
  /// request.
  void abandon();
  [[nodiscard]] bool in_flight() const;
  [[nodiscard]] bool ended() const;
  /// None, or why the last post failed.
  [[nodiscard]] nb::object error() const;

  void on_done(nb::object callback);
  [[nodiscard]] const std::shared_ptr<Callable>& callback() const { return done_; }

 private:
  [[nodiscard]] Error error_of(Status status, const char* why = nullptr) const;

  HomeProcess home_;
  std::shared_ptr<headrace::Request> request_;  ///< shared: a callback checks whether it still exists
  std::shared_ptr<Callable> done_;
};

}  // namespace headrace::python
