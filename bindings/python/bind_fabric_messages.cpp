// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric.hpp>: messages.
#include <headrace/fabric.hpp>

#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/time_limit.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>

namespace headrace::python {
namespace {

class PyFabricReceiver {
 public:
  explicit PyFabricReceiver(FabricReceiver receiver)
      : receiver_(std::make_shared<FabricReceiver>(std::move(receiver))) {}
  ~PyFabricReceiver() {
    without_gil([this] { home_.release(receiver_); });  // the last one deregisters its buffers
  }
  PyFabricReceiver(const PyFabricReceiver&) = delete;
  PyFabricReceiver& operator=(const PyFabricReceiver&) = delete;

  void stop() const {
    if (!home_.is_here())
      raise_invalid(
          "the receiver belongs to the parent process: open a fabric in this process, after the fork");
    without_gil([this] { receiver_->stop(); });
  }

 private:
  HomeProcess home_;
  std::shared_ptr<FabricReceiver> receiver_;
};

/// The part of the memory that a message is sent from, or received into.
struct MessageRange {
  MessageRange(const PyFabricMemory& memory, nb::handle offset, const char* what, nb::handle length)
      : offset_bytes(to_u64(offset, what, no_page)) {
    const std::uint64_t all = memory.memory.length_bytes();
    bytes = length.is_none() ? all - std::min(all, offset_bytes) : to_u64(length, "the length", no_page);
  }
  std::uint64_t offset_bytes, bytes;
};

FabricPost message_post(const TimeLimit& timeout) {
  FabricPost post;
  post.timeout = timeout.or_else(std::nullopt);
  return post;
}

PyFabricWork send_message(const PyFabric& self, const FabricPeer& peer, const PyFabricMemory& source,
                          nb::handle length, nb::handle offset, const TimeLimit& timeout) {
  const MessageRange range(source, offset, "the source's offset", length);
  const FabricPost post = message_post(timeout);
  return PyFabricWork(self.ask([&](headrace::Fabric& f) {
    return f.send(peer, source.memory, range.offset_bytes, range.bytes, post);
  }));
}

PyFabricWork receive_message(const PyFabric& self, const PyFabricMemory& target, nb::handle length,
                             nb::handle offset, const TimeLimit& timeout) {
  const MessageRange range(target, offset, "the target's offset", length);
  const FabricPost post = message_post(timeout);
  return PyFabricWork(self.ask(
      [&](headrace::Fabric& f) { return f.receive(target.memory, range.offset_bytes, range.bytes, post); }));
}

std::unique_ptr<PyFabricReceiver> receive_all_messages(const PyFabric& self, nb::handle count,
                                                       nb::handle length, nb::object callback) {
  const std::uint64_t number = to_u64(count, "the number of buffers", no_page);
  const std::uint64_t each = to_u64(length, "the length of a buffer", no_page);
  if (PyCallable_Check(callback.ptr()) == 0)
    raise_invalid(shown(callback) + " cannot be called: give a function");
  auto hook = hold<Callable>(std::move(callback));
  const auto received = [hook](std::span<const std::byte> bytes) {
    call_hook(hook, [&] {
      return nb::make_tuple(to_bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    });
  };
  auto made = std::make_unique<PyFabricReceiver>(
      self.ask([&](headrace::Fabric& f) { return f.receive_all(number, each, received); }));
  self.hooks()->reached.insert(hook);  // until the close: a message may still be told after `stop`
  return made;
}

}  // namespace

void bind_fabric_receiver(nb::module_& module) {
  nb::class_<PyFabricReceiver>(
      module, "FabricReceiver",
      "Receives messages into buffers of its own, from Fabric.receive_all. It receives without this object,\n"
      "until `stop` or the close of the fabric.\n\n"
      "Threads: any.")
      .def("stop", &PyFabricReceiver::stop,
           "Ends it, and returns at once. A message that has begun to come may still be told.")
      .def("__reduce__", refuse_pickle("a FabricReceiver cannot be pickled: receive in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

void bind_fabric_messages(nb::class_<PyFabric>& fabric) {
  fabric
      .def(
          "send", &send_message, nb::arg("peer"), nb::arg("source"), nb::arg("length_bytes") = nb::none(),
          nb::kw_only(), nb::arg("source_offset") = 0, nb::arg("timeout") = nb::none(),
          nb::sig(
              "def send(self, peer: FabricPeer, source: FabricMemory, length_bytes: int | None = None, "
              "*, source_offset: int = 0, timeout: float | datetime.timedelta | None = None) -> FabricWork"),
          "Sends a message into the next receive of the peer. It waits until there is one, and is done when\n"
          "it lies there. Messages to one peer arrive in the order of their sends. One of memory of a\n"
          "GPU is copied into host memory first: those to a peer that have not ended have at most 64 MiB of\n"
          "that, or one alone. What kernels write into it has to be there before the call.\n\n"
          "length_bytes: None: the source from source_offset on. timeout: seconds or a timedelta; None: no "
          "limit.\n"
          "Errors of its end: InvalidArgument (longer than the receive, which stays posted), TimedOut,\n"
          "NotFound (memory of a GPU that was freed since), Exhausted (no host memory for it).")
      .def(
          "receive", &receive_message, nb::arg("target"), nb::arg("length_bytes") = nb::none(), nb::kw_only(),
          nb::arg("target_offset") = 0, nb::arg("timeout") = nb::none(),
          nb::sig("def receive(self, target: FabricMemory, length_bytes: int | None = None, *, "
                  "target_offset: int = 0, timeout: float | datetime.timedelta | None = None) -> FabricWork"),
          "Gives room for one message of any peer; FabricWork.length_bytes is then its length. Receives are\n"
          "used in the order of their posts. A message for memory of a GPU comes into host memory first, of\n"
          "which the receive takes as much; then it is copied.\n\n"
          "length_bytes: None: the target from target_offset on. timeout: seconds or a timedelta; None: no "
          "limit.")
      .def("receive_all", &receive_all_messages, nb::arg("count"), nb::arg("length_bytes"),
           nb::arg("callback"),
           nb::sig("def receive_all(self, count: int, length_bytes: int, callback: "
                   "collections.abc.Callable[[bytes], object]) -> FabricReceiver"),
           "Calls callback(message) for each message, from `count` buffers of `length_bytes` each.\n\n"
           "Threads: the callback thread. An exception goes to `on_error`.\n"
           "Errors: InvalidArgument (no buffer, empty ones, no function), Exhausted.");
}

}  // namespace headrace::python
