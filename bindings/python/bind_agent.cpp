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

/// What `register` was given: ranges, and what keeps each in place.
struct Registration {
  std::vector<MemoryRange> ranges;
  std::vector<std::shared_ptr<const void>> keepers;
  std::optional<bool> writable;  ///< none: as each object says

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
                          " with gaps cannot be registered: register the array that it is a part of",
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
      raise_invalid("the object cannot be written: leave `writable` out, or register one that can",
                    ranges.size());
    range.writable = writable.value_or(range.writable);
    ranges.push_back(std::move(range));
    keepers.push_back(std::move(keeper));
  }
};

/// Registers all or none. Each object is let go when its own region is deregistered, not with the last of the
/// call.
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

/// Who uses a mapping: a GPU by its number, or by its name as torch writes it; None: the CPU, -1.
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

/// `whose`: nothing for our own memory, or the peer's name. `view`: what each page consists of; null: of one
/// stretch.
template <class Pages, class... Whose>
Result<PageList> prepare_in(headrace::Agent& agent, const Pages& pages, const PageView* view,
                            Whose... whose) {
  if (view == nullptr) return agent.prepare(whose..., pages);
  if constexpr (std::is_same_v<Pages, RegionPages>) {
    return Error{
        Code::invalid_argument,
        "pages by columns (RegionPages) are of one stretch each: give rows, or UniformPages, for a view"};
  } else {
    return agent.prepare(whose..., pages, *view);
  }
}

PageList prepare(PyAgent& self, nb::handle pages, const std::string* peer, const PageView* view = nullptr) {
  const PageInput input = to_pages(pages);
  if (!peer) {
    return self.ask([&](headrace::Agent& agent) {
      return std::visit([&](const auto& p) { return prepare_in(agent, p, view); }, input.pages);
    });
  }
  return self.ask([&](headrace::Agent& agent) -> Result<PageList> {
    return std::visit(
        [&](const auto& p) -> Result<PageList> {
          if constexpr (std::is_same_v<std::decay_t<decltype(p)>, std::span<const AddressPage>>) {
            return Error{Code::invalid_argument, "pages of peer " + *peer +
                                                     " are given by address, and addresses mean something in "
                                                     "their own process alone: give (region, offset, "
                                                     "length), or Regions from peer_regions"};
          } else {
            return prepare_in(agent, p, view, std::string_view(*peer));
          }
        },
        input.pages);
  });
}

/// A list that was prepared, or prepares one of what it was given.
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

/// The type of the object that make_request gives.
nb::handle request_type(nb::handle cls) {
  const nb::handle request = nb::type<PyRequest>();
  if (cls.is_none()) return request;
  if (PyType_Check(cls.ptr()) == 0 || PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(cls.ptr()),
                                                       reinterpret_cast<PyTypeObject*>(request.ptr())) == 0)
    raise_invalid("cls is " + shown(cls) + ": give a subclass of Request, or None");
  return cls;
}

/// One object of Python's with the request inside.
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
      return agent.make_request(operation, local, remote, options);
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
          return agent.make_request(operation, local, local_indices, remote,
                                    std::get<decltype(local_indices)>(there.indices), options);
        },
        here.indices);
  }));
}

