// SPDX-License-Identifier: Apache-2.0
// nixl_agent.make_prepped_xfer without a call of a Python function. Programs make a request before every
// transfer, between other work that has replaced the cache. So the cost of the call is the memory that it
// touches, and the interpreter touches much.
//
// The method in Python defines the behaviour. QuickMake replaces it in the class and does the same for usual
// arguments. It passes every call that has other arguments or that fails to the method, so that only the
// method writes error texts.
#include "bindings/compat_nixl/python.hpp"

#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

namespace headrace::compat_nixl {
namespace {

/// An attribute in a slot of a class (__slots__), without a look-up by name: it is read at its offset in the
/// object. Python's stable interface does not give the offset; there the slot's descriptor is called. The
/// owner of a Slot must keep the class alive.
class Slot {
 public:
  /// False if the class has no such slot; an error is set.
  bool find(PyObject* in, const char* name) {
    const Reference found(PyObject_GetAttrString(in, name));
    if (!found) return false;
    if (Py_TYPE(found.get()) != &PyMemberDescr_Type) {
      PyErr_Format(PyExc_TypeError, "%R has no slot %s", in, name);
      return false;
    }
    take(found.get());
    return true;
  }

#ifdef Py_LIMITED_API
  [[nodiscard]] Reference get(PyObject* object) const {
    return Reference(read_(descriptor_, object, reinterpret_cast<PyObject*>(Py_TYPE(object))));
  }
  [[nodiscard]] bool set(PyObject* object, PyObject* value) const {
    return write_(descriptor_, object, value) == 0;
  }

 private:
  void take(PyObject* descriptor) {
    descriptor_ = descriptor;
    read_ = reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_get));
    write_ = reinterpret_cast<descrsetfunc>(PyType_GetSlot(Py_TYPE(descriptor), Py_tp_descr_set));
  }

  PyObject* descriptor_ = nullptr;  // owned by the class
  descrgetfunc read_ = nullptr;
  descrsetfunc write_ = nullptr;
#else
  /// Null if the slot is empty or the object has another class. An error may be set.
  [[nodiscard]] Reference get(PyObject* object) const {
    return PyObject_TypeCheck(object, type_) != 0 ? new_reference(*place(object)) : nullptr;
  }
  [[nodiscard]] bool set(PyObject* object, PyObject* value) const {
    if (PyObject_TypeCheck(object, type_) == 0) return false;
    Py_INCREF(value);
    Py_XSETREF(*place(object), value);
    return true;
  }

 private:
  void take(PyObject* descriptor) {
    const auto* const member = reinterpret_cast<PyMemberDescrObject*>(descriptor);
    type_ = member->d_common.d_type;
    offset_ = member->d_member->offset;
  }
  [[nodiscard]] PyObject** place(PyObject* object) const {
    return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
  }

  PyTypeObject* type_ = nullptr;
  Py_ssize_t offset_ = 0;
#endif
};

/// Members in the order of use, so that a call touches few cache lines.
struct QuickMake {
  PyObject_HEAD vectorcallfunc call;
  PyObject *nixl_read, *nixl_write;  // NIXL's words, interned as Python interns the constants of a program
  PyObject *read, *write;            // Headrace's words
  Slot native;                       // of NIXL's agent: Headrace's agent
  Slot pages, thing;  // of a prepared list's handle: its page list (None: only some paths are allowed), and
                      // the prepared list that it stands for
  PyObject* none;     // a copy of the pointer to None, so that the interpreter's tables are not touched
  PyObject* make_request;  // headrace.Agent.make_request
#ifndef Py_LIMITED_API
  vectorcallfunc made_by;  // the function of make_request
#endif
  PyObject* transfer;         // the class of the result
  Slot notification, remote;  // of the result
  PyObject* function;         // the method in Python
  PyObject* error;            // headrace.Error
  PyObject* method_type;      // types.MethodType
  PyObject *owner, *handle;   // the classes that have the slots
};

QuickMake& of(PyObject* object) { return *reinterpret_cast<QuickMake*>(object); }

template <class Visit>
int visit_references(QuickMake& self, Visit&& visit) {
  for (PyObject** reference :
       {&self.nixl_read, &self.nixl_write, &self.read, &self.write, &self.make_request, &self.transfer,
        &self.function, &self.error, &self.method_type, &self.owner, &self.handle}) {
    if (const int stop = visit(*reference); stop != 0) return stop;
  }
  return 0;
}

/// The arguments of make_prepped_xfer, borrowed. Without keywords it is the caller's own array, which ends
/// with the last argument.
class Arguments {
 public:
  enum Place : std::size_t {
    agent,
    operation,
    local,
    local_indices,
    remote,
    remote_indices,
    message,
    backends,
    skip_merge,
    most
  };

  /// False if the arguments do not fit the method; the method in Python then raises the error.
  bool take(PyObject* const* values, std::size_t positional, PyObject* keywords) {
    if (positional > most) return false;
    if (keywords != nullptr) return take_keywords(values, positional, keywords);
    values_ = values;
    count_ = positional;
    return positional > remote_indices;
  }
  /// Null if the argument was not given.
  PyObject* operator[](Place place) const { return place < count_ ? values_[place] : nullptr; }

