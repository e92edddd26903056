// SPDX-License-Identifier: Apache-2.0
// <headrace/fabric.hpp>: the class Fabric, its life and its callbacks.
#include <headrace/fabric.hpp>

#include "bindings/python/bind_agent.hpp"
#include "bindings/python/bind_fabric.hpp"
#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>

namespace headrace::python {
namespace {

constexpr EnumNames<FabricSpin, 2> spin_names{{{"brief", FabricSpin::brief}, {"always", FabricSpin::always}}};

/// For the garbage collector: a callback that uses its fabric is a cycle.
int fabric_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const FabricHooks& hooks = *nb::inst_ptr<PyFabric>(self)->hooks();
  if (hooks.on_error) Py_VISIT(hooks.on_error->object.ptr());
  if (hooks.on_unexpected) Py_VISIT(hooks.on_unexpected->object.ptr());
  for (const auto& hook : hooks.reached) Py_VISIT(hook->object.ptr());
  return 0;
}

int fabric_clear(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  PyFabric& fabric = *nb::inst_ptr<PyFabric>(self);
  fabric.close();
  drop_hook(std::exchange(fabric.hooks()->on_error, nullptr));
  return 0;
}

PyType_Slot fabric_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&fabric_traverse)},
                              {Py_tp_clear, reinterpret_cast<void*>(&fabric_clear)},
                              {0, nullptr}};

constexpr const char* fabric_doc =
    "Writes to peers over all network cards at once, and counts what arrives.\n\n"
    "Register memory, give its descriptor (a few bytes) to a peer by any way, and the peer writes. No "
    "store,\n"
    "no names, no agent. Peers over tcp prove that they know the secret (option auth_token) if there is "
    "one.\n"
    "Bytes are not encrypted.\n"
    "Posts (write, read, write_pages, read_pages, scatter, post_immediate) are checked before a byte "
    "leaves,\n"
    "and return a FabricWork. They take:\n"
    "immediate, scope: the peer counts it after the bytes of the post: Fabric.expect there.\n"
    "count_by: \"request\": once; \"page\": once for each page; \"shard\": once for each network card.\n"
    "spread: \"free\": the card that would be done first; \"in_turn\": one after the other; \"by_peer\": of "
    "a\n"
    "scatter, one for each target.\n"
    "nic: the place in FabricGroup.nics of the card that carries it alone, once it is connected and as long\n"
    "as it lives.\n"
    "timeout: seconds or a timedelta, then the post is canceled and ends with TimedOut; None: no limit.\n"
    "Errors of posts: InvalidArgument (outside of the memory: which range, page or index; lists that "
    "differ;\n"
    "memory that its owner did not make writable; memory of another fabric), NotFound (deregistered),\n"
    "WouldBlock (too many posts run: wait for some), Canceled (closed meanwhile).\n"
    "A context manager: leaving it closes the fabric. Fabrics that are open when the interpreter ends are\n"
    "closed then.\n"
    "Threads: any thread may call any method; methods that wait release the GIL. Each group has a worker, a\n"
    "thread that drives its network cards; the fabric has a callback thread.\n"
    "Fork: in a forked child every method raises InvalidArgument.";

FabricOptions fabric_options_of(std::vector<int> devices, unsigned nics_per_group,
                                std::vector<FabricGroupOptions> groups, const std::string& spin,
                                std::map<std::string, std::string> values) {
  FabricOptions options;
  options.devices = std::move(devices);
  options.nics_per_group = nics_per_group;
  options.groups = std::move(groups);
  options.spin = to_enum(spin, "spin", spin_names);
  options.options = std::move(values);
  return options;
}

void set_on_error(const PyFabric& self, nb::object callback) {
  check_callback(callback);
  static_cast<void>(self.fabric());
  auto hook = callback.is_none() ? nullptr : hold<Callable>(std::move(callback));
  drop_hook(std::exchange(self.hooks()->on_error, std::move(hook)));
}