/// What make_request was given for one of several peers, and the page numbers that its spans lie in.
class PartInput {
 public:
  PartInput(nb::handle object, std::size_t number) {
    const nb::object part = nb::borrow(object);
    const bool is_sequence = PyTuple_Check(object.ptr()) != 0 || PyList_Check(object.ptr()) != 0;
    const std::size_t length = is_sequence ? nb::len(part) : 0;
    if ((length != 2 && length != 4) || !nb::isinstance<PageList>(part[0]) ||
        !nb::isinstance<PageList>(part[1]))
      raise_invalid("part " + std::to_string(number) + " is " + shown(object) +
                    ": give (local, remote) or (local, remote, local_index, remote_index), the first two as "
                    "`prepare` made them");
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

/// Makes, posts and waits. A signal's exception leaves only when the memory is quiet.
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
  auto request = std::make_unique<PyRequest>(
      self.ask([&](headrace::Agent& agent) { return agent.make_request(op, local, remote, options); }));
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
    // The request ends by its own deadline; a second more, in which it may be canceling, and one against
    // clocks.
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
  // Each slice asks for the agent anew, so that a close() on another thread is noticed.
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

// What garbage collection follows: a callback that uses its agent is a cycle.

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
  nb::class_<ImportReport>(module, "ImportReport", "What an import of metadata did.")
      .def_prop_ro(
          "peer", [](const ImportReport& self) { return to_str(self.peer); }, "Whose metadata it was.")
      .def_ro("incarnation", &ImportReport::incarnation, "Of the peer: another one at each start.")
      .def_ro("version", &ImportReport::version, "Of the metadata that we now hold.")
      .def_ro("regions", &ImportReport::regions, "Known of this peer now.")
      .def_ro("restarted", &ImportReport::restarted,
              "It replaces an earlier life of the same name: old handles now end in peer_lost.")
      .def("__repr__", [](const ImportReport& self) {
        return nb::str("ImportReport(peer={!r}, incarnation={}, version={}, regions={}, restarted={})")
            .format(to_str(self.peer), self.incarnation, self.version, self.regions, self.restarted);
      });

  nb::class_<PeerInfo>(module, "PeerInfo", "What is known of a peer.")
      .def_prop_ro(
          "name", [](const PeerInfo& self) { return to_str(self.name); }, "What it calls itself.")
      .def_ro("incarnation", &PeerInfo::incarnation, "Another one at each start.")
      .def_ro("version", &PeerInfo::version, "Of its metadata.")
      .def_ro("regions", &PeerInfo::regions, "How many of its regions are known.")
      .def_ro("connected", &PeerInfo::connected, "Whether there is a link.")
      .def_ro("lost", &PeerInfo::lost, "Whether it died, left or cannot be reached.")
      .def_prop_ro(
          "backends", [](const PeerInfo& self) { return to_strs(self.backends); },
          nb::sig("def backends(self) -> list[str]"), "That both have.")
      .def_prop_ro(
          "detail", [](const PeerInfo& self) { return to_str(self.detail); },
          "Why it was lost, or what each backend says.")
      .def("__repr__", [](const PeerInfo& self) {
        return nb::str(
                   "PeerInfo(name={!r}, incarnation={}, version={}, regions={}, connected={}, lost={}, "
                   "backends={})")
            .format(to_str(self.name), self.incarnation, self.version, self.regions, self.connected,
                    self.lost, to_strs(self.backends));
      });

  nb::class_<OptionInfo>(module, "OptionInfo", "A row of the option table, with the value in force.")
      .def_prop_ro(
          "name", [](const OptionInfo& self) { return to_str(self.name); },
          "\"check\", or \"tcp.sockets\" for a backend's.")
      .def_prop_ro(
          "default_value", [](const OptionInfo& self) { return to_str(self.default_value); },
          "If nobody sets it.")
      .def_prop_ro(
          "value", [](const OptionInfo& self) { return to_str(self.value); },
          "In force; \"(set)\" for a secret.")
      .def_prop_ro(
          "unit", [](const OptionInfo& self) { return to_str(self.unit); }, "Of the value.")
      .def_prop_ro(
          "sentence", [](const OptionInfo& self) { return to_str(self.sentence); }, "What it does.")
      .def_prop_ro(
          "source", [](const OptionInfo& self) { return to_str(self.source); },
          "\"default\", \"file\", \"environment\" or \"caller\".")
      .def("__repr__", [](const OptionInfo& self) {
        return nb::str("OptionInfo(name={!r}, value={!r}, source={!r})")
            .format(to_str(self.name), to_str(self.value), to_str(self.source));
      });

  nb::class_<BackendInfo>(module, "BackendInfo", "A plugin: loaded, or why not.")
      .def_prop_ro(
          "name", [](const BackendInfo& self) { return to_str(self.name); }, "\"shm\", \"tcp\", ...")
      .def_prop_ro(
          "version", [](const BackendInfo& self) { return to_str(self.version); }, "Its own.")
      .def_prop_ro(
          "path", [](const BackendInfo& self) { return to_str(self.path); },
          "The shared object, or \"linked in\".")
      .def_ro("loaded", &BackendInfo::loaded, "Whether it can be used.")
      .def_prop_ro(
          "refusal", [](const BackendInfo& self) { return to_str(self.refusal); },
          "Why it did not load, and what to do; else empty.")
      .def_prop_ro(
          "kinds",
          [](const BackendInfo& self) {
            nb::list kinds;
            for (const MemoryKind kind : self.kinds) kinds.append(to_str(kind_name(kind)));
            return kinds;
          },
          nb::sig("def kinds(self) -> list[str]"), "The memory kinds that it takes.")
      .def_ro("local", &BackendInfo::local, "Whether it serves transfers inside one agent.")
      .def_ro("remote", &BackendInfo::remote, "Whether it serves transfers between agents.")
      .def_ro("notifications", &BackendInfo::notifications, "Whether it carries notifications.")
      .def_ro("mapping", &BackendInfo::mapping, "Whether Agent.map can use it.")
      .def_ro("query", &BackendInfo::query, "Whether Agent.query can ask it.")
      .def_prop_ro(
          "options", [](const BackendInfo& self) { return to_list(self.options); },
          nb::sig("def options(self) -> list[OptionInfo]"), "Its table.")
      .def("__repr__", [](const BackendInfo& self) {
        return nb::str("BackendInfo(name={!r}, version={!r}, loaded={}, refusal={!r})")
            .format(to_str(self.name), to_str(self.version), self.loaded, to_str(self.refusal));
      });
}

void bind_memory_methods(nb::class_<PyAgent>& agent) {
  agent
      .def("register", &register_memory, nb::arg("obj").none(), nb::arg("name") = "",
           nb::arg("note") = nb::bytes("", 0), nb::arg("backends") = nb::none(),
           nb::arg("writable") = nb::none(),
           nb::sig("def register(self, obj: object, name: str = '', note: bytes = b'', backends: "
                   "collections.abc.Sequence[str] | None = None, "
                   "writable: bool | None = None) -> typing.Any"),
           "Makes memory reachable for peers. Returns its Region, or a list of them if `obj` is a list.\n\n"
           "obj: anything with the buffer protocol (bytearray, mmap, NumPy array), with DLPack (torch "
           "tensor), a tuple\n"
           "(address, length), a MemoryRange, or a list of these: then all are registered or none, in one "
           "call. Arrays may\n"
           "lie in memory in any order, but without gaps. Objects that cannot be written (bytes, a read-only "
           "array) are\n"
           "taken too: a request that would write them is refused, here and at peers.\n"
           "name: unique in the agent; of a list it is followed by \"/0\", \"/1\", ... note: travels with "
           "the metadata, up to\n"
           "64 KiB. backends: only these; None: every one that takes the kind. writable: False lets requests "
           "read the memory\n"
           "only; None: as the object says.\n"
           "Owns: the object is kept alive, and in place, until its region is deregistered or the agent is "
           "closed; memory\n"
           "given by address is the caller's to keep.\n"
           "Errors: InvalidArgument (empty, gaps, name in use), NotSupported (no backend takes this kind).")
      .def("deregister", &deregister, nb::arg("regions"), nb::arg("timeout") = ten_seconds,
           nb::sig("def deregister(self, regions: Region | Memory | int | collections.abc.Sequence[Region | "
                   "Memory | int], timeout: float | None = 10.0) -> None"),
           "Tells every peer that knows the regions, waits until each has let go or is gone, then forgets "
           "them.\n\n"
           "Errors: NotFound, WouldBlock (requests of ours are in flight and timeout is 0), TimedOut (a peer "
           "did not\n"
           "answer: the regions stay).")
      .def("allocate", &allocate, nb::arg("length_bytes"), nb::arg("kind") = "dram",
           nb::arg("numa_node") = -1, nb::arg("huge_pages") = false, nb::arg("name") = "",
           nb::arg("note") = nb::bytes("", 0), nb::arg("backends") = nb::none(), nb::arg("writable") = true,
           nb::arg("near_gpu") = -1,
           nb::sig("def allocate(self, length_bytes: int, kind: str = 'dram', numa_node: int = -1, "
                   "huge_pages: bool = False, name: str = '', note: bytes = b'', "
                   "backends: collections.abc.Sequence[str] | None = None, writable: bool = True, "
                   "near_gpu: int = -1) -> Memory"),
           "Memory that peers on this host map and copy without the kernel's help: the fastest kind. "
           "Zero-filled,\n"
           "page-aligned, registered.\n\n"
           "numa_node: -1 means that of near_gpu, or of the thread that touches a page first. huge_pages: of "
           "2 MiB. writable:\n"
           "False lets requests and peers read it only; the Memory object itself can always be written. "
           "near_gpu: a CUDA ordinal:\n"
           "memory of the node next to this GPU, where the firmware names it and the system lets us choose.\n"
           "Owns: the Memory object and its views keep the memory; the region is the agent's until "
           "deregistered.\n"
           "Errors: InvalidArgument (length 0, no such node: says which there are, no such GPU), Exhausted "
           "(not "
           "enough memory or\n"
           "huge pages), NotSupported (kind; near_gpu without a driver).")
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
              "def map(self, peer: str, region: Region | int, timeout: float | None = 10.0, device: object "
              "= None) -> Mapping"),
          "A peer's region as memory of this process: for the CPU what the peer got from allocate, for the "
          "kernels of a\n"
          "GPU its GPU memory, too.\n\n"
          "device: the GPU of this process that will use it: 1, \"cuda:1\", a torch.device (\"cuda\" is GPU "
          "0); None: the CPU.\n"
          "Errors: NotFound, NotSupported (on another host, host memory that was merely registered, no way "
          "from this GPU:\n"
          "what each backend said), InvalidArgument (no such GPU; GPU memory for the CPU), PeerLost, "
          "TimedOut.")
      .def("regions", &own_regions, nb::sig("def regions(self) -> list[Region]"), "What is registered now.")
      .def("query", &query, nb::arg("what"), nb::arg("backend"),
           nb::sig("def query(self, what: MemoryRange, backend: str) -> dict[str, str] | None"),
           "Does this file, block device or object exist? None: no. Else what the backend knows, \"bytes\" "
           "among it.\n\n"
           "Errors: NotFound (no such backend is open here), NotSupported (it keeps nothing of the kind: who "
           "can be asked),\n"
           "InvalidArgument (asked about memory, or without a name).");
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
                  "= None, connection_info: bool = True, "
                  "since_version: int = 0) -> bytes"),
          "What a peer needs to reach this agent and its regions, for its import_metadata.\n\n"
          "regions: only these; []: connection information alone; None: all. connection_info: how to reach "
          "us; may be left\n"
          "out of later parts. since_version: only what changed after this metadata_version; 0: everything.\n"
          "Errors: NotFound (a region), InvalidArgument (a version still to come).")
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
          "Takes in what a peer's export_metadata gave: whole, part or update, in any order after the "
          "connection information.\n\n"
          "Errors: Corrupt (says where), InvalidArgument (our own; another protocol version).")
      .def_prop_ro(
          "listen_address",
          [](PyAgent& self) {
            return to_str(self.call([](headrace::Agent& a) { return a.listen_address(); }));
          },
          "Where `listen` listens, for example \"127.0.0.1:40213\"; empty if it does not.")
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
          "Errors: PeerLost (nobody answers there), TimedOut, Corrupt, InvalidArgument (address).")
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
                  "int] | None = None, connection_info: bool = True, "
                  "since_version: int = 0, timeout: float | None = 10.0) -> None"),
          "Gives our metadata to the agent that listens at \"host:port\". What is given: as "
          "export_metadata.\n\n"
          "Errors: PeerLost (nobody answers there), TimedOut, InvalidArgument (address).")
      .def(
          "publish",
          [](PyAgent& self, nb::handle regions, bool connection_info, const std::string& label) {
            const ExportOptions options = export_options(regions, connection_info, 0);
            self.ask([&](headrace::Agent& a) { return a.publish(options, label); });
          },
          nb::arg("regions") = nb::none(), nb::arg("connection_info") = true, nb::arg("label") = "",
          nb::sig("def publish(self, regions: collections.abc.Sequence[Region | Memory | int] | None = None, "
                  "connection_info: bool = True, label: str = '') -> None"),
          "Publishes our metadata in the store, under a lease that ends with us, and again after each "
          "registration change.\n\n"
          "Errors: InvalidArgument (the agent has no store), BackendFailed (the store).")
      .def(
          "unpublish", [](PyAgent& self) { self.ask([](headrace::Agent& a) { return a.unpublish(); }); },
          "Takes our metadata out of the store.")
      .def(
          "find",
          [](PyAgent& self, const std::string& peer, const Seconds& timeout, const std::string& label) {
            const Timeout time = to_timeout(timeout);
            return self.ask([&](headrace::Agent& a) { return a.find(peer, time, label); });
          },
          nb::arg("peer"), nb::arg("timeout") = ten_seconds, nb::arg("label") = "",
          nb::sig("def find(self, peer: str, timeout: float | None = 10.0, label: str = '') -> ImportReport"),
          "Looks a peer up in the store by name and imports it: how to reach one never told of.\n\n"
          "Errors: NotFound (nobody of that name), TimedOut, InvalidArgument (the agent has no store).")
      .def(
          "list_namespace",
          [](PyAgent& self, const Seconds& timeout) {
            const Timeout time = to_timeout(timeout);
            return to_strs(self.ask([&](headrace::Agent& a) { return a.list_namespace(time); }));
          },
          nb::arg("timeout") = ten_seconds,
          nb::sig("def list_namespace(self, timeout: float | None = 10.0) -> list[str]"),
          "The names in the store's namespace.")
      .def("watch_namespace", &watch_namespace, nb::arg("callback").none(),
           nb::sig("def watch_namespace(self, callback: collections.abc.Callable[[str, str], object] | None) "
                   "-> None"),
           "Calls callback(event, peer) for every peer that comes (\"joined\"), changes (\"updated\") or "
           "goes (\"left\").\n"
           "Replaces an earlier watch; None ends it.\n\n"
           "Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.\n"
           "Errors: InvalidArgument (the agent has no store).")
      .def(
          "peers",
          [](PyAgent& self) { return to_list(self.call([](headrace::Agent& a) { return a.peers(); })); },
          nb::sig("def peers(self) -> list[PeerInfo]"), "Everyone whose metadata we hold.")
      .def(
          "peer_regions", [](PyAgent& self, const std::string& peer) { return peer_regions(self, peer); },
          nb::arg("peer"), nb::sig("def peer_regions(self, peer: str) -> list[Region]"),
          "All that is known of that peer.\n\nErrors: NotFound (peer).")
      .def(
          "peer_region",
          [](PyAgent& self, const std::string& peer, const std::string& name) {
            return PyRegion{self.ask([&](headrace::Agent& a) { return a.peer_region(peer, name); })};
          },
          nb::arg("peer"), nb::arg("region_name"),
          "A peer's region by name.\n\nErrors: NotFound (peer, name).")
      .def(
          "connect",
          [](PyAgent& self, const std::string& peer, const Seconds& timeout, const Names& backends) {
            const Timeout time = to_timeout(timeout);
            const std::vector<std::string> names = to_names(backends);
            self.ask([&](headrace::Agent& a) { return a.connect(peer, time, names); });
          },
          nb::arg("peer"), nb::arg("timeout") = ten_seconds, nb::arg("backends") = nb::none(),
          "Connects ahead of use and waits until it is done.\n\nErrors: NotFound, PeerLost, TimedOut, "
          "NotSupported.")
      .def(
          "forget",
          [](PyAgent& self, const std::string& peer) {
            self.ask([&](headrace::Agent& a) { return a.forget(peer); });
          },
          nb::arg("peer"),
          "Ends what is in flight with it (canceled), closes the links, drops its metadata.\n\nErrors: "
          "NotFound.");
}

