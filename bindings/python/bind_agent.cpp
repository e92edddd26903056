// SPDX-License-Identifier: Apache-2.0
// <headrace/agent.hpp>
#include <headrace/agent.hpp>
#include <headrace/tensor.hpp>

#include "bindings/python/agent_handle.hpp"
#include "bindings/python/array_view.hpp"
#include "bindings/python/binding.hpp"
#include "bindings/python/memory_handles.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/request_handle.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <thread>

namespace headrace::python {
namespace {

using OptionDict = std::optional<nb::dict>;

constexpr double ten_seconds = 10;

// Memory

/// The arguments of `register`: ranges, and the objects that keep each in place.
struct Registration {
  std::vector<MemoryRange> ranges;
  std::vector<std::shared_ptr<const void>> keepers;
  std::optional<bool> writable;  ///< nullopt: as each object says

  void reserve(std::size_t count) {
    ranges.reserve(count);
    keepers.reserve(count);
  }
  void add(nb::handle object) {
    const std::size_t i = ranges.size();
    if (nb::isinstance<MemoryRange>(object)) {
      push(nb::cast<MemoryRange>(object), nullptr);
    } else if (PyTuple_Check(object.ptr()) != 0 && PyTuple_Size(object.ptr()) == 2) {
      MemoryRange range;
      range.address = reinterpret_cast<void*>(to_u64(PyTuple_GetItem(object.ptr(), 0), "the address", i));
      range.length_bytes = to_u64(PyTuple_GetItem(object.ptr(), 1), "the length", i);
      push(range, nullptr);
    } else if (auto view = ArrayView::open(object)) {
      if (!view->is_dense())
        raise_invalid("a " + view->described() +
                          " has gaps and cannot be registered: register the whole array that it is a view of",
                      i);
      MemoryRange range;
      range.address = view->data;
      range.length_bytes = view->length_bytes;
      range.kind = view->kind;
      range.device = view->device;
      range.writable = view->writable;
      push(range, std::move(view));
    } else {
      raise_invalid(
          shown(object) +
              " cannot be registered: give an object with the buffer protocol or DLPack, a tuple (address, "
              "length), a MemoryRange, or a list of these",
          i);
    }
  }

