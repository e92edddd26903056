// SPDX-License-Identifier: Apache-2.0
// <headrace/request.hpp>
#include <headrace/request.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/request_handle.hpp"
#include "bindings/python/stream_input.hpp"

#include <nanobind/stl/optional.h>

#include <array>

namespace headrace::python {
namespace {

/// What to tell somebody whose post was refused, where the request itself has no words for it.
const char* refusal(Code code) {
  switch (code) {
    case Code::would_block:
      return "a queue of the path is full, or, with a stream, the way to the peer's memory is not made yet: "
             "poll, then post again; before a capture post once without one";
    case Code::not_supported:
      return "not posted: this path knows no streams";
    case Code::invalid_argument:
      return "not posted: the request is under way already (wait for its end, or cancel it), the "
             "notification is longer than "
             "64 KiB, the stream is of another GPU, the request lies in a graph (cancel it, or make "
             "another), or the "
             "agent is closed or of another process";
    default:
      return "";
  }
}

/// The state's name. One object each, made once: programs that poll ask for it all the time.
nb::object state_str(RequestState state) {
  constexpr std::size_t count = static_cast<std::size_t>(RequestState::captured) + 1;
  static const std::array<PyObject*, count>& names = *new std::array<PyObject*, count>([] {
    std::array<PyObject*, count> made{};
    for (std::size_t i = 0; i < count; ++i) {
      nb::str name = to_str(state_name(static_cast<RequestState>(i)));
      made[i] = name.release().ptr();
      PyUnicode_InternInPlace(&made[i]);
    }
    return made;
  }());
  return nb::borrow(names[static_cast<std::size_t>(state)]);
}

/// One side of what set_indices is given.
struct GivenIndices {
  GivenIndices(nb::handle object, const char* what) {
    if (object.is_none()) return;
    held = to_gpu_indices(object, what);
    if (held) {
      kind = MemoryKind::vram;
      numbers = {reinterpret_cast<const std::uint32_t*>(held->data), static_cast<std::size_t>(held->count())};
    } else {
      input = to_indices(object, what);
      numbers = input.narrow(what, room);
    }
    if (numbers.data() == nullptr) numbers = {&none, 0};
  }
  GivenIndices(const GivenIndices&) = delete;
  GivenIndices& operator=(const GivenIndices&) = delete;
  [[nodiscard]] bool is_given() const { return numbers.data() != nullptr; }

  MemoryKind kind = MemoryKind::dram;
  std::span<const std::uint32_t> numbers;
  IndexInput input;
  std::vector<std::uint32_t> room;
  std::shared_ptr<ArrayView> held;
  std::uint32_t none = 0;
};

/// What garbage collection follows: `request.on_done(lambda error: print(request))` is a cycle.
int request_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  // A callback that is still to come keeps itself, and what it refers to.
  const PyRequest& request = *nb::inst_ptr<PyRequest>(self);
  const std::shared_ptr<Callable>& callback = request.callback();
  if (callback && !request.in_flight() && !Callable::is_pending(callback)) Py_VISIT(callback->object.ptr());
  return 0;
}

int request_clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<PyRequest>(self)->on_done(nb::none());
  return 0;
}

PyType_Slot request_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&request_traverse)},
                               {Py_tp_clear, reinterpret_cast<void*>(&request_clear)},
                               {0, nullptr}};