constexpr const char* prepare_doc =
    "Checks and resolves a list of pages once; requests then pick from it by index.\n\n"
    "pages: a list of tuples (address, length); a list of tuples (region, offset, length), or of Regions; an "
    "N x 2 array\n"
    "(address, length) or N x 3 array (region's id, offset, length), uint64 or int64, contiguous, read "
    "without a copy;\n"
    "UniformPages; RegionPages; an array or tensor, or a list of them: the memory of each is a page. In a "
    "tuple the region is\n"
    "a Region, a Memory or an id.\n"
    "peer: whose pages. None: our own; a peer's, or by our own name the far side of a transfer to ourselves, "
    "are given\n"
    "by region.\n"
    "view: what each page consists of, a PageView; None: of one stretch. A page's length is then what the "
    "view has, or, of\n"
    "UniformPages, 0.\n"
    "Units: bytes. Owns: nothing of what was given.\n"
    "Errors: InvalidArgument (no pages, a zero-length page: its index; a view that cannot be: why), NotFound "
    "(not "
    "registered:\n"
    "its index).";

constexpr const char* transfer_doc_tail =
    "Makes a request, posts it and waits for its end. Pages: PageLists, or what prepare takes; page i of one "
    "goes with\n"
    "page i of the other. notification: bytes for the far side, delivered once the data is there (write) or "
    "has been\n"
    "taken (read). timeout: seconds, then it is canceled and TimedOut raised.\n"
    "Returns the request, done: its times and explain() tell how it went.\n"
    "Errors: those of prepare, make_request, Request.post and Request.wait.";

