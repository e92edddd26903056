// SPDX-License-Identifier: Apache-2.0
// One operation of a communicator: its tensors, its options, and the work that it returns.
#pragma once

#include <headrace/comm.hpp>

#include "bindings/python/comm_handle.hpp"
#include "bindings/python/time_limit.hpp"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace headrace::python {

using HintValues = nb::typed<nb::dict, nb::str, nb::any>;
using Hints = std::optional<HintValues>;

/// The arguments that every operation has.
struct CallOptions {
  bool async_op = false;
  Hints hints;
  TimeLimit timeout;
  nb::handle stream = {};  ///< None or null: the default stream
};

/// The limit of an operation; nullopt: the communicator's.
[[nodiscard]] Timeout limit_of_call(const TimeLimit& limit);

/// Collects the tensors of an operation, then starts it. The tensors stay until the operation has ended.
class CommCall {
 public:
  CommCall(PyComm& comm, const CallOptions& options);

  // The elements of an object. Raises InvalidArgument, with the argument's name, if it has none that
  // collectives move: contiguous, on the communicator's device, and writable if the operation writes them.
  Elements writes(nb::handle object, const char* name);
  ConstElements reads(nb::handle object, const char* name);
  /// `written`: whether the operation changes those of this rank.
  Elements uses(nb::handle object, const char* name, bool written);
  /// Those of a list or tuple; None has no entries.
  std::vector<Elements> writes_each(nb::handle list, const char* name);
  std::vector<ConstElements> reads_each(nb::handle list, const char* name);

  /// Keeps an object as long as a tensor.
  void keep(nb::object object) { objects_.push_back(std::move(object)); }
  void set_options(const CallOptions& options);

  /// Calls call(Comm&, const OpOptions&) without the GIL.
  template <class Call>
  WorkObject start(const Call& call) {
    options_.owner = owner();
    const Work work = comm_.ask([&](headrace::Comm& comm) { return call(comm, std::as_const(options_)); });
    let_go(options_.owner);
    const bool has_ended = !on_gpu_ && work.status() == WorkStatus::completed;
    return has_ended ? done() : of(work);
  }
  /// The same for call(Comm&, const MessageOptions&) of messages, which have no hints.
  template <class Call>
  WorkObject start_message(std::uint32_t tag, const Call& call) {
    refuse_hints();
    MessageOptions options{options_.async, options_.timeout, tag, owner(), options_.stream};
    const Work work = comm_.ask([&](headrace::Comm& comm) { return call(comm, std::as_const(options)); });
    let_go(options.owner);
    return of(work);
  }

 private:
  /// The stream on which DLPack's producers order their memory.
  [[nodiscard]] std::optional<void*> producer_stream() const;
  const TensorInput& add(nb::handle object, const char* name, const char* kind);
  Elements writable(const TensorInput& tensor, const char* name) const;
  /// The tensors, if the operation may use them after the call: then no caller need keep them.
  std::shared_ptr<const void> owner();
  void refuse_hints() const;
  WorkObject of(const Work& work) const;
  WorkObject done() const;

  void check_place(const TensorView& view, const char* kind, const char* name) const;

  PyComm& comm_;
  const Device device_;
  const bool on_gpu_;
  bool keeps_ = false;  ///< the tensors, until the operation has ended
  OpOptions options_;
  std::vector<TensorInput> tensors_;
  std::vector<nb::object> objects_;
};

/// Adds what makes communicators without a meeting place.
void bind_comm_groups(nb::class_<PyComm>& comm);

}  // namespace headrace::python