 private:
  void push(MemoryRange range, std::shared_ptr<const void> keeper) {
    if (writable == true && !range.writable)
      raise_invalid("the object is read-only: leave `writable` out, or register a writable object",
                    ranges.size());
    range.writable = writable.value_or(range.writable);
    ranges.push_back(std::move(range));
    keepers.push_back(std::move(keeper));
  }
};

/// Registers all or none. Each object is released when its own region is deregistered.
std::vector<PyRegion> register_all(PyAgent& self, Registration what, RegisterOptions options) {
  auto group = std::make_shared<HeldGroup>();
  group->members = std::move(what.keepers);
  options.keep_alive = group;
  std::vector<Region> regions = self.ask([&](headrace::Agent& agent) {
    return agent.register_memory(std::span<const MemoryRange>(what.ranges), options);
  });
  std::vector<PyRegion> made;
  made.reserve(regions.size());
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const std::uint32_t id = regions[i].id.value;
    if (group->members[i]) self.groups[id] = {group, i};
    made.push_back({std::move(regions[i])});
  }
  return made;
}

RegisterOptions register_options(const std::string& name, nb::handle note, const Names& backends) {
  RegisterOptions options;
  options.name = name;
  options.note = from_bytes(note, "the note");
  options.backends = to_names(backends);
  return options;
}

nb::object register_memory(PyAgent& self, nb::handle object, const std::string& name, nb::handle note,
                           const Names& backends, std::optional<bool> writable) {
  Registration what;
  what.writable = writable;
  const bool many = PyList_Check(object.ptr()) != 0;
  if (many) {
    what.reserve(static_cast<std::size_t>(PyList_Size(object.ptr())));
    for (Py_ssize_t i = 0; i < PyList_Size(object.ptr()); ++i)
      what.add(nb::borrow(PyList_GetItem(object.ptr(), i)));
  } else {
    what.add(object);
  }
  std::vector<PyRegion> regions = register_all(self, std::move(what), register_options(name, note, backends));
  if (!many) return nb::cast(std::move(regions[0]));
  nb::list list;
  for (PyRegion& region : regions) list.append(nb::cast(std::move(region)));
  return list;
}

void deregister(PyAgent& self, nb::handle regions, const Seconds& timeout) {
  const std::vector<RegionId> ids = to_region_ids(regions);
  const Timeout time = to_timeout(timeout);
  self.ask([&](headrace::Agent& agent) { return agent.deregister(std::span<const RegionId>(ids), time); });
  for (const RegionId id : ids) {
    const auto found = self.groups.find(id.value);
    if (found == self.groups.end()) continue;
    const auto [weak, member] = found->second;
    self.groups.erase(found);
    if (const auto group = weak.lock()) group->members[member].reset();
  }
  free_laid_aside();
}

/// The device that uses a mapping: a GPU by its number, or by its name as torch writes it; None: the CPU, -1.
int to_ordinal(nb::handle device) {
  if (device.is_none()) return -1;
  int ordinal = -1;
  if (PyIndex_Check(device.ptr()) != 0 && nb::try_cast(nb::object(device.attr("__index__")()), ordinal))
    return ordinal;
  const Device named = take(device_from_text(to_text(nb::str(device), "the device")));
  return named.kind == Device::Kind::cpu ? -1 : named.index;
}

PyMemory allocate(PyAgent& self, std::size_t length, const std::string& kind, int numa_node, bool huge_pages,
                  const std::string& name, nb::handle note, const Names& backends, bool writable,
                  int near_gpu) {
  AllocateOptions options;
  options.writable = writable;
  options.kind = take(kind_from_name(kind));
  options.numa_node = numa_node;
  options.near_gpu = near_gpu;
  options.huge_pages = huge_pages;
  options.registration = register_options(name, note, backends);
  std::shared_ptr<std::byte> storage;
  Region region = self.ask([&](headrace::Agent& agent) -> Result<Region> {
    auto allocated = agent.allocate(length, options);
    if (!allocated) return allocated;
    auto kept = agent.storage(allocated->id);
    if (!kept) return std::move(kept).error();
    storage = *std::move(kept);
    return allocated;
  });
  return {{std::move(region)}, std::move(storage)};
}

nb::list own_regions(PyAgent& self) {
  nb::list list;
  for (Region& region : self.call([](headrace::Agent& agent) { return agent.regions(); }))
    list.append(nb::cast(PyRegion{std::move(region)}));
  return list;
}

nb::object query(PyAgent& self, const MemoryRange& what, const std::string& backend) {
  const auto known = self.ask([&](headrace::Agent& agent) { return agent.query(what, backend); });
  if (!known) return nb::none();
  nb::dict answer;
  for (const auto& [name, value] : *known) answer[to_str(name)] = to_str(value);
  return answer;
}

// Peers and metadata

ExportOptions export_options(nb::handle regions, bool connection_info, std::uint64_t since_version) {
  ExportOptions options;
  options.connection_info = connection_info;
  options.since_version = since_version;
  if (!regions.is_none()) {
    options.regions = to_region_ids(regions);
    options.regions_none = options.regions.empty();
  }
  return options;
}

nb::list to_list(std::vector<PeerInfo> peers) {
  nb::list list;
  for (PeerInfo& peer : peers) list.append(nb::cast(std::move(peer)));
  return list;
}

nb::list to_list(std::vector<OptionInfo> options) {
  nb::list list;
  for (OptionInfo& option : options) list.append(nb::cast(std::move(option)));
  return list;
}

nb::list to_list(std::vector<BackendInfo> backends) {
  nb::list list;
  for (BackendInfo& backend : backends) list.append(nb::cast(std::move(backend)));
  return list;
}

nb::list peer_regions(PyAgent& self, std::string_view peer) {
  nb::list list;
  for (Region& region : self.ask([&](headrace::Agent& agent) { return agent.peer_regions(peer); }))
    list.append(nb::cast(PyRegion{std::move(region)}));
  return list;
}

void check_callback(const nb::object& callback) {
  if (!callback.is_none() && PyCallable_Check(callback.ptr()) == 0)
    raise_invalid(shown(callback) + " cannot be called: give a function, or None");
}

std::string_view event_name(PeerEvent::Kind kind) {
  switch (kind) {
    case PeerEvent::Kind::joined:
      return "joined";
    case PeerEvent::Kind::updated:
      return "updated";
    case PeerEvent::Kind::left:
      break;
  }
  return "left";
}

void watch_namespace(PyAgent& self, nb::object callback) {
  check_callback(callback);
  auto callable = callback.is_none() ? nullptr : hold<Callable>(std::move(callback));
  std::function<void(const PeerEvent&)> event;
  if (callable) {
    event = [callable](const PeerEvent& e) {
      call_back(*callable, [&] { return nb::make_tuple(to_str(event_name(e.kind)), to_str(e.peer)); });
    };
  }
  self.ask([&](headrace::Agent& agent) { return agent.watch_namespace(std::move(event)); });
  self.namespace_callback = std::move(callable);
  free_laid_aside();
}

// Pages and requests

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
                                    const Names& backends) {
  const PageList local = page_list(self, local_pages, nullptr);
  const PageList remote = page_list(self, remote_pages, &peer);
  PostOptions post;
  post.timeout = to_timeout(timeout);
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
  if (!posted.ok()) request->raise_refusal(posted);
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

// Notifications

nb::tuple to_tuple(const Notification& notification) {
  return nb::make_tuple(to_str(notification.peer), to_bytes(notification.payload));
}

NotificationFilter to_filter(const std::string& peer, nb::handle prefix) {
  return {peer, from_bytes(prefix, "the prefix")};
}

nb::list take_notifications(PyAgent& self, const std::string& peer, nb::handle prefix) {
  const NotificationFilter filter = to_filter(peer, prefix);
  nb::list list;
  for (const Notification& n :
       self.call([&](headrace::Agent& agent) { return agent.take_notifications(filter); }))
    list.append(to_tuple(n));
  return list;
}

nb::tuple wait_notification(PyAgent& self, const Seconds& timeout, const std::string& peer,
                            nb::handle prefix) {
  const NotificationFilter filter = to_filter(peer, prefix);
  // Each slice gets the agent again, so that a close() on another thread is noticed.
  const auto wait = [&](std::chrono::nanoseconds time) {
    return self.call([&](headrace::Agent& agent) { return agent.wait_notification(time, filter); });
  };
  return to_tuple(take(wait_in_slices(to_timeout(timeout), wait,
                                      [](const auto& got) { return got.code() == Code::timed_out; })));
}

void on_notification(PyAgent& self, nb::object callback) {
  check_callback(callback);
  auto callable = callback.is_none() ? nullptr : hold<Callable>(std::move(callback));
  std::function<void(Notification)> taken;
  if (callable) {
    taken = [callable](const Notification& n) { call_back(*callable, [&] { return to_tuple(n); }); };
  }
  self.call([&](headrace::Agent& agent) {
    agent.on_notification(std::move(taken));
    return true;
  });
  self.notification_callback = std::move(callable);
  free_laid_aside();
}

// For the garbage collector: a callback that uses its agent is a cycle.

int agent_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const PyAgent& agent = *nb::inst_ptr<PyAgent>(self);
  for (const auto* callback : {&agent.notification_callback, &agent.namespace_callback})
    if (*callback && !Callable::is_pending(*callback)) Py_VISIT((*callback)->object.ptr());
  return 0;
}

