// SPDX-License-Identifier: Apache-2.0
// The section "pages and requests" of <headrace/agent.hpp>.
#include "bindings/python/bind_agent.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/request_handle.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <thread>

namespace headrace::python {
namespace {

/// `view`: the shape of a page; null: a page is contiguous.
PageList prepare(PyAgent& self, nb::handle pages, const std::string* peer, const PageView* view = nullptr) {
  const PageInput input = to_pages(pages);
  const PageSpec spec = std::visit(
      [&](const auto& given) { return view != nullptr ? PageSpec(given, *view) : PageSpec(given); },
      input.pages);
  return self.ask(
      [&](headrace::Agent& agent) { return peer ? agent.prepare(*peer, spec) : agent.prepare(spec); });
}

/// Returns a PageList as it is, and prepares everything else.
PageList page_list(PyAgent& self, nb::handle pages, const std::string* peer) {
  if (nb::isinstance<PageList>(pages)) return nb::cast<PageList>(pages);
  return prepare(self, pages, peer);
}

RequestOptions request_options(const Names& backends, const Seconds& timeout) {
  RequestOptions options;
  options.backends = to_names(backends);
  options.timeout = to_timeout(timeout);
  return options;
}

/// The type of the object that make_request returns.
nb::handle request_type(nb::handle cls) {
  const nb::handle request = nb::type<PyRequest>();
  if (cls.is_none()) return request;
  if (PyType_Check(cls.ptr()) == 0 || PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(cls.ptr()),
                                                       reinterpret_cast<PyTypeObject*>(request.ptr())) == 0)
    raise_invalid("cls is " + shown(cls) + ": give a subclass of Request, or None");
  return cls;
}

/// A Python object of that type with the request inside.
nb::object in_python(nb::handle type, headrace::Request request) {
  nb::object made = nb::inst_alloc(type);
  new (nb::inst_ptr<void>(made)) PyRequest(std::move(request));
  nb::inst_mark_ready(made);
  return made;
}

nb::object make_request(PyAgent& self, const std::string& op, const PageList& local, const PageList& remote,
                        nb::handle local_index, nb::handle remote_index, const Names& backends,
                        const Seconds& timeout, nb::handle cls) {
  const Op operation = to_op(op);
  const RequestOptions options = request_options(backends, timeout);
  const nb::handle type = request_type(cls);
  if (local_index.is_none() && remote_index.is_none()) {
    return in_python(type, self.ask([&](headrace::Agent& agent) {
      return agent.make_request(operation, {local, remote}, options);
    }));
  }
  IndexInput here =
      local_index.is_none() ? all_indices(local.count()) : to_indices(local_index, "local_index");
  IndexInput there =
      remote_index.is_none() ? all_indices(remote.count()) : to_indices(remote_index, "remote_index");
  if (here.indices.index() != there.indices.index()) {
    here.widen();
    there.widen();
  }
  return in_python(type, self.ask([&](headrace::Agent& agent) -> Result<headrace::Request> {
    return std::visit(
        [&](auto local_indices) {
          const auto& remote_indices = std::get<decltype(local_indices)>(there.indices);
          return agent.make_request(operation, {local, remote, local_indices, remote_indices}, options);
        },
        here.indices);
  }));
}

/// A part that make_request was given, and the page numbers that its spans refer to.
class PartInput {
 public:
  PartInput(nb::handle object, std::size_t number) {
    const nb::object part = nb::borrow(object);
    const bool is_sequence = PyTuple_Check(object.ptr()) != 0 || PyList_Check(object.ptr()) != 0;
    const std::size_t length = is_sequence ? nb::len(part) : 0;
    if ((length != 2 && length != 4) || !nb::isinstance<PageList>(part[0]) ||
        !nb::isinstance<PageList>(part[1]))
      raise_invalid("part " + std::to_string(number) + " is " + shown(object) +
                    ": give (local, remote) or (local, remote, local_index, remote_index), where local and "
                    "remote are PageLists");
    const auto list = [&](int side) { return nb::cast<PageList>(part[side]); };
    part_.emplace(RequestPart{list(0), list(1)});
    if (length == 2 || (part[2].is_none() && part[3].is_none())) return;
    part_->local_index = local_.numbers(part[2], "local_index", part_->local.count());
    part_->remote_index = remote_.numbers(part[3], "remote_index", part_->remote.count());
  }
  PartInput(const PartInput&) = delete;
  PartInput& operator=(const PartInput&) = delete;

  [[nodiscard]] const RequestPart& part() const { return *part_; }

 private:
  struct Side {
    std::span<const std::uint32_t> numbers(const nb::object& given, const char* what, std::uint64_t count) {
      input = given.is_none() ? all_indices(count) : to_indices(given, what);
      const auto found = input.narrow(what, room);
      return found.data() != nullptr ? found : std::span<const std::uint32_t>(&none, 0);
    }
    IndexInput input;
    std::vector<std::uint32_t> room;
    std::uint32_t none = 0;
  };