 private:
  [[gnu::noinline]] bool take_keywords(PyObject* const* values, std::size_t positional, PyObject* keywords) {
    std::copy_n(values, positional, all_);
    std::fill_n(all_ + positional, most - positional, nullptr);
    for (Py_ssize_t i = 0; i < PyTuple_Size(keywords); ++i)
      if (!take_named(PyTuple_GetItem(keywords, i), values[positional + static_cast<std::size_t>(i)]))
        return false;
    values_ = all_;
    count_ = most;
    return std::find(all_, all_ + remote_indices + 1, nullptr) == all_ + remote_indices + 1;
  }
  bool take_named(PyObject* name, PyObject* value) {
    static constexpr std::array<const char*, most> names{
        "self",           "operation", "local_xfer_side", "local_indices",  "remote_xfer_side",
        "remote_indices", "notif_msg", "backends",        "skip_desc_merge"};
    for (std::size_t i = 0; i < most; ++i) {
      if (PyUnicode_CompareWithASCIIString(name, names[i]) != 0) continue;
      if (all_[i] != nullptr) return false;
      all_[i] = value;
      return true;
    }
    return false;
  }

  PyObject* const* values_;
  std::size_t count_;
  PyObject* all_[most];  // used if there are keywords
};

/// Headrace's word for the operation; null if NIXL has no such operation.
[[gnu::noinline]] PyObject* other_word(const QuickMake& self, PyObject* operation) {
  if (PyUnicode_Check(operation) == 0) return nullptr;
  if (PyUnicode_CompareWithASCIIString(operation, "READ") == 0) return self.read;
  if (PyUnicode_CompareWithASCIIString(operation, "WRITE") == 0) return self.write;
  return nullptr;
}

PyObject* word_of(const QuickMake& self, PyObject* operation) {
  if (operation == self.nixl_read) [[likely]]
    return self.read;
  return operation == self.nixl_write ? self.write : other_word(self, operation);
}

/// The notification as a transfer keeps it; null if the method in Python must convert it.
[[gnu::noinline]] PyObject* kept(const QuickMake& self, PyObject* message) {
  if (PyBytes_CheckExact(message) == 0) return nullptr;
  return PyBytes_Size(message) == 0 ? self.none : message;
}

[[gnu::noinline]] bool is_empty(PyObject* list) {
  return PyList_CheckExact(list) != 0 && PyList_Size(list) == 0;
}