int agent_clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<PyAgent>(self)->close();
  return 0;
}

PyType_Slot agent_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&agent_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(&agent_clear)},
                             {0, nullptr}};

// The classes

void bind_values(nb::module_& module) {
  nb::class_<ImportReport>(module, "ImportReport", "The result of an import of metadata.")
      .def_prop_ro(
          "peer", [](const ImportReport& self) { return to_str(self.peer); }, "The name of the peer.")
      .def_ro("incarnation", &ImportReport::incarnation,
              "The peer's incarnation: a random number, new at each start.")
      .def_ro("version", &ImportReport::version, "The version of the peer's metadata after the import.")
      .def_ro("regions", &ImportReport::regions, "The number of regions of this peer that are known now.")
      .def_ro("restarted", &ImportReport::restarted,
              "Whether the peer has restarted: requests and lists of its earlier incarnation raise PeerLost.")
      .def("__repr__", [](const ImportReport& self) {
        return nb::str("ImportReport(peer={!r}, incarnation={}, version={}, regions={}, restarted={})")
            .format(to_str(self.peer), self.incarnation, self.version, self.regions, self.restarted);
      });

  nb::class_<PeerInfo>(module, "PeerInfo", "What this agent knows of a peer.")
      .def_prop_ro(
          "name", [](const PeerInfo& self) { return to_str(self.name); }, "The peer's name.")
      .def_ro("incarnation", &PeerInfo::incarnation,
              "The peer's incarnation: a random number, new at each start.")
      .def_ro("version", &PeerInfo::version, "The version of its metadata.")
      .def_ro("regions", &PeerInfo::regions, "The number of its regions that are known.")
      .def_ro("connected", &PeerInfo::connected, "Whether a link to it is ready.")
      .def_ro("lost", &PeerInfo::lost, "Whether it died, left or cannot be reached.")
      .def_prop_ro(
          "backends", [](const PeerInfo& self) { return to_strs(self.backends); },
          nb::sig("def backends(self) -> list[str]"), "The backends that both agents have.")
      .def_prop_ro(
          "detail", [](const PeerInfo& self) { return to_str(self.detail); },
          "Why it was lost, or the state of each backend.")
      .def("__repr__", [](const PeerInfo& self) {
        return nb::str(
                   "PeerInfo(name={!r}, incarnation={}, version={}, regions={}, connected={}, lost={}, "
                   "backends={})")
            .format(to_str(self.name), self.incarnation, self.version, self.regions, self.connected,
                    self.lost, to_strs(self.backends));
      });

  nb::class_<OptionInfo>(module, "OptionInfo", "An option and its current value.")
      .def_prop_ro(
          "name", [](const OptionInfo& self) { return to_str(self.name); },
          "\"check\"; \"tcp.sockets\" for an option of a backend.")
      .def_prop_ro(
          "default_value", [](const OptionInfo& self) { return to_str(self.default_value); },
          "The value if the option is not set.")
      .def_prop_ro(
          "value", [](const OptionInfo& self) { return to_str(self.value); },
          "The current value; \"(set)\" for a secret.")
      .def_prop_ro(
          "unit", [](const OptionInfo& self) { return to_str(self.unit); }, "The unit of the value.")
      .def_prop_ro(
          "sentence", [](const OptionInfo& self) { return to_str(self.sentence); }, "What the option does.")
      .def_prop_ro(
          "source", [](const OptionInfo& self) { return to_str(self.source); },
          "Where the value comes from: \"default\", \"file\", \"environment\" or \"caller\".")
      .def("__repr__", [](const OptionInfo& self) {
        return nb::str("OptionInfo(name={!r}, value={!r}, source={!r})")
            .format(to_str(self.name), to_str(self.value), to_str(self.source));
      });

  nb::class_<BackendInfo>(module, "BackendInfo",
                          "A backend that was found: its abilities, or why it did not load.")
      .def_prop_ro(
          "name", [](const BackendInfo& self) { return to_str(self.name); }, "\"shm\", \"tcp\", ...")
      .def_prop_ro(
          "version", [](const BackendInfo& self) { return to_str(self.version); }, "The backend's version.")
      .def_prop_ro(
          "path", [](const BackendInfo& self) { return to_str(self.path); },
          "The shared object, or \"linked in\".")
      .def_ro("loaded", &BackendInfo::loaded, "Whether it can be used.")
      .def_prop_ro(
          "refusal", [](const BackendInfo& self) { return to_str(self.refusal); },
          "Why it did not load, and what to do; empty if it loaded.")
      .def_prop_ro(
          "kinds",
          [](const BackendInfo& self) {
            nb::list kinds;
            for (const MemoryKind kind : self.kinds) kinds.append(to_str(kind_name(kind)));
            return kinds;
          },
          nb::sig("def kinds(self) -> list[str]"), "The kinds of memory that it takes.")
      .def_ro("local", &BackendInfo::local, "Whether it moves pages inside one agent.")
      .def_ro("remote", &BackendInfo::remote, "Whether it moves pages between agents.")
      .def_ro("notifications", &BackendInfo::notifications, "Whether it carries notifications.")
      .def_ro("mapping", &BackendInfo::mapping, "Whether Agent.map can use it.")
      .def_ro("query", &BackendInfo::query, "Whether Agent.query can ask it.")
      .def_prop_ro(
          "options", [](const BackendInfo& self) { return to_list(self.options); },
          nb::sig("def options(self) -> list[OptionInfo]"), "The options of the backend.")
      .def("__repr__", [](const BackendInfo& self) {
        return nb::str("BackendInfo(name={!r}, version={!r}, loaded={}, refusal={!r})")
            .format(to_str(self.name), to_str(self.version), self.loaded, to_str(self.refusal));
      });
}