  std::optional<RequestPart> part_;
  Side local_, remote_;
};

nb::object make_request_of_parts(PyAgent& self, const std::string& op, nb::handle parts,
                                 const Names& backends, const Seconds& timeout, nb::handle cls) {
  const Op operation = to_op(op);
  const RequestOptions options = request_options(backends, timeout);
  const nb::handle type = request_type(cls);
  std::deque<PartInput> inputs;
  std::vector<RequestPart> given;
  for (const nb::handle part : nb::borrow(parts))
    given.push_back(inputs.emplace_back(part, inputs.size()).part());
  return in_python(
      type, self.ask([&](headrace::Agent& agent) { return agent.make_request(operation, given, options); }));
}

/// Makes a request, posts it and waits. An exception of a signal handler is raised only when the memory is
/// quiet.
std::unique_ptr<PyRequest> transfer(PyAgent& self, Op op, const std::string& peer, nb::handle local_pages,
                                    nb::handle remote_pages, nb::handle notification, const Seconds& timeout,
                                    const Names& backends, std::optional<Immediate> immediate) {
  const PageList local = page_list(self, local_pages, nullptr);
  const PageList remote = page_list(self, remote_pages, &peer);
  PostOptions post;
  post.timeout = to_timeout(timeout);
  post.immediate = immediate;
  if (!notification.is_none()) post.notification = from_bytes(notification, "the notification");
  const RequestOptions options = request_options(backends, timeout);
  const auto start = std::chrono::steady_clock::now();
  auto request = std::make_unique<PyRequest>(self.ask([&](headrace::Agent& agent) {
    return agent.make_request(op, {local, remote}, options);
  }));
  const auto post_when_there_is_room = [&](std::chrono::nanoseconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    return without_gil([&] {
      for (;;) {
        const Status status = request->request().post(post);
        if (status.code != Code::would_block || std::chrono::steady_clock::now() >= until) return status;
        (void)request->request().poll();
        std::this_thread::yield();
      }
    });
  };
  const Status posted = wait_in_slices(post.timeout, post_when_there_is_room,
                                       [](Status status) { return status.code == Code::would_block; });
  if (!posted.ok()) request->raise_refusal(posted, post);
  try {
    Timeout left = post.timeout;
    // The request ends by its own deadline. Up to 1 s more it may be canceling; another second for clock
    // errors.
    if (left) *left += std::chrono::seconds(2) - (std::chrono::steady_clock::now() - start);
    request->wait(left);
  } catch (nb::python_error&) {
    if (!request->ended()) request->abandon();
    throw;
  }
  return request;
}

constexpr const char* prepare_doc =
    "Checks and resolves a list of pages once. Requests then choose pages of it by index.\n\n"
    "pages: one of\n"
    "- a list of tuples (address, length), or of tuples (region, offset, length); region is a\n"
    "  Region, a Memory or a region's id;\n"
    "- an N x 2 array (address, length) or N x 3 array (region's id, offset, length), uint64 or\n"
    "  int64, contiguous, read without a copy;\n"
    "- UniformPages or RegionPages;\n"
    "- a Region, an array or a tensor, or a list of these: the memory of each is one page.\n"
    "peer: the owner of the pages; None: this agent. Pages of a peer are given by region. The own\n"
    "name stands for the remote list of a request inside this agent.\n"
    "view: a PageView, the shape of every page; None: pages are contiguous. With a view a page's\n"
    "length is that of the view; UniformPages may have 0.\n"
    "Units: bytes. Owns: keeps none of the arguments.\n"
    "Errors: InvalidArgument (no pages; a page of length 0, the error has its index; a view that\n"
    "is not possible, the text says why), NotFound (memory that is not registered, with the page's\n"
    "index).";

constexpr const char* transfer_doc_tail =
    "It makes a request, posts it and waits for its end.\n"
    "local_pages, remote_pages: PageLists, or what prepare takes; page i of one goes with page i\n"
    "of the other.\n"
    "notification: bytes for the peer, delivered after its pages are written (write) or read\n"
    "(read).\n"
    "timeout: seconds; after them the request is canceled and TimedOut is raised.\n"
    "backends: only these; None: the best that is available.\n"
    "immediate, scope: as in Request.post; the peer counts the post.\n"
    "Returns: the request, which is done; see its times and explain().\n"
    "Errors: those of prepare, make_request, Request.post and Request.wait.";

}  // namespace

