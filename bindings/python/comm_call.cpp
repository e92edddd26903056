// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/comm_call.hpp"

#include "bindings/python/stream_input.hpp"

#include <string>
#include <string_view>

namespace headrace::python {
namespace {

constexpr const char one[] = "the argument", entry[] = "an entry of";

/// Memory that an asynchronous operation uses.
class KeptTensors final : public Held {
 public:
  KeptTensors(std::vector<TensorInput> tensors, std::vector<nb::object> objects)
      : tensors_(std::move(tensors)), objects_(std::move(objects)) {}

 private:
  const std::vector<TensorInput> tensors_;
  const std::vector<nb::object> objects_;
};

/// Whether nothing uses the memory of an operation once its call has returned. Other backends may be silent
/// when it is aborted.
bool ends_with_its_call(std::string_view backend) { return backend == "host" || backend == "fake"; }

bool requires_grad(nb::handle object) {
  const nb::object answer = nb::getattr(object, "requires_grad", nb::none());
  return answer.ptr() == Py_True;
}

/// None has no entries.
template <class Each>
void for_each_entry(nb::handle list, const char* name, const Each& each) {
  if (list.is_none()) return;
  if (PyList_Check(list.ptr()) == 0 && PyTuple_Check(list.ptr()) == 0)
    raise_invalid("the argument " + std::string(name) + " is " + shown(list) +
                  ": give a list of arrays, one a rank");
  const nb::tuple entries(nb::borrow<nb::object>(list));  // a copy: code of an entry may change the list
  for (const nb::handle object : entries) each(object);
}

std::size_t count_of(const TensorView& view) { return static_cast<std::size_t>(view.shape.count()); }

}  // namespace

Timeout limit_of_call(const TimeLimit& limit) {
  if (!limit.seconds) return {};
  return limit.or_else({}).value_or(std::chrono::nanoseconds::max());
}

CommCall::CommCall(PyComm& comm, const CallOptions& options)
    : comm_(comm), device_(comm.comm().device()), on_gpu_(device_.kind != Device::Kind::cpu) {
  set_options(options);
  tensors_.reserve(2);
}

void CommCall::set_options(const CallOptions& options) {
  options_ = {};
  // A call that is kept returns before it has begun.
  options_.async = options.async_op || comm_.comm().is_coalescing();
  keeps_ = options_.async || !ends_with_its_call(comm_.comm().backend());
  options_.timeout = limit_of_call(options.timeout);
  if (options.hints) options_.hints = to_options(options.hints);
  if (options.stream.is_valid() && !options.stream.is_none()) options_.stream = to_stream(options.stream);
}

void CommCall::check_place(const TensorView& view, const char* kind, const char* name) const {
  const auto what = [&] { return std::string(kind) + " " + name; };
  if (view.device != device_)
    raise_invalid(what() + " is on " + device_text(view.device) + ": this communicator moves memory of " +
                  device_text(device_) + "; give a copy there, as tensor." + (on_gpu_ ? "cuda" : "cpu") +
                  "() makes");
  if (!view.strides.empty())
    raise_invalid(what() + " is not contiguous: its shape is " + shape_text(view.shape) +
                  ", its strides are " + shape_text(view.strides) +
                  " elements; give contiguous memory, as tensor.contiguous() or numpy.ascontiguousarray "
                  "makes");
}

const TensorInput& CommCall::add(nb::handle object, const char* name, const char* kind) {
  const TensorRole role{kind, name, "collectives"};
  if (object.is_none())
    raise_invalid(std::string(kind) + " " + name +
                  " is None: give a NumPy array, a torch tensor, or another object with the buffer protocol "
                  "or DLPack");
  try {
    tensors_.emplace_back(object.ptr(), role, comm_.exchange, producer_stream());
    // The caller's list may change while other threads run.
    if (keeps_ || kind == entry) objects_.push_back(nb::borrow(object));
  } catch (nb::python_error&) {
    // DLPack refuses such tensors, because what is written to them has no gradient. Collectives have none.
    if (!requires_grad(object)) throw;
    objects_.push_back(object.attr("detach")());
    tensors_.emplace_back(objects_.back().ptr(), role, comm_.exchange, producer_stream());
  }
  check_place(tensors_.back().view(), kind, name);
  return tensors_.back();
}

std::optional<void*> CommCall::producer_stream() const {
  return on_gpu_ ? std::optional(options_.stream) : std::nullopt;
}

Elements CommCall::writable(const TensorInput& tensor, const char* name) const {
  if (tensor.read_only())
    raise_invalid(std::string(one) + " " + name + " is read-only: the operation writes to it, give a copy");
  return {const_cast<void*>(tensor.view().data), count_of(tensor.view()), tensor.view().dtype};
}

Elements CommCall::writes(nb::handle object, const char* name) {
  return writable(add(object, name, one), name);
}

ConstElements CommCall::reads(nb::handle object, const char* name) {
  const TensorView& view = add(object, name, one).view();
  return {view.data, count_of(view), view.dtype};
}

Elements CommCall::uses(nb::handle object, const char* name, bool written) {
  if (written) return writes(object, name);
  const ConstElements elements = reads(object, name);
  return {const_cast<void*>(elements.data), elements.count, elements.dtype};
}

std::vector<Elements> CommCall::writes_each(nb::handle list, const char* name) {
  std::vector<Elements> all;
  for_each_entry(list, name,
                 [&](nb::handle object) { all.push_back(writable(add(object, name, entry), name)); });
  return all;
}

std::vector<ConstElements> CommCall::reads_each(nb::handle list, const char* name) {
  std::vector<ConstElements> all;
  for_each_entry(list, name, [&](nb::handle object) {
    const TensorView& view = add(object, name, entry).view();
    all.emplace_back(view.data, count_of(view), view.dtype);
  });
  return all;
}

std::shared_ptr<const void> CommCall::owner() {
  if (!keeps_) return nullptr;
  return hold<KeptTensors>(std::move(tensors_), std::move(objects_));
}

void CommCall::refuse_hints() const {
  if (!options_.hints.empty())
    raise_invalid("send and recv have no hints, and \"" + options_.hints.begin()->first + "\" is given");
}

WorkObject CommCall::of(const Work& work) const {
  return nb::borrow<WorkObject>(nb::cast(PyWork(comm_.home, work, options_.stream)));
}

WorkObject CommCall::done() const {
  if (!comm_.done.is_valid()) comm_.done = nb::borrow<WorkObject>(nb::cast(PyWork()));
  return comm_.done;
}

}  // namespace headrace::python