void bind_memory_methods(nb::class_<PyAgent>& agent) {
  agent
      .def(
          "register", &register_memory, nb::arg("obj").none(), nb::arg("name") = "",
          nb::arg("note") = nb::bytes("", 0), nb::arg("backends") = nb::none(),
          nb::arg("writable") = nb::none(),
          nb::sig("def register(self, obj: object, name: str = '', note: bytes = b'', backends: "
                  "collections.abc.Sequence[str] | None = None, writable: bool | None = None) -> typing.Any"),
          "Makes memory reachable for peers. Returns its Region; for a list a list of Regions.\n\n"
          "obj: an object with the buffer protocol (bytearray, mmap, NumPy array) or DLPack (torch\n"
          "tensor), a tuple (address, length), a MemoryRange, or a list of these. Of a list all are\n"
          "registered or none. An array may have any order of dimensions but no gaps. Read-only objects\n"
          "(bytes) are taken; a request that would write to them is refused, here and at peers.\n"
          "name: unique in the agent; for a list \"/0\", \"/1\", ... is appended.\n"
          "note: bytes that go with the metadata, up to 64 KiB.\n"
          "backends: only these; None: all that take the kind.\n"
          "writable: False: requests can only read the memory. None: as the object says.\n"
          "Owns: the object is kept alive and in place until its region is deregistered or the agent is\n"
          "closed. For memory given by address the caller must do this.\n"
          "Errors: InvalidArgument (empty, gaps, name in use), NotSupported (no backend takes this\n"
          "kind).")
      .def("deregister", &deregister, nb::arg("regions"), nb::arg("timeout") = ten_seconds,
           nb::sig("def deregister(self, regions: Region | Memory | int | collections.abc.Sequence[Region | "
                   "Memory | int], timeout: float | None = 10.0) -> None"),
           "Withdraws regions: no peer can reach them after the return.\n\n"
           "Revokes them at every peer that knows them, and waits until each has confirmed or is lost.\n"
           "timeout: seconds; None: no limit.\n"
           "Errors: NotFound, WouldBlock (requests of this agent are in flight and timeout is 0),\n"
           "TimedOut (a peer did not answer: the regions stay).")
      .def("allocate", &allocate, nb::arg("length_bytes"), nb::arg("kind") = "dram",
           nb::arg("numa_node") = -1, nb::arg("huge_pages") = false, nb::arg("name") = "",
           nb::arg("note") = nb::bytes("", 0), nb::arg("backends") = nb::none(), nb::arg("writable") = true,
           nb::arg("near_gpu") = -1,
           nb::sig("def allocate(self, length_bytes: int, kind: str = 'dram', numa_node: int = -1, "
                   "huge_pages: bool = False, name: str = '', note: bytes = b'', backends: "
                   "collections.abc.Sequence[str] | None = None, writable: bool = True, near_gpu: int = -1) "
                   "-> Memory"),
           "Allocates and registers memory that peers on this host map: the fastest kind.\n\n"
           "The memory is zero-filled and page-aligned.\n"
           "kind: \"dram\". name, note, backends: as in register.\n"
           "numa_node: -1: the node of near_gpu, or of the thread that touches a memory page first.\n"
           "huge_pages: use pages of 2 MiB.\n"
           "writable: False: requests and peers can only read it; the Memory object stays writable.\n"
           "near_gpu: CUDA ordinal of a GPU; takes memory of its NUMA node if the firmware names that\n"
           "node and the system allows the choice.\n"
           "Owns: the Memory object and its views keep the memory; the region belongs to the agent until\n"
           "it is deregistered.\n"
           "Errors: InvalidArgument (length 0; no such node, the text lists them; no such GPU), Exhausted\n"
           "(not enough memory or huge pages), NotSupported (kind; near_gpu without a driver).")
      .def(
          "map",
          [](PyAgent& self, const std::string& peer, nb::handle region, const Seconds& timeout,
             nb::handle device) {
            const RegionId id = to_region_id(region);
            const Timeout time = to_timeout(timeout);
            const int user = to_ordinal(device);
            return PyMapping(self.ask([&](headrace::Agent& a) { return a.map(peer, id, time, user); }));
          },
          nb::arg("peer"), nb::arg("region"), nb::arg("timeout") = ten_seconds,
          nb::arg("device") = nb::none(),
          nb::sig(
              "def map(self, peer: str, region: Region | int, timeout: float | None = 10.0, device: object = "
              "None) -> Mapping"),
          "Maps a peer's region into this process. Returns a Mapping.\n\n"
          "For the CPU the region must be from the peer's allocate; the kernels of a GPU can also use\n"
          "the peer's GPU memory.\n"
          "device: the GPU of this process that will use it: 1, \"cuda:1\" or a torch.device (\"cuda\"\n"
          "is GPU 0); None: the CPU. timeout: seconds.\n"
          "Errors: NotFound, NotSupported (another host; host memory that was registered; no way from\n"
          "this GPU; the text has the answer of each backend), InvalidArgument (no such GPU; GPU memory\n"
          "for the CPU), PeerLost, TimedOut.")
      .def("regions", &own_regions, nb::sig("def regions(self) -> list[Region]"),
           "The regions that are registered now.")
      .def("query", &query, nb::arg("what"), nb::arg("backend"),
           nb::sig("def query(self, what: MemoryRange, backend: str) -> dict[str, str] | None"),
           "Asks a backend about a file, block device or object. Returns None if it does not exist.\n\n"
           "Else returns what the backend knows of it; key \"bytes\" is its length.\n"
           "Errors: NotFound (no such backend is open), NotSupported (the backend does not have this\n"
           "kind; the text names those that do), InvalidArgument (memory, or no name).");
  agent.attr("register_memory") = agent.attr("register");
}