void bind_request_values(nb::module_& module) {
  nb::class_<RequestTimes>(module, "RequestTimes", "Of the last post that ended.")
      .def_ro("posted_at_ns", &RequestTimes::posted_at_ns, "CLOCK_MONOTONIC, as time.monotonic_ns().")
      .def_ro("post_ns", &RequestTimes::post_ns, "Spent inside post.")
      .def_ro("transfer_ns", &RequestTimes::transfer_ns, "From post to the end.")
      .def_ro("bytes", &RequestTimes::bytes, "That were to move.")
      .def_ro("pages", &RequestTimes::pages, "That were to move.")
      .def_ro("posts", &RequestTimes::posts, "Of this request so far.")
      .def("__repr__", [](const RequestTimes& self) {
        return nb::str(
                   "RequestTimes(posted_at_ns={}, post_ns={}, transfer_ns={}, bytes={}, pages={}, posts={})")
            .format(self.posted_at_ns, self.post_ns, self.transfer_ns, self.bytes, self.pages, self.posts);
      });

  nb::class_<PartInfo>(module, "PartInfo", "How a part of a request stands. A request to one peer has one.")
      .def_prop_ro(
          "peer", [](const PartInfo& self) { return to_str(self.peer); },
          "The far side: the peer's name, or this agent's own.")
      .def_prop_ro(
          "backend", [](const PartInfo& self) { return to_str(self.backend); },
          "The backend that carries it.")
      .def_ro("pages", &PartInfo::pages, "How many.")
      .def_ro("bytes", &PartInfo::bytes, "The sum of their lengths.")
      .def_prop_ro(
          "state", [](const PartInfo& self) { return state_str(self.state); },
          nb::sig("def state(self) -> str"), "As Request.state.")
      .def_prop_ro(
          "error",
          [](const PartInfo& self) {
            return self.error.code == Code::ok ? nb::object(nb::none()) : to_exception(self.error);
          },
          nb::sig("def error(self) -> headrace.errors.Error | None"),
          "Why its last post failed, with the page's number in the part; None if it did not.")
      .def("__repr__", [](const PartInfo& self) {
        return nb::str("PartInfo(peer={!r}, backend={!r}, pages={}, bytes={}, state={!r})")
            .format(to_str(self.peer), to_str(self.backend), self.pages, self.bytes, state_str(self.state));
      });

  nb::class_<CostEstimate>(module, "CostEstimate", "A guess at how long a request takes.")
      .def_prop_ro(
          "duration",
          [](const CostEstimate& self) { return std::chrono::duration<double>(self.duration).count(); },
          "Seconds.")
      .def_ro("margin", &CostEstimate::margin, "The guess may be off by this share of itself.")
      .def_prop_ro(
          "method", [](const CostEstimate& self) { return to_str(self.method); }, "How it was guessed.")
      .def_prop_ro(
          "backend", [](const CostEstimate& self) { return to_str(self.backend); },
          "The path that it is about.")
      .def("__repr__", [](const CostEstimate& self) {
        return nb::str("CostEstimate(duration={}, margin={}, method={!r}, backend={!r})")
            .format(std::chrono::duration<double>(self.duration).count(), self.margin, to_str(self.method),
                    to_str(self.backend));
      });
}

}  // namespace

PyRequest::~PyRequest() {
  if (in_flight() || request_->state() == RequestState::captured) {
    without_gil([this] {
      home_.release(request_);
      return true;
    });
  } else {
    home_.release(request_);
  }
  done_.reset();
  free_laid_aside();
}

bool PyRequest::in_flight() const {
  const RequestState state = request_->state();
  return state == RequestState::posted || state == RequestState::canceling;
}

bool PyRequest::ended() const {
  const RequestState state = request_->state();
  return state == RequestState::done || state == RequestState::failed || state == RequestState::canceled;
}

Error PyRequest::error_of(Status status) const {
  Error error = request_->error();
  if (error.code == status.code) return error;  // the request has said it in full
  const std::string text = refusal(status.code);
  const std::string whom =
      request_->peer().empty() ? "this agent itself" : "peer " + std::string(request_->peer());
  error =
      Error{status.code,
            std::string(op_name(request_->op())) + (request_->op() == Op::read ? " from " : " to ") + whom,
            status.page};
  error.message += ": " + (text.empty() ? std::string(code_sentence(status.code)) : text);
  return error;
}

void PyRequest::check_home() const {
  if (home_.is_here()) return;
  raise(Error{Code::invalid_argument,
              "the request belongs to the process that this one was forked from: open an agent here, after "
              "the fork"});
}

void PyRequest::post(PostOptions& options, nb::handle local, nb::handle remote, std::size_t part) {
  const GivenIndices ours(local, "local"), theirs(remote, "remote");
  if (ours.is_given() || theirs.is_given()) {
    if (ours.is_given() && theirs.is_given() && ours.kind != theirs.kind)
      raise_invalid("local and remote: one lies on the host and the other on a GPU; put both on the GPU");
    options.indices = {ours.numbers, theirs.numbers, ours.is_given() ? ours.kind : theirs.kind, part};
    if (!options.stream)
      raise_invalid("page numbers go with a post where its stream is being captured: name the stream");
  }
  post(options);
}

void PyRequest::post(const PostOptions& options) {
  check_home();
  const Status status = without_gil([&] { return request_->post(options); });
  if (!status.ok()) raise_refusal(status);
}

void PyRequest::raise_refusal(Status status) const { raise(error_of(status)); }

