// SPDX-License-Identifier: Apache-2.0
// <headrace/agent.hpp>: the class Agent, its life and its backends, and the functions that need no agent.
#include "bindings/python/bind_agent.hpp"

#include "bindings/python/refuse_pickle.hpp"
#include "bindings/python/text.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

namespace headrace::python {
namespace {

using OptionDict = std::optional<nb::dict>;

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

}  // namespace

void check_callback(const nb::object& callback) {
  if (!callback.is_none() && PyCallable_Check(callback.ptr()) == 0)
    raise_invalid(shown(callback) + " cannot be called: give a function, or None");
}

void bind_agent(nb::module_& module) {
  bind_agent_values(module);
  bind_notification_watch(module);
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
          "empty: do not listen. On loopback and without a store, tcp's data port is on loopback,\n"
          "too, unless the option tcp.listen is set.\n"
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
           "Threads: any, at any time. Calls that wait in other threads raise Canceled, later ones\n"
           "InvalidArgument.")
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
  bind_agent_memory(agent);
  bind_agent_metadata(agent);
  bind_agent_requests(agent);
  bind_agent_notifications(agent);
  bind_agent_counters(agent);
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