void bind_request_methods(nb::class_<PyAgent>& agent) {
  static const std::string read_doc =
      std::string("Reads remote pages of `peer` into local ones.\n\n") + transfer_doc_tail;
  static const std::string write_doc =
      std::string("Writes local pages to remote ones of `peer`.\n\n") + transfer_doc_tail;
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
                   "PageList, local_index: object = None, remote_index: object = None, "
                   "backends: collections.abc.Sequence[str] | None = None, timeout: float | None = None, "
                   "cls: type[Request] | None = None) -> Request"),
           "A request that moves page local_index[i] of local to or from page remote_index[i] of remote.\n\n"
           "op: \"read\" (local <- remote) or \"write\" (local -> remote). Indices: one-dimensional arrays "
           "of integers (uint32\n"
           "and 64 bits are read without a copy) or lists of ints; None: the whole list in order.\n"
           "backends: only these paths; None: the best of all. timeout: seconds, each post is canceled after "
           "this long.\n"
           "cls: a subclass of Request of which it is to be an instance, whose __init__ is not called: for "
           "who "
           "keeps something\n"
           "of his own with each request.\n"
           "Errors: InvalidArgument (counts or lengths differ, an index beyond its list: which), NotFound "
           "(revoked),\n"
           "NotSupported (no common path: what each said).")
      .def(
          "make_request", &make_request_of_parts, nb::arg("op"), nb::arg("parts"), nb::kw_only(),
          nb::arg("backends") = nb::none(), nb::arg("timeout") = nb::none(), nb::arg("cls") = nb::none(),
          nb::sig("def make_request(self, op: typing.Literal['read', 'write'], parts: "
                  "collections.abc.Iterable[tuple[PageList, PageList] | tuple[PageList, PageList, object, "
                  "object]], *, backends: collections.abc.Sequence[str] | None = None, timeout: float | None "
                  "= None, cls: type[Request] | None = None) -> Request"),
          "A request to or from several peers: one post, one deadline, one end.\n\n"
          "parts: (local, remote) or (local, remote, local_index, remote_index), as above, the remote list "
          "of another peer\n"
          "in each. Each takes the path that is best for it, and moves whatever becomes of the others: the "
          "request ends when\n"
          "the last has ended, and fails as the first that failed; Request.parts tells which peers have "
          "their pages. What goes\n"
          "with a post (notification, stream) goes with each part.\n"
          "Errors: as above, with the part's number; InvalidArgument (no part; two of one peer).")
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
                  "| None = None, timeout: float | None = None, "
                  "backends: collections.abc.Sequence[str] | None = None) -> Request"),
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
                  "| None = None, timeout: float | None = None, "
                  "backends: collections.abc.Sequence[str] | None = None) -> Request"),
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
          "Sends a message on its own, up to 64 KiB.\n\nErrors: WouldBlock (too many wait: retry), NotFound, "
          "PeerLost.")
      .def(
          "take_notifications", &take_notifications, nb::arg("peer") = "",
          nb::arg("prefix") = nb::bytes("", 0),
          nb::sig(
              "def take_notifications(self, peer: str = '', prefix: bytes = b'') -> list[tuple[str, bytes]]"),
          "What has come in, oldest first, as (peer, payload); empty if nothing has.\n\n"
          "peer, prefix: only those of this peer, and whose payload begins so; empty: any.")
      .def("wait_notification", &wait_notification, nb::arg("timeout") = nb::none(), nb::arg("peer") = "",
           nb::arg("prefix") = nb::bytes("", 0),
           nb::sig("def wait_notification(self, timeout: float | None = None, peer: str = '', prefix: bytes "
                   "= b'') -> tuple[str, bytes]"),
           "The next one that fits, as (peer, payload); seconds at most.\n\n"
           "Errors: TimedOut, InvalidArgument (the agent was closed meanwhile).")
      .def("on_notification", &on_notification, nb::arg("callback").none(),
           nb::sig("def on_notification(self, callback: collections.abc.Callable[[str, bytes], object] | "
                   "None) -> None"),
           "Hands each one to callback(peer, payload) instead of keeping it. None ends that.\n\n"
           "Threads: runs on the agent's callback thread; an exception in it goes to sys.unraisablehook.")
      .def(
          "notification_fd",
          [](PyAgent& self) { return self.ask([](headrace::Agent& a) { return a.notification_fd(); }); },
          "A descriptor that is readable while notifications wait; the agent's.")
      .def(
          "notifications",
          [](nb::handle self, const std::string& peer, nb::handle prefix) {
            return nb::module_::import_("headrace._asyncio").attr("notifications")(self, peer, prefix);
          },
          nb::arg("peer") = "", nb::arg("prefix") = nb::bytes("", 0),
          nb::sig("def notifications(self, peer: str = '', prefix: bytes = b'') -> "
                  "collections.abc.AsyncIterator[tuple[str, bytes]]"),
          "An asynchronous iterator over those that come in, as (peer, payload); ends when the agent is "
          "closed.\n\n"
          "peer, prefix: as in take_notifications; the others stay where they are.")
      .def(
          "_closing_fd", [](PyAgent& self) { return self.closing_fd(); },
          "Turns readable when the agent is closed; for headrace._asyncio.");
}

}  // namespace