RequestState PyRequest::poll() {
  check_home();
  RequestState state = request_->state();
  // An ended request answers without giving the GIL away: another thread might keep it for 5 ms.
  if (state == RequestState::posted || state == RequestState::canceling)
    state = without_gil([&] { return request_->poll(); });
  return state;
}

void PyRequest::wait(const Timeout& timeout) {
  check_home();
  const auto wait = [&](std::chrono::nanoseconds time) {
    return without_gil([&] { return request_->wait(time); });
  };
  const auto running = [&](Status status) { return status.code == Code::timed_out && !ended(); };
  const Status status =
      ended() ? request_->wait(std::chrono::nanoseconds(0)) : wait_in_slices(timeout, wait, running);
  if (status.ok()) return;
  if (running(status)) {
    Error error = error_of({});
    error.code = Code::timed_out;
    error.message += ": still running when the time to wait was over: wait again, or cancel it";
    raise(error);
  }
  if (request_->state() == RequestState::prepared)
    raise(Error{Code::invalid_argument, "the request has not been posted: there is nothing to wait for"});
  if (request_->state() == RequestState::captured)
    raise(
        Error{Code::invalid_argument,
              "the request lies in a graph: wait for the graph's stream; check() tells how many replays have "
              "ended"});
  raise(error_of(status));
}

void PyRequest::set_indices(nb::handle local, nb::handle remote, nb::handle stream, std::size_t part) {
  check_home();
  const GivenIndices ours(local, "local"), theirs(remote, "remote");
  if (ours.is_given() && theirs.is_given() && ours.numbers.size() != theirs.numbers.size())
    raise_invalid("local has " + std::to_string(ours.numbers.size()) + " page numbers and remote has " +
                  std::to_string(theirs.numbers.size()) + ": each page has one on each side");
  PageIndices indices;
  indices.part = part;
  void* const queue = to_stream(stream);
  const auto set = [&] { take(without_gil([&] { return request_->set_indices(indices, queue); })); };
  indices.local = ours.numbers;
  indices.kind = ours.kind;
  if (ours.is_given() && theirs.is_given() && ours.kind != theirs.kind) {
    set();  // one side lies here and the other on a GPU
    indices.local = {};
  }
  if (theirs.is_given()) {
    indices.remote = theirs.numbers;
    indices.kind = theirs.kind;
  }
  set();
}

std::uint64_t PyRequest::check() {
  check_home();
  return take(without_gil([&] { return request_->check(); }));
}

void PyRequest::abandon() {
  const nb::error_scope keep_error;
  without_gil([this] {
    request_->cancel();
    return request_->wait(std::chrono::seconds(2));  // canceling lasts 1 s at most
  });
}

nb::object PyRequest::error() const {
  const Error error = request_->error();
  return error.code == Code::ok ? nb::object(nb::none()) : to_exception(error);
}

void PyRequest::cancel() {
  check_home();
  without_gil([this] {
    request_->cancel();
    return true;
  });
}

void PyRequest::on_done(nb::object callback) {
  if (callback.is_none()) {
    request_->on_done({});
    done_.reset();
  } else {
    if (PyCallable_Check(callback.ptr()) == 0)
      raise_invalid(shown(callback) + " cannot be called: give a function, or None");
    done_ = hold<Callable>(std::move(callback));
    request_->on_done([callable = done_, weak = std::weak_ptr(request_)](Status status) {
      Error error{status.code, std::string(code_sentence(status.code)), status.page};
      if (const auto request = weak.lock(); request && !status.ok()) {
        if (Error full = request->error(); full.code == status.code) error = std::move(full);
      }
      call_back(*callable, [&] {
        return nb::make_tuple(error.code == Code::ok ? nb::object(nb::none()) : to_exception(error));
      });
    });
  }
  free_laid_aside();
}