/// Calls headrace.Agent.make_request. The callee may use values[-1] (PY_VECTORCALL_ARGUMENTS_OFFSET).
Reference make_request(const QuickMake& self, PyObject* const* values, std::size_t count) {
#ifdef Py_LIMITED_API
  return Reference(
      PyObject_Vectorcall(self.make_request, values, count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
#else
  return Reference(self.made_by(self.make_request, values, count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
#endif
}

/// Prefetches what the call needs: earlier work has usually replaced it in the cache. All lines load at once.
void fetch(const QuickMake& self, const Arguments& given) {
  using enum Arguments::Place;
  for (std::size_t line = 64; line < offsetof(QuickMake, function); line += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(&self) + line);
  for (const auto place : {agent, local, remote, local_indices, remote_indices})
    __builtin_prefetch(given[place]);
}

/// Makes the transfer; null if the method in Python must do it, or if an error is set.
Reference make(const QuickMake& self, const Arguments& given) {
  using enum Arguments::Place;
  fetch(self, given);
  PyObject* const word = word_of(self, given[operation]);
  PyObject* const said = given[message] == nullptr ? self.none : kept(self, given[message]);
  const bool any_path = given[backends] == nullptr || is_empty(given[backends]);
  if (word == nullptr || said == nullptr || !any_path || self.owner == nullptr) return nullptr;
  const Reference headrace_agent = self.native.get(given[agent]);
  const Reference here = headrace_agent ? self.pages.get(given[local]) : nullptr;
  const Reference there = here ? self.pages.get(given[remote]) : nullptr;
  const Reference far_side = there ? self.thing.get(given[remote]) : nullptr;
  if (!far_side || here.get() == self.none || there.get() == self.none) return nullptr;
  PyObject* const values[] = {nullptr,
                              headrace_agent.get(),
                              word,
                              here.get(),
                              there.get(),
                              given[local_indices],
                              given[remote_indices],
                              self.none,
                              self.none,
                              self.transfer};
  Reference made = make_request(self, values + 1, std::size(values) - 1);
  if (!made || !self.notification.set(made.get(), said) || !self.remote.set(made.get(), far_side.get()))
    return nullptr;
  return made;
}

/// Whether to call the method in Python after make() returned null. The method handles these errors itself.
/// Other exceptions (a signal, no memory) are raised.
[[gnu::noinline]] bool is_for_python(const QuickMake& self) {
  if (PyErr_Occurred() == nullptr) return true;
  for (PyObject* kind : {self.error, PyExc_TypeError, PyExc_AttributeError}) {
    if (PyErr_ExceptionMatches(kind) == 0) continue;
    PyErr_Clear();
    return true;
  }
  return false;
}

PyObject* called(PyObject* callable, PyObject* const* values, std::size_t flags, PyObject* keywords) {
  const QuickMake& self = of(callable);
  Arguments arguments;
  if (arguments.take(values, static_cast<std::size_t>(PyVectorcall_NARGS(flags)), keywords)) {
    if (Reference made = make(self, arguments)) return made.release();
    if (!is_for_python(self)) return nullptr;
  }
  return PyObject_Vectorcall(self.function, values, flags, keywords);
}

// The type

PyObject* created(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* const names[] = {"function", "make_request", "error", "handle", "transfer", nullptr};
  PyObject *function, *request_maker, *error, *handle, *transfer;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "OOOOO:QuickMake", const_cast<char**>(names),
                                  &function, &request_maker, &error, &handle, &transfer) == 0)
    return nullptr;
  const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  Reference object(allocate(type, 0));
  if (!object) return nullptr;
  QuickMake& self = of(object.get());
  self.call = &called;
  self.nixl_read = PyUnicode_InternFromString("READ");
  self.nixl_write = PyUnicode_InternFromString("WRITE");
  self.read = PyUnicode_InternFromString("read");
  self.write = PyUnicode_InternFromString("write");
  self.none = Py_None;
  self.make_request = new_reference(request_maker).release();
#ifndef Py_LIMITED_API
  self.made_by = PyVectorcall_Function(request_maker);
  if (self.made_by == nullptr)
    return PyErr_Format(PyExc_TypeError, "%R is not a compiled function", request_maker);
#endif
  self.transfer = new_reference(transfer).release();
  self.function = new_reference(function).release();
  self.error = new_reference(error).release();
  self.handle = new_reference(handle).release();
  const Reference types(PyImport_ImportModule("types"));
  self.method_type = types ? PyObject_GetAttrString(types.get(), "MethodType") : nullptr;
  const bool worded = self.nixl_read != nullptr && self.nixl_write != nullptr && self.read != nullptr &&
                      self.write != nullptr;
  const bool found = worded && self.method_type != nullptr && self.pages.find(handle, "_pages") &&
                     self.thing.find(handle, "_thing") && self.notification.find(transfer, "notification") &&
                     self.remote.find(transfer, "_remote");
  return found ? object.release() : nullptr;
}

/// Called when the class exists in which it replaces the method: finds the slot with Headrace's agent.
PyObject* set_name(PyObject* object, PyObject* arguments) {
  PyObject *owner, *name;
  if (PyArg_ParseTuple(arguments, "OO:__set_name__", &owner, &name) == 0) return nullptr;
  if (of(object).owner != nullptr) Py_RETURN_NONE;  // another class uses it too
  if (!of(object).native.find(owner, "_native")) return nullptr;
  of(object).owner = new_reference(owner).release();
  Py_RETURN_NONE;
}

PyObject* bound(PyObject* object, PyObject* instance, PyObject* /*type*/) {
  if (instance == nullptr || instance == Py_None) return new_reference(object).release();
  return PyObject_CallFunctionObjArgs(of(object).method_type, object, instance, nullptr);
}

/// Name, docstring and all other attributes are those of the method in Python.
PyObject* attribute(PyObject* object, PyObject* name) {
  PyObject* const own = PyObject_GenericGetAttr(object, name);
  if (own != nullptr || PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return own;
  PyErr_Clear();
  return PyObject_GetAttr(of(object).function, name);
}

PyObject* text(PyObject* object, void* /*unused*/) {
  return PyObject_GetAttrString(of(object).function, "__doc__");
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  return visit_references(
      of(object), [&](PyObject* reference) { return reference == nullptr ? 0 : visit(reference, arg); });
}

// It has no tp_clear: its class drops it when the garbage collector breaks a cycle, and until then it may be
// called.

void destroyed(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  visit_references(of(object), [](PyObject*& reference) {
    Py_CLEAR(reference);
    return 0;
  });
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
  Py_DECREF(type);
}

PyMethodDef methods[] = {{"__set_name__", &set_name, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {{"__wrapped__", T_OBJECT_EX, offsetof(QuickMake, function), READONLY, nullptr},
                         {"__vectorcalloffset__", T_PYSSIZET, offsetof(QuickMake, call), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef properties[] = {{"__doc__", &text, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot type_slots[] = {{Py_tp_new, reinterpret_cast<void*>(&created)},
                            {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                            {Py_tp_descr_get, reinterpret_cast<void*>(&bound)},
                            {Py_tp_getattro, reinterpret_cast<void*>(&attribute)},
                            {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(&destroyed)},
                            {Py_tp_methods, methods},
                            {Py_tp_members, members},
                            {Py_tp_getset, properties},
                            {0, nullptr}};

PyType_Spec specification = {
    "headrace.compat.nixl._compiled.QuickMake", sizeof(QuickMake), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    type_slots};

}  // namespace

bool add_quick_make(PyObject* module) {
  const Reference type(PyType_FromSpec(&specification));
  return type && PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type.get())) == 0;
}

}  // namespace headrace::compat_nixl