void bind_metadata_methods(nb::class_<PyAgent>& agent) {
  agent
      .def(
          "export_metadata",
          [](PyAgent& self, nb::handle regions, bool connection_info, std::uint64_t since_version) {
            const ExportOptions options = export_options(regions, connection_info, since_version);
            return to_bytes(self.ask([&](headrace::Agent& a) { return a.export_metadata(options); }));
          },
          nb::arg("regions") = nb::none(), nb::arg("connection_info") = true, nb::arg("since_version") = 0,
          nb::sig("def export_metadata(self, regions: collections.abc.Sequence[Region | Memory | int] | None "
                  "= None, connection_info: bool = True, since_version: int = 0) -> bytes"),
          "Returns the metadata of this agent, for import_metadata of a peer.\n\n"
          "regions: only these; []: no regions; None: all regions.\n"
          "connection_info: include the addresses of this agent; later exports may leave them out.\n"
          "since_version: only what changed after this metadata_version; 0: everything.\n"
          "Errors: NotFound (a region), InvalidArgument (a version that does not exist yet).")
      .def_prop_ro(
          "metadata_version",
          [](PyAgent& self) { return self.call([](headrace::Agent& a) { return a.metadata_version(); }); },
          "Rises with each registration and deregistration.")
      .def(
          "import_metadata",
          [](PyAgent& self, nb::handle metadata) {
            const std::string bytes = from_bytes(metadata, "the metadata");
            return self.ask([&](headrace::Agent& a) { return a.import_metadata(bytes); });
          },
          nb::arg("metadata"), nb::sig("def import_metadata(self, metadata: bytes) -> ImportReport"),
          "Imports the result of a peer's export_metadata.\n\n"
          "The connection information must come first; parts and updates may come in any order after it.\n"
          "Errors: Corrupt (the text says where), InvalidArgument (metadata of this agent; another\n"
          "protocol version).")
      .def_prop_ro(
          "listen_address",
          [](PyAgent& self) {
            return to_str(self.call([](headrace::Agent& a) { return a.listen_address(); }));
          },
          "The address for metadata queries, as \"127.0.0.1:40213\"; empty if the agent does not listen.")
      .def(
          "fetch_metadata",
          [](PyAgent& self, const std::string& address, const Seconds& timeout, const std::string& label) {
            const Timeout time = to_timeout(timeout);
            return self.ask([&](headrace::Agent& a) { return a.fetch_metadata(address, time, label); });
          },
          nb::arg("address"), nb::arg("timeout") = ten_seconds, nb::arg("label") = "",
          nb::sig("def fetch_metadata(self, address: str, timeout: float | None = 10.0, label: str = '') -> "
                  "ImportReport"),
          "Asks the agent that listens at \"host:port\" for its metadata and imports it.\n\n"
          "timeout: seconds. label: empty; only stores have labels.\n"
          "Errors: PeerLost (no agent answers there), TimedOut, Corrupt, InvalidArgument (address).")
      .def(
          "send_metadata",
          [](PyAgent& self, const std::string& address, nb::handle regions, bool connection_info,
             std::uint64_t since_version, const Seconds& timeout) {
            const ExportOptions options = export_options(regions, connection_info, since_version);
            const Timeout time = to_timeout(timeout);
            self.ask([&](headrace::Agent& a) { return a.send_metadata(address, options, time); });
          },
          nb::arg("address"), nb::arg("regions") = nb::none(), nb::arg("connection_info") = true,
          nb::arg("since_version") = 0, nb::arg("timeout") = ten_seconds,
          nb::sig("def send_metadata(self, address: str, regions: collections.abc.Sequence[Region | Memory | "
                  "int] | None = None, connection_info: bool = True, since_version: int = 0, timeout: float "
                  "| None = 10.0) -> None"),
          "Sends the metadata of this agent to the agent that listens at \"host:port\".\n\n"
          "regions, connection_info, since_version: as in export_metadata. timeout: seconds.\n"
          "Errors: PeerLost (no agent answers there), TimedOut, InvalidArgument (address).")
      .def(
          "publish",
          [](PyAgent& self, nb::handle regions, bool connection_info, const std::string& label) {
            const ExportOptions options = export_options(regions, connection_info, 0);
            self.ask([&](headrace::Agent& a) { return a.publish(options, label); });
          },
          nb::arg("regions") = nb::none(), nb::arg("connection_info") = true, nb::arg("label") = "",
          nb::sig("def publish(self, regions: collections.abc.Sequence[Region | Memory | int] | None = None, "
                  "connection_info: bool = True, label: str = '') -> None"),
          "Publishes this agent's metadata in the store, again after each change of its regions.\n\n"
          "The entry has a lease that ends with the agent. regions, connection_info: as in\n"
          "export_metadata. label: names one of several entries of an agent.\n"
          "Errors: InvalidArgument (the agent has no store), BackendFailed (the store).")
      .def(
          "unpublish", [](PyAgent& self) { self.ask([](headrace::Agent& a) { return a.unpublish(); }); },
          "Removes the metadata of this agent from the store.")
      .def(
          "find",
          [](PyAgent& self, const std::string& peer, const Seconds& timeout, const std::string& label) {
            const Timeout time = to_timeout(timeout);
            return self.ask([&](headrace::Agent& a) { return a.find(peer, time, label); });
          },
          nb::arg("peer"), nb::arg("timeout") = ten_seconds, nb::arg("label") = "",
          nb::sig("def find(self, peer: str, timeout: float | None = 10.0, label: str = '') -> ImportReport"),
          "Looks up a peer in the store by name and imports its metadata.\n\n"
          "timeout: seconds. label: as the peer gave it to publish.\n"
          "Errors: NotFound (no agent of that name), TimedOut, InvalidArgument (the agent has no store).")
      .def(
          "list_namespace",
          [](PyAgent& self, const Seconds& timeout) {
            const Timeout time = to_timeout(timeout);
            return to_strs(self.ask([&](headrace::Agent& a) { return a.list_namespace(time); }));
          },
          nb::arg("timeout") = ten_seconds,
          nb::sig("def list_namespace(self, timeout: float | None = 10.0) -> list[str]"),
          "The names of the agents in the store's namespace.")
      .def("watch_namespace", &watch_namespace, nb::arg("callback").none(),
           nb::sig("def watch_namespace(self, callback: collections.abc.Callable[[str, str], object] | None) "
                   "-> None"),
           "Calls callback(event, peer) for every change in the store's namespace; None ends this.\n\n"
           "event: \"joined\", \"updated\" or \"left\". A new callback replaces the earlier one.\n"
           "Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.\n"
           "Errors: InvalidArgument (the agent has no store).")
      .def(
          "peers",
          [](PyAgent& self) { return to_list(self.call([](headrace::Agent& a) { return a.peers(); })); },
          nb::sig("def peers(self) -> list[PeerInfo]"), "The peers whose metadata has been imported.")
      .def(
          "peer_regions", [](PyAgent& self, const std::string& peer) { return peer_regions(self, peer); },
          nb::arg("peer"), nb::sig("def peer_regions(self, peer: str) -> list[Region]"),
          "The known regions of a peer.\n\n"
          "Errors: NotFound (peer).")
      .def(
          "peer_region",
          [](PyAgent& self, const std::string& peer, const std::string& name) {
            return PyRegion{self.ask([&](headrace::Agent& a) { return a.peer_region(peer, name); })};
          },
          nb::arg("peer"), nb::arg("region_name"),
          "A peer's region, by its name.\n\n"
          "Errors: NotFound (peer, name).")
      .def(
          "connect",
          [](PyAgent& self, const std::string& peer, const Seconds& timeout, const Names& backends) {
            const Timeout time = to_timeout(timeout);
            const std::vector<std::string> names = to_names(backends);
            self.ask([&](headrace::Agent& a) { return a.connect(peer, time, names); });
          },
          nb::arg("peer"), nb::arg("timeout") = ten_seconds, nb::arg("backends") = nb::none(),
          "Connects to a peer before the first request, and waits until the link is ready.\n\n"
          "timeout: seconds. backends: only these; None: all that both have.\n"
          "Errors: NotFound, PeerLost, TimedOut, NotSupported.")
      .def(
          "forget",
          [](PyAgent& self, const std::string& peer) {
            self.ask([&](headrace::Agent& a) { return a.forget(peer); });
          },
          nb::arg("peer"),
          "Cancels the requests in flight with a peer, closes its links and drops its metadata.\n\n"
          "Errors: NotFound.");
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
    "Returns: the request, which is done; see its times and explain().\n"
    "Errors: those of prepare, make_request, Request.post and Request.wait.";

void bind_request_methods(nb::class_<PyAgent>& agent) {
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
             nb::handle notification, const Seconds& timeout, const Names& backends) {
            return transfer(self, Op::read, peer, local, remote, notification, timeout, backends);
          },
          nb::arg("peer"), nb::arg("local_pages"), nb::arg("remote_pages"),
          nb::arg("notification") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("backends") = nb::none(),
          nb::sig("def read(self, peer: str, local_pages: object, remote_pages: object, notification: bytes "
                  "| None = None, timeout: float | None = None, backends: collections.abc.Sequence[str] | "
                  "None = None) -> Request"),
          read_doc.c_str())
      .def(
          "write",
          [](PyAgent& self, const std::string& peer, nb::handle local, nb::handle remote,
             nb::handle notification, const Seconds& timeout, const Names& backends) {
            return transfer(self, Op::write, peer, local, remote, notification, timeout, backends);
          },
          nb::arg("peer"), nb::arg("local_pages"), nb::arg("remote_pages"),
          nb::arg("notification") = nb::none(), nb::arg("timeout") = nb::none(),
          nb::arg("backends") = nb::none(),
          nb::sig("def write(self, peer: str, local_pages: object, remote_pages: object, notification: bytes "
                  "| None = None, timeout: float | None = None, backends: collections.abc.Sequence[str] | "
                  "None = None) -> Request"),
          write_doc.c_str());
}

