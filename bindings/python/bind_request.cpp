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

/// The error text of a refused post, for errors that the request does not describe itself.
const char* refusal(Code code) {
  switch (code) {
    case Code::would_block:
      return "a queue of the path is full, or the peer's memory is not mapped yet (posts with a stream need "
             "this): poll, then post again; before a capture post once without a stream";
    case Code::not_supported:
      return "not posted: this path does not support streams";
    default:
      return "";
  }
}

bool is_in_flight(RequestState state) {
  return state == RequestState::posted || state == RequestState::canceling;
}

/// The error text of a post that its request does not take. `before`: the request's state before the post.
const char* not_taken(RequestState before, RequestState now, const PostOptions& options) {
  if (is_in_flight(before) || is_in_flight(now))
    return "not posted: the request is in flight: wait for its end, or cancel it";
  if (before == RequestState::captured || now == RequestState::captured)
    return "not posted: the request lies in a CUDA graph: cancel it, or make another";
  if (options.stream) return "not posted: the stream belongs to another GPU, or the agent is closed";
  return "not posted: the agent is closed";
}

/// The name of a state. Each str is made once, because polling programs ask for it often.
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

/// One of the two index arguments of post and set_indices.
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

/// For the garbage collector: `request.on_done(lambda error: print(request))` is a cycle.
int request_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  // A callback that will still be called must stay, with everything that it refers to.
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
  nb::class_<RequestTimes>(module, "RequestTimes", "The times of the last post that has ended.")
      .def_ro("posted_at_ns", &RequestTimes::posted_at_ns,
              "When it was posted: CLOCK_MONOTONIC, as time.monotonic_ns().")
      .def_ro("post_ns", &RequestTimes::post_ns, "The time inside post, in nanoseconds.")
      .def_ro("transfer_ns", &RequestTimes::transfer_ns, "The time from post to the end, in nanoseconds.")
      .def_ro("bytes", &RequestTimes::bytes, "The bytes of the request.")
      .def_ro("pages", &RequestTimes::pages, "The pages of the request.")
      .def_ro("posts", &RequestTimes::posts, "The number of posts of this request so far.")
      .def("__repr__", [](const RequestTimes& self) {
        return nb::str(
                   "RequestTimes(posted_at_ns={}, post_ns={}, transfer_ns={}, bytes={}, pages={}, posts={})")
            .format(self.posted_at_ns, self.post_ns, self.transfer_ns, self.bytes, self.pages, self.posts);
      });

  nb::class_<PartInfo>(module, "PartInfo",
                       "The state of a part of a request. A request to one peer has one part.")
      .def_prop_ro(
          "peer", [](const PartInfo& self) { return to_str(self.peer); },
          "The name of the peer, or of this agent.")
      .def_prop_ro(
          "backend", [](const PartInfo& self) { return to_str(self.backend); },
          "The backend that carries the part.")
      .def_ro("pages", &PartInfo::pages, "The number of pages.")
      .def_ro("bytes", &PartInfo::bytes, "The sum of the pages' lengths.")
      .def_prop_ro(
          "state", [](const PartInfo& self) { return state_str(self.state); },
          nb::sig("def state(self) -> str"), "The state, with the values of Request.state.")
      .def_prop_ro(
          "error",
          [](const PartInfo& self) {
            return self.error.code == Code::ok ? nb::object(nb::none()) : to_exception(self.error);
          },
          nb::sig("def error(self) -> headrace.errors.Error | None"),
          "Why its last post failed, with the page's number in the part; None if it did not fail.")
      .def("__repr__", [](const PartInfo& self) {
        return nb::str("PartInfo(peer={!r}, backend={!r}, pages={}, bytes={}, state={!r})")
            .format(to_str(self.peer), to_str(self.backend), self.pages, self.bytes, state_str(self.state));
      });

  nb::class_<CostEstimate>(module, "CostEstimate", "An estimate of the time that a request takes.")
      .def_prop_ro(
          "duration",
          [](const CostEstimate& self) { return std::chrono::duration<double>(self.duration).count(); },
          "The estimated time in seconds.")
      .def_ro("margin", &CostEstimate::margin, "The possible error, as a share of the duration.")
      .def_prop_ro(
          "method", [](const CostEstimate& self) { return to_str(self.method); }, "How it was estimated.")
      .def_prop_ro(
          "backend", [](const CostEstimate& self) { return to_str(self.backend); },
          "The path that the estimate is for.")
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

bool PyRequest::in_flight() const { return is_in_flight(request_->state()); }