void bind_fabric_life(nb::class_<PyFabric>& fabric) {
  fabric
      .def(
          "__init__",
          [](PyFabric* self, std::vector<int> devices, unsigned nics_per_group,
             std::vector<FabricGroupOptions> groups, const std::string& spin,
             const std::optional<nb::dict>& options) {
            new (self) PyFabric(fabric_options_of(std::move(devices), nics_per_group, std::move(groups), spin,
                                                  to_options(options)));
          },
          nb::arg("devices") = nb::make_tuple(), nb::kw_only(), nb::arg("nics_per_group") = 0,
          nb::arg("groups") = nb::make_tuple(), nb::arg("spin") = "brief", nb::arg("options") = nb::none(),
          nb::sig("def __init__(self, devices: collections.abc.Sequence[int] = (), *, nics_per_group: int = "
                  "0, groups: collections.abc.Sequence[FabricGroupOptions] = (), spin: str = 'brief', "
                  "options: collections.abc.Mapping[str, str | bool | int | float] | None = None) -> None"),
          "Opens the network cards and starts the workers.\n\n"
          "devices: a group for each of these GPUs, by ordinal, with the network cards near it. Empty: one\n"
          "group for host memory, that of the NUMA node of the calling thread. Each has \"this host\", too.\n"
          "nics_per_group: 0: all cards near it.\n"
          "groups: groups by hand, instead of devices.\n"
          "spin: of a worker that has nothing to do: \"brief\": polls for some microseconds, then sleeps;\n"
          "\"always\": polls, on a core for each group, for the shortest latency.\n"
          "options: values of options by name, of those that agents have:\n"
          "{\"auth_token_file\": \"/run/secrets/headrace\"}; they override the environment.\n"
          "Errors: InvalidArgument (a card twice, one near another GPU, no card, no such GPU, CPU or\n"
          "address; an unknown option; a required secret that is missing), NotFound (no card or interface\n"
          "of that name), Exhausted.")
      .def_prop_ro("closed", &PyFabric::closed, "Whether close() was called.")
      .def("close", &PyFabric::close,
           "Ends all posts (Canceled), expectations and links, and releases the memory. Immediates of posts\n"
           "that were done still leave, for up to a second.\n\n"
           "Later calls do nothing.\n"
           "Threads: any, at any time, also in a callback. On other threads it waits for the callback that\n"
           "runs.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Fabric"))
      .def(
          "__exit__", [](PyFabric& self, nb::handle, nb::handle, nb::handle) { self.close(); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, type: object, value: object, traceback: object) -> None"))
      .def(
          "__repr__",
          [](const PyFabric& self) { return nb::str(self.closed() ? "<Fabric: closed>" : "<Fabric: open>"); })
      .def("__reduce__",
           refuse_pickle("a Fabric cannot be pickled: open one in the other process, and give it this one's "
                         "address and descriptors"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

void bind_fabric_state(nb::class_<PyFabric>& fabric) {
  fabric
      .def_prop_ro(
          "address", [](const PyFabric& self) { return self.fabric().address(); },
          "Where peers find it: a FabricAddress.")
      .def(
          "groups",
          [](const PyFabric& self) {
            headrace::Fabric& opened = self.fabric();
            return to_list(without_gil([&] { return opened.groups(); }));
          },
          nb::sig("def groups(self) -> list[FabricGroup]"),
          "Its groups, and how their network cards are now.")
      .def_prop_ro(
          "bits_per_second", [](const PyFabric& self) { return self.fabric().bits_per_second(); },
          "Of all network cards together whose speed is known.")
      .def(
          "counters", [](const PyFabric& self) { return self.fabric().counters(); },
          "What has happened since it was opened.")
      .def(
          "telemetry",
          [](const PyFabric& self) {
            headrace::Fabric& opened = self.fabric();
            return without_gil([&] { return opened.telemetry(); });
          },
          "The counters and histograms of its network cards up to now.");
}

void bind_fabric_callbacks(nb::class_<PyFabric>& fabric) {
  fabric
      .def(
          "on_unexpected",
          [](PyFabric& self, nb::object callback) {
            check_callback(callback);
            self.on_unexpected(std::move(callback));
          },
          nb::arg("callback").none(),
          nb::sig("def on_unexpected(self, callback: collections.abc.Callable[[int, int, int], object] | "
                  "None) -> None"),
          "Calls callback(immediate, scope, arrivals) for arrivals that nobody expects; for those that have\n"
          "come before, too. None: they are kept for a later `expect`, up to 16384 different ones.\n\n"
          "Threads: the callback thread. An exception goes to `on_error`.")
      .def(
          "on_error", &set_on_error, nb::arg("callback").none(),
          nb::sig("def on_error(self, callback: collections.abc.Callable[[BaseException], object] | None) -> "
                  "None"),
          "Calls callback(exception) with what another callback has raised; the fabric goes on. None: it "
          "goes\n"
          "to sys.unraisablehook.\n\n"
          "Threads: the callback thread.");
}

}  // namespace

void bind_fabric(nb::module_& module) {
  bind_fabric_values(module);
  bind_fabric_peers(module);
  bind_fabric_receiver(module);
  bind_fabric_words(module);
  nb::class_<PyFabric> fabric(module, "Fabric", nb::type_slots(fabric_slots), nb::is_weak_referenceable(),
                              fabric_doc);
  bind_fabric_life(fabric);
  bind_fabric_state(fabric);
  bind_fabric_registration(fabric);
  bind_fabric_pool(fabric);
  bind_fabric_peer_calls(fabric);
  bind_fabric_posts(fabric);
  bind_fabric_messages(fabric);
  bind_fabric_expect(fabric);
  bind_fabric_kernels(fabric);
  bind_fabric_callbacks(fabric);
}

}  // namespace headrace::python