void bind_notification_methods(nb::class_<PyAgent>& agent) {
  agent
      .def(
          "notify",
          [](PyAgent& self, const std::string& peer, nb::handle payload) {
            const std::string bytes = from_bytes(payload, "the payload");
            self.ask([&](headrace::Agent& a) { return a.notify(peer, bytes); });
          },
          nb::arg("peer"), nb::arg("payload"), nb::sig("def notify(self, peer: str, payload: bytes) -> None"),
          "Sends a notification without a request.\n\n"
          "payload: up to 64 KiB.\n"
          "Errors: WouldBlock (too many notifications wait: retry), NotFound, PeerLost.")
      .def(
          "take_notifications", &take_notifications, nb::arg("peer") = "",
          nb::arg("prefix") = nb::bytes("", 0),
          nb::sig(
              "def take_notifications(self, peer: str = '', prefix: bytes = b'') -> list[tuple[str, bytes]]"),
          "Takes the notifications that have arrived, oldest first, as (peer, payload). Does not wait.\n\n"
          "peer: only notifications of this peer; prefix: only payloads that begin with it; empty: all.")
      .def("wait_notification", &wait_notification, nb::arg("timeout") = nb::none(), nb::arg("peer") = "",
           nb::arg("prefix") = nb::bytes("", 0),
           nb::sig("def wait_notification(self, timeout: float | None = None, peer: str = '', prefix: bytes "
                   "= b'') -> tuple[str, bytes]"),
           "Waits for the next notification. Returns (peer, payload).\n\n"
           "timeout: seconds; None: no limit. peer, prefix: as in take_notifications.\n"
           "Errors: TimedOut, InvalidArgument (the agent was closed).")
      .def("on_notification", &on_notification, nb::arg("callback").none(),
           nb::sig("def on_notification(self, callback: collections.abc.Callable[[str, bytes], object] | "
                   "None) -> None"),
           "Calls callback(peer, payload) for each notification instead of keeping it; None ends this.\n\n"
           "Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.")
      .def(
          "notification_fd",
          [](PyAgent& self) { return self.ask([](headrace::Agent& a) { return a.notification_fd(); }); },
          "A descriptor that is readable while notifications wait. The agent owns it.")
      .def(
          "notifications",
          [](nb::handle self, const std::string& peer, nb::handle prefix) {
            return nb::module_::import_("headrace._asyncio").attr("notifications")(self, peer, prefix);
          },
          nb::arg("peer") = "", nb::arg("prefix") = nb::bytes("", 0),
          nb::sig("def notifications(self, peer: str = '', prefix: bytes = b'') -> "
                  "collections.abc.AsyncIterator[tuple[str, bytes]]"),
          "An asynchronous iterator over notifications, as (peer, payload).\n\n"
          "It ends when the agent is closed.\n"
          "peer, prefix: as in take_notifications; other notifications are not taken.")
      .def(
          "_closing_fd", [](PyAgent& self) { return self.closing_fd(); },
          "A descriptor that becomes readable when the agent is closed; for headrace._asyncio.");
}

}  // namespace