bool PyRequest::ended() const {
  const RequestState state = request_->state();
  return state == RequestState::done || state == RequestState::failed || state == RequestState::canceled;
}

/// `why`: the sentence if the request has none of its own.
Error PyRequest::error_of(Status status, const char* why) const {
  Error error = request_->error();
  if (error.code == status.code) return error;  // the request has described the error itself
  const std::string text = why != nullptr ? why : refusal(status.code);
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
              "the request belongs to the parent process: open an agent in this process, after the fork"});
}

void PyRequest::post(PostOptions& options, nb::handle local, nb::handle remote, std::size_t part) {
  const GivenIndices ours(local, "local"), theirs(remote, "remote");
  if (ours.is_given() || theirs.is_given()) {
    if (ours.is_given() && theirs.is_given() && ours.kind != theirs.kind)
      raise_invalid("local and remote: one is on the host and the other on a GPU; put both on the GPU");
    options.indices = {ours.numbers, theirs.numbers, ours.is_given() ? ours.kind : theirs.kind, part};
    if (!options.stream)
      raise_invalid("post takes page numbers only during the capture of a stream: name the stream");
  }
  post(options);
}

void PyRequest::post(const PostOptions& options) {
  check_home();
  const RequestState before = request_->state();
  const Status status = without_gil([&] { return request_->post(options); });
  if (!status.ok()) raise_refusal(status, options, before);
}

void PyRequest::raise_refusal(Status status, const PostOptions& options, RequestState before) const {
  const std::size_t bytes = options.notification ? options.notification->size() : 0;
  if (status.code == Code::invalid_argument && bytes > max_notification_bytes)
    raise_invalid("a notification of " + std::to_string(bytes) + " bytes: at most " +
                  std::to_string(max_notification_bytes) + " are allowed");
  const bool is_not_taken = status.code == Code::invalid_argument;
  raise(error_of(status, is_not_taken ? not_taken(before, request_->state(), options) : nullptr));
}

RequestState PyRequest::poll() {
  check_home();
  RequestState state = request_->state();
  // For an ended request the GIL is not released: another thread might keep it for 5 ms.
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
  Status status =
      ended() ? request_->wait(std::chrono::nanoseconds(0)) : wait_in_slices(timeout, wait, running);
  if (status.ok()) return;
  const bool late = status.code == Code::timed_out;
  if (late && ended()) {  // since that wait, or by its own deadline
    status = request_->wait(std::chrono::nanoseconds(0));
    if (status.ok()) return;
  } else if (late) {
    raise(error_of({Code::timed_out},
                   "still in flight when the timeout of wait expired: wait again, or cancel it"));
  }
  if (request_->state() == RequestState::prepared)
    raise(Error{Code::invalid_argument, "the request has not been posted: there is nothing to wait for"});
  if (request_->state() == RequestState::captured)
    raise(Error{
        Code::invalid_argument,
        "the request is captured in a graph: wait for the graph's stream; check() tells how many replays "
        "have ended"});
  raise(error_of(status));
}