void bind_agent_requests(nb::class_<PyAgent>& agent) {
  static const std::string read_doc =
      std::string("Reads pages of a peer into local pages.\n\n") + transfer_doc_tail;
  static const std::string write_doc =
      std::string("Writes local pages to pages of a peer.\n\n") + transfer_doc_tail;
  agent
      .def(
          "prepare",
          [](PyAgent& self, nb::handle pages, const std::optional<Text>& peer, const PageView* view) {
            return prepare(self, pages, peer ? &peer->str() : nullptr, view);
          },
          nb::arg("pages").none(), nb::arg("peer") = nb::none(), nb::arg("view").none() = nb::none(),
          nb::sig(
              "def prepare(self, pages: object, peer: str | None = None, view: PageView | None = None) -> "
              "PageList"),
          prepare_doc)
      .def("make_request", &make_request, nb::arg("op"), nb::arg("local"), nb::arg("remote"),
           nb::arg("local_index") = nb::none(), nb::arg("remote_index") = nb::none(),
           nb::arg("backends") = nb::none(), nb::arg("timeout") = nb::none(), nb::arg("cls") = nb::none(),
           nb::sig("def make_request(self, op: typing.Literal['read', 'write'], local: PageList, remote: "
                   "PageList, local_index: object = None, remote_index: object = None, backends: "
                   "collections.abc.Sequence[str] | None = None, timeout: float | None = None, cls: "
                   "type[Request] | None = None) -> Request"),
           "Makes a request that moves page local_index[i] to or from page remote_index[i].\n\n"
           "local, remote: PageLists; remote has pages of a peer or of this agent.\n"
           "op: \"read\" (local <- remote) or \"write\" (local -> remote).\n"
           "local_index, remote_index: one-dimensional arrays of integers (uint32, int32, and 64 bits are\n"
           "read without a copy) or lists of ints; None: all pages in order.\n"
           "backends: only these; None: the best that is available.\n"
           "timeout: seconds; each post is canceled after this time. None: no limit.\n"
           "cls: the class of the result, a subclass of Request that adds attributes; its __init__ is not\n"
           "called. None: Request.\n"
           "Errors: InvalidArgument (counts or lengths differ; an index that its list does not have; the\n"
           "error names it), NotFound (a region was revoked), NotSupported (no common path; the text has\n"
           "the answer of each backend).")
      .def(
          "make_request", &make_request_of_parts, nb::arg("op"), nb::arg("parts"), nb::kw_only(),
          nb::arg("backends") = nb::none(), nb::arg("timeout") = nb::none(), nb::arg("cls") = nb::none(),
          nb::sig("def make_request(self, op: typing.Literal['read', 'write'], parts: "
                  "collections.abc.Iterable[tuple[PageList, PageList] | tuple[PageList, PageList, object, "
                  "object]], *, backends: collections.abc.Sequence[str] | None = None, timeout: float | None "
                  "= None, cls: type[Request] | None = None) -> Request"),
          "Makes a request to or from several peers: one post, one deadline, one completion.\n\n"
          "parts: tuples (local, remote) or (local, remote, local_index, remote_index), as above; each\n"
          "has another peer. Each part takes its own best path and moves independently of the others.\n"
          "The request ends when the last part has ended. It fails with the error of the first part that\n"
          "failed; Request.parts tells which peers have their pages. Notification and stream of a post\n"
          "go with each part.\n"
          "Errors: as above, with the part's number; InvalidArgument (no part; two parts of one peer).")
      .def(
          "read",
          [](PyAgent& self, const std::string& peer, nb::handle local, nb::handle remote,
             nb::handle notification, const Seconds& timeout, const Names& backends,
             const std::optional<std::uint32_t>& immediate, std::uint32_t scope) {
            return transfer(self, Op::read, peer, local, remote, notification, timeout, backends,
                            to_immediate(immediate, scope));
          },
          nb::arg("peer"), nb::arg("local_pages"), nb::arg("remote_pages"),
          nb::arg("notification") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("backends") = nb::none(), nb::kw_only(), nb::arg("immediate") = nb::none(),
          nb::arg("scope") = 0,
          nb::sig("def read(self, peer: str, local_pages: object, remote_pages: object, notification: bytes "
                  "| None = None, timeout: float | None = None, backends: collections.abc.Sequence[str] | "
                  "None = None, *, immediate: int | None = None, scope: int = 0) -> Request"),
          read_doc.c_str())
      .def(
          "write",
          [](PyAgent& self, const std::string& peer, nb::handle local, nb::handle remote,
             nb::handle notification, const Seconds& timeout, const Names& backends,
             const std::optional<std::uint32_t>& immediate, std::uint32_t scope) {
            return transfer(self, Op::write, peer, local, remote, notification, timeout, backends,
                            to_immediate(immediate, scope));
          },
          nb::arg("peer"), nb::arg("local_pages"), nb::arg("remote_pages"),
          nb::arg("notification") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("backends") = nb::none(), nb::kw_only(), nb::arg("immediate") = nb::none(),
          nb::arg("scope") = 0,
          nb::sig("def write(self, peer: str, local_pages: object, remote_pages: object, notification: bytes "
                  "| None = None, timeout: float | None = None, backends: collections.abc.Sequence[str] | "
                  "None = None, *, immediate: int | None = None, scope: int = 0) -> Request"),
          write_doc.c_str());
}

}  // namespace headrace::python