void bind_agent(nb::module_& module) {
  bind_values(module);
  nb::class_<PyAgent> agent(
      module, "Agent", nb::type_slots(agent_slots), nb::is_weak_referenceable(),
      "A named participant: it owns regions, knows peers, and makes the requests that move pages.\n\n"
      "A context manager: leaving it closes the agent. Agents that are open when the interpreter\n"
      "ends are closed then.\n"
      "Threads: any thread may call any method; methods that wait or copy release the GIL.\n"
      "Fork: in a forked child every method raises InvalidArgument.");
  agent
      .def(
          "__init__",
          [](PyAgent* self, const std::string& name, const Names& backends, const std::string& listen,
             const std::string& store, const OptionDict& options) {
            AgentOptions all;
            all.backends = to_names(backends);
            all.listen = listen;
            all.store = store;
            all.options = to_options(options);
            new (self) PyAgent(name, std::move(all));
          },
          nb::arg("name"), nb::arg("backends") = nb::none(), nb::arg("listen") = "", nb::arg("store") = "",
          nb::arg("options") = nb::none(),
          nb::sig("def __init__(self, name: str, backends: collections.abc.Sequence[str] | None = None, "
                  "listen: str = '', store: str = '', options: collections.abc.Mapping[str, str | bool | int "
                  "| float] | None = None) -> None"),
          "Opens an agent.\n\n"
          "name: its name for peers, 1 to 255 bytes.\n"
          "backends: the backends to open; None: all that load on this machine.\n"
          "listen: \"host:port\" for metadata queries; port 0 picks a free one (see listen_address);\n"
          "empty: do not listen.\n"
          "store: \"etcd://host:port[,host:port...][/namespace]\", \"file:///folder\" or\n"
          "\"memory:NAME\"; empty: the one of HEADRACE_STORE, or none.\n"
          "options: values of options by name, {\"tcp.sockets\": 4}; they override the environment.\n"
          "Errors: InvalidArgument (name, option), BackendFailed (a backend of `backends` does not load;\n"
          "the text says why).")
      .def_prop_ro(
          "name", [](const PyAgent& self) { return to_str(self.name()); }, "The agent's name for peers.")
      .def_prop_ro(
          "incarnation",
          [](const PyAgent& self) { return self.call([](headrace::Agent& a) { return a.incarnation(); }); },
          "A random number, new at each start. Peers recognise a restarted agent by it.")
      .def_prop_ro("closed", &PyAgent::closed, "Whether close() was called.")
      .def("close", &PyAgent::close,
           "Cancels the requests in flight, tells the peers, and ends all registrations.\n\n"
           "Later calls do nothing.\n"
           "Threads: calls in other threads end first; the last of them ends the agent.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Agent"))
      .def(
          "__exit__", [](PyAgent& self, nb::handle, nb::handle, nb::handle) { self.close(); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object) -> None"))
      .def(
          "__repr__",
          [](const PyAgent& self) {
            return nb::str(self.closed() ? "Agent({!r}, closed)" : "Agent({!r})").format(to_str(self.name()));
          })
      .def("__reduce__",
           refuse_pickle("an Agent cannot be pickled: open one in the other process, and exchange metadata "
                         "(export_metadata, import_metadata)"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
  bind_memory_methods(agent);
  bind_metadata_methods(agent);
  bind_request_methods(agent);
  bind_notification_methods(agent);
  agent
      .def(
          "backends",
          [](PyAgent& self) { return to_list(self.call([](headrace::Agent& a) { return a.backends(); })); },
          nb::sig("def backends(self) -> list[BackendInfo]"), "The backends that this agent has opened.")
      .def(
          "create_backend",
          [](PyAgent& self, const std::string& name, const OptionDict& options) {
            const auto texts = to_options(options);
            self.ask([&](headrace::Agent& a) { return a.create_backend(name, texts); });
          },
          nb::arg("name"), nb::arg("options") = nb::none(),
          nb::sig("def create_backend(self, name: str, options: collections.abc.Mapping[str, str | bool | "
                  "int | float] | None = None) -> None"),
          "Opens one more backend. Peers know of it after their next import of metadata.\n\n"
          "options: options of the backend, without its name: {\"sockets\": 4}.\n"
          "Errors: InvalidArgument (open already; option), BackendFailed (it does not load; the text\n"
          "says why).")
      .def(
          "telemetry",
          [](PyAgent& self) { return self.call([](headrace::Agent& a) { return a.telemetry(); }); },
          "The counters, histograms and events of the agent up to now.");

  module.def(
      "list_backends",
      [](const OptionDict& options) {
        const auto texts = to_options(options);
        return to_list(take(without_gil([&] { return headrace::list_backends(texts); })));
      },
      nb::arg("options") = nb::none(),
      nb::sig("def list_backends(options: collections.abc.Mapping[str, str | bool | int | float] | None = "
              "None) -> list[BackendInfo]"),
      "All backends that are found, loaded or refused. Needs no agent.\n\n"
      "The backend `fake`, which is for tests, is not listed here nor by list_options unless an\n"
      "option names it.\n"
      "Errors: InvalidArgument (an option that does not exist; a value that it cannot have).");
  module.def(
      "list_options",
      [](const OptionDict& options) {
        const auto texts = to_options(options);
        return to_list(take(without_gil([&] { return headrace::list_options(texts); })));
      },
      nb::arg("options") = nb::none(),
      nb::sig("def list_options(options: collections.abc.Mapping[str, str | bool | int | float] | None = "
              "None) -> list[OptionInfo]"),
      "All options of the core and of the backends, with their values and where these come from.\n\n"
      "Errors: InvalidArgument (an option that does not exist).");
  module.def(
      "list_namespace",
      [](const std::string& store, const Seconds& timeout) {
        const Timeout time = to_timeout(timeout);
        return to_list(take(without_gil([&] { return headrace::list_namespace(store, time); })));
      },
      nb::arg("store"), nb::arg("timeout") = ten_seconds,
      nb::sig("def list_namespace(store: str, timeout: float | None = 10.0) -> list[PeerInfo]"),
      "The agents in a store, with the number of their regions. Connects to none of them.\n\n"
      "store: as in Agent. timeout: seconds.\n"
      "Errors: InvalidArgument (store), BackendFailed, TimedOut.");
}

}  // namespace headrace::python