void PyRequest::set_indices(nb::handle local, nb::handle remote, nb::handle stream, std::size_t part) {
  check_home();
  const GivenIndices ours(local, "local"), theirs(remote, "remote");
  if (ours.is_given() && theirs.is_given() && ours.numbers.size() != theirs.numbers.size())
    raise_invalid("local has " + std::to_string(ours.numbers.size()) + " page numbers and remote has " +
                  std::to_string(theirs.numbers.size()) + ": give the same count of both");
  PageIndices indices;
  indices.part = part;
  void* const queue = to_stream(stream);
  const auto set = [&] { take(without_gil([&] { return request_->set_indices(indices, queue); })); };
  indices.local = ours.numbers;
  indices.kind = ours.kind;
  if (ours.is_given() && theirs.is_given() && ours.kind != theirs.kind) {
    set();  // local on the host and remote on a GPU, or the reverse: two calls
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
      "A move of the pages of one list to or from the pages of another, from Agent.make_request.\n\n"
      "States: prepared -> posted -> (canceling ->) done | failed | canceled. A request in one of\n"
      "the last three states can be posted again.\n"
      "Owns: the page lists. The memory belongs to the caller and must stay in place until the\n"
      "request has ended. Dropping the last reference cancels a post in flight.\n"
      "Capture: a post on a stream that is being captured leads to the state captured. The request\n"
      "is then part of a CUDA graph, whose replays run one after another without the host. Its\n"
      "regions cannot be deregistered, here or by their owner. The request and its agent must\n"
      "outlive the graph and all queued replays.\n"
      "Threads: any; post from one thread at a time. `await request` waits in the running asyncio\n"
      "loop. Cancelling the task cancels the request; the task ends when the memory is quiet.")
      .def(
          "post",
          [](PyRequest& self, nb::handle notification, const Seconds& timeout, nb::handle stream,
             nb::handle local, nb::handle remote, std::size_t part,
             const std::optional<std::uint32_t>& immediate, std::uint32_t scope) {
            PostOptions options;
            if (immediate) options.immediate = Immediate{*immediate, scope};
            if (!notification.is_none()) options.notification = from_bytes(notification, "the notification");
            options.timeout = to_timeout(timeout);
            if (!stream.is_none()) options.stream = to_stream(stream);
            self.post(options, local, remote, part);
            return state_str(self.request().state());
          },
          nb::arg("notification") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("stream") = nb::none(), nb::kw_only(), nb::arg("local") = nb::none(),
          nb::arg("remote") = nb::none(), nb::arg("part") = 0, nb::arg("immediate") = nb::none(),
          nb::arg("scope") = 0,
          nb::sig("def post(self, notification: bytes | None = None, timeout: float | None = None, stream: "
                  "typing.Any = None, *, local: typing.Any = None, remote: typing.Any = None, part: int = 0, "
                  "immediate: int | None = None, scope: int = 0) -> str"),
          "Starts the move of the pages and returns the state.\n\n"
          "Small requests on mapped or attached paths are \"done\" at the return.\n"
          "notification: bytes, up to 64 KiB, delivered to the peer after its pages are written (write)\n"
          "or read (read).\n"
          "timeout: seconds; after them the post is canceled and ends with TimedOut. None: the request's\n"
          "own.\n"
          "stream: a torch.cuda.Stream, or the number of a CUDA stream, of the GPU of the local pages.\n"
          "The pages move after the work that is queued on it, and later work on it waits for them; the\n"
          "host need not wait. If the stream is being captured, the move becomes part of the graph,\n"
          "nothing runs yet, and the request is \"captured\" until cancel().\n"
          "local, remote: during a capture, page numbers on a GPU, as in set_indices. Every replay of\n"
          "the graph reads them again: they can be a model's own block tables.\n"
          "part: in a request to several peers, the part that local and remote belong to; the pages of\n"
          "the other parts do not change.\n"
          "immediate, scope: integers of 32 bits; the peer counts the post after its pages are written or\n"
          "read: Agent.counter. A post with an immediate tries no other path after a failure of its path.\n"
          "In a capture every replay is counted.\n"
          "Errors: InvalidArgument (in flight; a stream of another GPU), WouldBlock (a queue is full; or\n"
          "the peer's memory is not mapped yet, which a stream needs: poll, retry; before a capture post\n"
          "once without a stream), PeerLost, NotFound (a region has been revoked), NotSupported (the\n"
          "path does not support streams; a notification in a capture). In a request to several peers\n"
          "wait() raises the error of a part. With a stream post raises it too: outside a capture the\n"
          "other parts are in flight; in a capture they are removed from the graph, which must be\n"
          "dropped.")
      .def(
          "set_indices",
          [](PyRequest& self, nb::handle local, nb::handle remote, nb::handle stream, std::size_t part) {
            self.set_indices(local, remote, stream, part);
          },
          nb::arg("local") = nb::none(), nb::arg("remote") = nb::none(), nb::kw_only(), nb::arg("stream"),
          nb::arg("part") = 0,
          nb::sig("def set_indices(self, local: typing.Any = None, remote: typing.Any = None, *, stream: "
                  "typing.Any, part: int = 0) -> None"),
          "Changes the pages that a captured request moves, in the order of a stream. The graph stays.\n\n"
          "local, remote: page numbers in one dimension, the same count of both, at most the pages of\n"
          "the request; None: these numbers do not change. On the host: any integers, copied before the\n"
          "return. On a GPU: int32 or uint32 (a torch tensor or another object with DLPack), read in the\n"
          "stream's order; keep them until then.\n"
          "stream: a torch.cuda.Stream, or the number of a CUDA stream, that is not being captured.\n"
          "Replays that are queued on it later use the new numbers.\n"
          "part: in a request to several peers, the part that the numbers belong to.\n"
          "Errors: InvalidArgument (not captured; too many numbers; on the host: a number that the list\n"
          "does not have), NotSupported (a list is not uniform), WouldBlock (64 changes are queued: wait\n"
          "for the stream).")
      .def("check", &PyRequest::check,
           "Returns how many replays of a captured request have ended: their data can be read.\n\n"
           "It asks neither the GPU nor the peer.\n"
           "Errors: InvalidArgument (not captured; a page number in GPU memory is not in its list: a\n"
           "replay skipped that page; raised once), NotFound (a region has been revoked), PeerLost. After\n"
           "the last two, later replays may have read or written memory that the peer uses for something\n"
           "else.")
      .def(
          "poll", [](PyRequest& self) { return state_str(self.poll()); }, nb::sig("def poll(self) -> str"),
          "Runs progress on this thread, then returns the state. Does not wait.")
      .def_prop_ro(
          "state", [](const PyRequest& self) { return state_str(self.request().state()); },
          nb::sig("def state(self) -> str"),
          "\"prepared\", \"posted\", \"canceling\", \"done\", \"failed\", \"canceled\" or \"captured\". Does "
          "not run progress.")
      .def_prop_ro("done", &PyRequest::ended, "Whether the last post has ended: done, failed or canceled.")
      .def(
          "wait", [](PyRequest& self, const Seconds& timeout) { self.wait(to_timeout(timeout)); },
          nb::arg("timeout") = nb::none(),
          "Waits for the end of the post.\n\n"
          "timeout: seconds; None: no limit.\n"
          "Errors: the error of the post; TimedOut (the timeout expired; the request stays in flight).")
      .def("cancel", &PyRequest::cancel,
           "Asks that the post ends, and returns at once; wait() returns when the memory is quiet.\n\n"
           "Does nothing if the post has ended. A captured request is released: its graph must not be\n"
           "replayed any more.")
      .def_prop_ro("error", &PyRequest::error, nb::sig("def error(self) -> headrace.errors.Error | None"),
                   "Why the last post failed, with the peer's name and the page; None if it did not fail.")
      .def_prop_ro(
          "times", [](const PyRequest& self) { return self.request().times(); },
          "The times of the last post that has ended.")
      .def_prop_ro(
          "parts",
          [](const PyRequest& self) {
            nb::list parts;
            for (PartInfo& part : self.request().parts()) parts.append(nb::cast(std::move(part)));
            return parts;
          },
          nb::sig("def parts(self) -> list[PartInfo]"),
          "The state of each part, in the order of make_request: it tells which peers have their pages.")
      .def(
          "explain", [](const PyRequest& self) { return to_str(self.request().explain()); },
          "The path, why it was chosen, and why each other path was not.")
      .def_prop_ro(
          "backend", [](const PyRequest& self) { return to_str(self.request().backend()); },
          "The backend that carries the request.")
      .def(
          "cost",
          [](const PyRequest& self) { return take(without_gil([&] { return self.request().cost(); })); },
          "Estimates the time that a post takes.\n\n"
          "Errors: PeerLost (the request has no path any more).")
      .def(
          "on_done", [](PyRequest& self, nb::object callback) { self.on_done(std::move(callback)); },
          nb::arg("callback").none(),
          nb::sig("def on_done(self, callback: collections.abc.Callable[[headrace.errors.Error | None], "
                  "object] | None) -> None"),
          "Calls callback(error) once at the end of each post: error is None if it is done.\n\n"
          "A new callback replaces the earlier one; None removes it.\n"
          "Threads: runs on the agent's callback thread. An exception in it goes to sys.unraisablehook.\n"
          "Calls that still wait when the interpreter ends are dropped.")
      .def(
          "fileno", [](PyRequest& self) { return take(self.request().event_fd()); },
          "An eventfd that becomes readable at the end of each post.\n\n"
          "The request owns it. Read 8 bytes to drain it.")
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
          "pages", [](const PyRequest& self) { return self.request().pages(); }, "The number of pages.")
      .def_prop_ro(
          "bytes", [](const PyRequest& self) { return self.request().bytes(); },
          "The sum of the pages' lengths.")
      .def_prop_ro(
          "peer", [](const PyRequest& self) { return to_str(self.request().peer()); },
          "The name of the peer, or of this agent; of several parts all names, separated by commas.")
      .def("__repr__",
           [](const PyRequest& self) {
             const headrace::Request& r = self.request();
             return nb::str("Request({}, peer={!r}, pages={}, bytes={}, state={!r})")
                 .format(to_str(op_name(r.op())), to_str(r.peer()), r.pages(), r.bytes(),
                         state_str(r.state()));
           })
      .def("__reduce__", refuse_pickle("a Request cannot be pickled: make one in the other process"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