void bind_agent(nb::module_& module) {
  bind_values(module);
  nb::class_<PyAgent> agent(
      module, "Agent", nb::type_slots(agent_slots), nb::is_weak_referenceable(),
      "One participant: it owns regions, knows peers, and makes the requests that move pages between "
      "them.\n\n"
      "A context manager: leaving it closes the agent. Agents that are open at the end of the interpreter "
      "are closed then.\n"
      "Threads: every method may be called from any thread; those that wait or copy give the GIL away.\n"
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
                  "listen: str = '', store: str = '', "
                  "options: collections.abc.Mapping[str, str | bool | int | float] | None = None) -> None"),
          "Opens an agent.\n\n"
          "name: what peers call it, 1 to 255 bytes. backends: to open; None: every one that loads on this "
          "machine.\n"
          "listen: \"host:port\" to answer metadata queries on; port 0 picks one (listen_address tells); "
          "empty: do not listen.\n"
          "store: \"etcd://host:port[,host:port...][/namespace]\", \"file:///folder\", \"memory:NAME\"; "
          "empty: HEADRACE_STORE, else none.\n"
          "options: rows of the option table by name, {\"tcp.sockets\": 4}; they win over the environment.\n"
          "Errors: InvalidArgument (name, option), BackendFailed (a backend that was asked for does not "
          "load: why).")
      .def_prop_ro(
          "name", [](const PyAgent& self) { return to_str(self.name()); }, "What peers call it.")
      .def_prop_ro(
          "incarnation",
          [](const PyAgent& self) { return self.call([](headrace::Agent& a) { return a.incarnation(); }); },
          "Another one at each start, by which peers recognise a restarted agent.")
      .def_prop_ro("closed", &PyAgent::closed, "Whether close() was called.")
      .def("close", &PyAgent::close,
           "Cancels what is in flight, tells peers, ends all registrations. Nothing happens the second "
           "time.\n\n"
           "Threads: calls of this agent that other threads are in finish first, and the agent ends with the "
           "last of them.")
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
           refuse_pickle("an Agent belongs to its process: open one in the other process, and exchange "
                         "metadata (export_metadata, import_metadata)"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
  bind_memory_methods(agent);
  bind_metadata_methods(agent);
  bind_request_methods(agent);
  bind_notification_methods(agent);
  agent
      .def(
          "backends",
          [](PyAgent& self) { return to_list(self.call([](headrace::Agent& a) { return a.backends(); })); },
          nb::sig("def backends(self) -> list[BackendInfo]"), "Those that this agent has open.")
      .def(
          "create_backend",
          [](PyAgent& self, const std::string& name, const OptionDict& options) {
            const auto texts = to_options(options);
            self.ask([&](headrace::Agent& a) { return a.create_backend(name, texts); });
          },
          nb::arg("name"), nb::arg("options") = nb::none(),
          nb::sig("def create_backend(self, name: str, options: collections.abc.Mapping[str, str | bool | "
                  "int | float] | None = None) -> None"),
          "Opens one more, with options of its own table ({\"sockets\": 4}). Peers learn of it with the next "
          "metadata.\n\n"
          "Errors: InvalidArgument (open already, option), BackendFailed (it does not load: why).")
      .def(
          "telemetry",
          [](PyAgent& self) { return self.call([](headrace::Agent& a) { return a.telemetry(); }); },
          "What it has counted so far.");

  module.def(
      "list_backends",
      [](const OptionDict& options) {
        const auto texts = to_options(options);
        return to_list(take(without_gil([&] { return headrace::list_backends(texts); })));
      },
      nb::arg("options") = nb::none(),
      nb::sig("def list_backends(options: collections.abc.Mapping[str, str | bool | int | float] | None = "
              "None) -> list[BackendInfo]"),
      "Every plugin that the search path holds, loaded or refused, without an agent.\n\n"
      "Of `fake`, which is for tests, nothing is told here, nor by list_options, unless an option names it.\n"
      "Errors: InvalidArgument (an option that does not exist, or has a value that it cannot have).");
  module.def(
      "list_options",
      [](const OptionDict& options) {
        const auto texts = to_options(options);
        return to_list(take(without_gil([&] { return headrace::list_options(texts); })));
      },
      nb::arg("options") = nb::none(),
      nb::sig("def list_options(options: collections.abc.Mapping[str, str | bool | int | float] | None = "
              "None) -> list[OptionInfo]"),
      "Every option of the core and of all backends, with the value in force and where it comes "
      "from.\n\nErrors: InvalidArgument (an option that does not exist).");
  module.def(
      "list_namespace",
      [](const std::string& store, const Seconds& timeout) {
        const Timeout time = to_timeout(timeout);
        return to_list(take(without_gil([&] { return headrace::list_namespace(store, time); })));
      },
      nb::arg("store"), nb::arg("timeout") = ten_seconds,
      nb::sig("def list_namespace(store: str, timeout: float | None = 10.0) -> list[PeerInfo]"),
      "Every agent that a store knows: regions counted, nothing connected.\n\nErrors: InvalidArgument "
      "(store), BackendFailed, TimedOut.");
}

}  // namespace headrace::python
