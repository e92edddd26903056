// SPDX-License-Identifier: Apache-2.0
// The section "memory" of <headrace/agent.hpp>.
#include <headrace/tensor.hpp>

#include "bindings/python/array_view.hpp"
#include "bindings/python/bind_agent.hpp"
#include "bindings/python/memory_handles.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

namespace headrace::python {
namespace {

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
      view->refuse_objects(i);
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

}  // namespace

void bind_agent_memory(nb::class_<PyAgent>& agent) {
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
            return PyMapping(take_uninterrupted(self.call(
                [&](headrace::Agent& a) { return a.map(peer, id, time, user, interrupted_by_signal); })));
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

}  // namespace headrace::python