void bind_request(nb::module_& module) {
  bind_request_values(module);
  nb::class_<PyRequest>(
      module, "Request", nb::type_slots(request_slots), nb::is_weak_referenceable(),
      "Moves the pages of one list to or from the pages of another; Agent.make_request makes it.\n\n"
      "prepared -> posted -> (canceling ->) done | failed | canceled, and from any of these three it may be "
      "posted again.\n\n"
      "Owns: the page lists; the memory itself is the caller's and must stay in place until the request has "
      "ended.\n"
      "Dropping the last reference cancels what is in flight.\n"
      "A post on a stream that is being captured leads to captured: the request lies in a CUDA graph, whose "
      "replays run without\n"
      "the host, one after another. It holds all that they touch: its regions cannot be deregistered, here "
      "or by their owner.\n"
      "It and its agent must outlive the graph and replays that are queued.\n"
      "Threads: any; post from one thread at a time. `await request` waits in the running asyncio loop; a "
      "task that is\n"
      "canceled there cancels the request and ends when its memory is quiet.")
      .def(
          "post",
          [](PyRequest& self, nb::handle notification, const Seconds& timeout, nb::handle stream,
             nb::handle local, nb::handle remote, std::size_t part) {
            PostOptions options;
            if (!notification.is_none()) options.notification = from_bytes(notification, "the notification");
            options.timeout = to_timeout(timeout);
            if (!stream.is_none()) options.stream = to_stream(stream);
            self.post(options, local, remote, part);
            return state_str(self.request().state());
          },
          nb::arg("notification") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("stream") = nb::none(), nb::kw_only(), nb::arg("local") = nb::none(),
          nb::arg("remote") = nb::none(), nb::arg("part") = 0,
          nb::sig("def post(self, notification: bytes | None = None, timeout: float | None = None, stream: "
                  "typing.Any = None, *, local: typing.Any = None, remote: typing.Any = None, part: int = 0) "
                  "-> str"),
          "Starts the transfer and returns its state. Small requests on mapped or attached paths are done "
          "when this\n"
          "returns: \"done\", and there is nothing to wait for.\n\n"
          "notification: bytes, up to 64 KiB, delivered at the far side once the data is there (write) or "
          "has been taken\n"
          "(read). timeout: seconds, then it is canceled and ends timed_out; None: the request's own.\n"
          "stream: a torch.cuda.Stream, or the number of a CUDA stream, of the GPU whose memory the local "
          "pages "
          "are: they move\n"
          "after what was queued on it before, and before what is queued on it later, and nobody need wait "
          "for "
          "either. If it\n"
          "is being captured, the move becomes part of the graph, nothing runs yet, and the request is "
          "\"captured\" until cancel().\n"
          "local, remote: in a capture, page numbers on a GPU, as set_indices takes them, which the graph "
          "reads anew at every replay:\n"
          "a model's own block tables. part: whose lists they number, in a request to several peers; the "
          "other parts' pages stay.\n"
          "Of a request to several peers a part's error is told by wait(), and raised here too where there "
          "is "
          "a stream: the others\n"
          "are under way, and in a capture taken out of the graph again, which is to be thrown away.\n"
          "Errors: InvalidArgument (posted already; a stream of another GPU), WouldBlock (a queue is full, "
          "or, "
          "with a stream,\n"
          "the way to the peer's memory is not made yet: poll, retry; before a capture post once without), "
          "PeerLost, NotFound\n"
          "(a region has been revoked), NotSupported (its path knows no streams; a notification in a "
          "capture).")
      .def(
          "set_indices",
          [](PyRequest& self, nb::handle local, nb::handle remote, nb::handle stream, std::size_t part) {
            self.set_indices(local, remote, stream, part);
          },
          nb::arg("local") = nb::none(), nb::arg("remote") = nb::none(), nb::kw_only(), nb::arg("stream"),
          nb::arg("part") = 0,
          nb::sig("def set_indices(self, local: typing.Any = None, remote: typing.Any = None, *, stream: "
                  "typing.Any, part: int = 0) -> None"),
          "Changes which pages of its lists a captured request moves, without making its graph anew: queued "
          "on a stream.\n\n"
          "local, remote: page numbers of one dimension, of both sides as many and at most as many as the "
          "request has pages;\n"
          "None: this side's first numbers stay as they are. Any integers on the host, copied before the "
          "call returns; or int32 or\n"
          "uint32 on a GPU (a torch tensor, or whatever speaks DLPack), read in the stream's order: keep it "
          "until then.\n"
          "stream: a torch.cuda.Stream, or the number of a CUDA stream, not being captured; replays that are "
          "queued on it later see them.\n"
          "part: whose lists they number, in a request to several peers.\n"
          "Errors: InvalidArgument (not captured; too many, or, on the host, a number that the list does not "
          "have), NotSupported (a\n"
          "list is not uniform), WouldBlock (64 changes are queued: let the stream catch up).")
      .def("check", &PyRequest::check,
           "How many replays of a captured request have ended: their data can be read. Asks neither GPU nor "
           "peer.\n\n"
           "Errors: InvalidArgument (not captured; or a number that a GPU has written is not in its list: a "
           "replay passed over\n"
           "that page, told once), NotFound (a region has been revoked), PeerLost: replays since may have "
           "read or written what is\n"
           "no longer the peer's memory.")
      .def(
          "poll", [](PyRequest& self) { return state_str(self.poll()); }, nb::sig("def poll(self) -> str"),
          "The state, after giving the path a slice of this thread's time.")
      .def_prop_ro(
          "state", [](const PyRequest& self) { return state_str(self.request().state()); },
          nb::sig("def state(self) -> str"),
          "\"prepared\", \"posted\", \"canceling\", \"done\", \"failed\", \"canceled\" or \"captured\", "
          "without doing anything.")
      .def_prop_ro("done", &PyRequest::ended, "Whether the last post has ended: done, failed or canceled.")
      .def(
          "wait", [](PyRequest& self, const Seconds& timeout) { self.wait(to_timeout(timeout)); },
          nb::arg("timeout") = nb::none(),
          "Waits for the end, seconds at most.\n\n"
          "Errors: the request's own; TimedOut if it is still running, which it then goes on doing.")
      .def("cancel", &PyRequest::cancel,
           "Asks for an early end and returns at once; wait() tells when the memory is quiet. Nothing "
           "happens if it has ended.\n"
           "A captured request is let go of: its graph is not to be replayed any more.")
      .def_prop_ro("error", &PyRequest::error, nb::sig("def error(self) -> headrace.errors.Error | None"),
                   "Why the last post failed, with the peer's name and the page; None if it did not.")
      .def_prop_ro(
          "times", [](const PyRequest& self) { return self.request().times(); },
          "Of the last post that ended.")
      .def_prop_ro(
          "parts",
          [](const PyRequest& self) {
            nb::list parts;
            for (PartInfo& part : self.request().parts()) parts.append(nb::cast(std::move(part)));
            return parts;
          },
          nb::sig("def parts(self) -> list[PartInfo]"),
          "How each part stands, in the order in which they were given: which peers have their pages after a "
          "failure.")
      .def(
          "explain", [](const PyRequest& self) { return to_str(self.request().explain()); },
          "The path, why it was chosen, and why the others were not.")
      .def_prop_ro(
          "backend", [](const PyRequest& self) { return to_str(self.request().backend()); },
          "The backend that carries it.")
      .def(
          "cost",
          [](const PyRequest& self) { return take(without_gil([&] { return self.request().cost(); })); },
          "How long it may take.\n\nErrors: PeerLost (no path any more).")
      .def(
          "on_done", [](PyRequest& self, nb::object callback) { self.on_done(std::move(callback)); },
          nb::arg("callback").none(),
          nb::sig("def on_done(self, callback: collections.abc.Callable[[headrace.errors.Error | None], "
                  "object] | None) -> None"),
          "Calls callback(error) once for the end of each post: None if it is done, else the error. Replaces "
          "an earlier\n"
          "one; None takes it away.\n\n"
          "Threads: runs on the agent's callback thread. An exception in it goes to sys.unraisablehook. What "
          "is still\n"
          "waiting when the interpreter ends is dropped.")
      .def(
          "fileno", [](PyRequest& self) { return take(self.request().event_fd()); },
          "A descriptor that turns readable at each end; the request's. Read 8 bytes to clear it.")
      .def(
          "__await__",
          [](nb::handle self) {
            return nb::module_::import_("headrace._asyncio").attr("ended")(self).attr("__await__")();
          },
          nb::sig("def __await__(self) -> collections.abc.Generator[object, None, None]"))
      .def_prop_ro(
          "op", [](const PyRequest& self) { return to_str(op_name(self.request().op())); },
          "\"read\" or \"write\".")
      .def_prop_ro(
          "pages", [](const PyRequest& self) { return self.request().pages(); }, "How many.")
      .def_prop_ro(
          "bytes", [](const PyRequest& self) { return self.request().bytes(); }, "The sum of their lengths.")
      .def_prop_ro(
          "peer", [](const PyRequest& self) { return to_str(self.request().peer()); },
          "The far side: the peer's name, or this agent's own; of several parts all, with commas.")
      .def("__repr__",
           [](const PyRequest& self) {
             const headrace::Request& r = self.request();
             return nb::str("Request({}, peer={!r}, pages={}, bytes={}, state={!r})")
                 .format(to_str(op_name(r.op())), to_str(r.peer()), r.pages(), r.bytes(),
                         state_str(r.state()));
           })
      .def("__reduce__", refuse_pickle("a Request belongs to its process: make one there"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
