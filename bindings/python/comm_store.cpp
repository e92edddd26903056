// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/comm_store.hpp"

#include "bindings/python/convert.hpp"

namespace headrace::python {
namespace {

/// A store without `check` says by an error of `wait` that a key has no value. It waits so long at least.
constexpr auto short_wait = std::chrono::milliseconds(1);

nb::object timedelta(std::chrono::nanoseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return nb::module_::import_("datetime").attr("timedelta")(nb::arg("seconds") = seconds);
}

nb::list list_of(const std::string& key) {
  nb::list keys;
  keys.append(to_str(key));
  return keys;
}

/// What `wait` raises for a key without a value: torch has a class of RuntimeError for it.
bool says_missing(const nb::python_error& error) {
  return error.matches(PyExc_LookupError) || error.matches(PyExc_TimeoutError) ||
         error.matches(PyExc_RuntimeError);
}

Error missing(const std::string& key) { return {Code::not_found, "\"" + key + "\" has no value yet"}; }

}  // namespace

std::shared_ptr<PyStore> PyStore::open(nb::handle object, bool lasts) {
  for (const char* method : {"set", "get", "wait"})
    if (!nb::hasattr(object, method))
      raise_invalid("store is " + shown(object) + ", which has no method " + method +
                    ": give an object like torch.distributed.Store, with set(key, value), get(key) and "
                    "wait([key], timedelta)");
  nb::object kept = nb::borrow(object);
  return hold<PyStore>(kept, lasts);
}

template <class Call>
auto PyStore::with_gil(const char* method, const Call& call) -> decltype(call()) {
  const CallbackScope scope;
  if (!scope) return Error{Code::canceled, "the interpreter ends"};
  try {
    return call();
  } catch (nb::python_error& error) {
    return keep(method, error);
  }
}

Error PyStore::keep(const char* method, nb::python_error& error) {
  raised_ = nb::borrow(error.value());
  return {Code::backend_failed, std::string("the store's ") + method + " raised " + shown(raised_)};
}

Result<void> PyStore::set(const std::string& key, const std::string& value) {
  return with_gil("set", [&]() -> Result<void> {
    store_.attr("set")(to_str(key), to_bytes(value));
    return {};
  });
}

Result<std::string> PyStore::get(const std::string& key) {
  return with_gil("get", [&]() -> Result<std::string> {
    if (!has_value(key)) return missing(key);
    return from_bytes(store_.attr("get")(to_str(key)), "the value of a store");
  });
}

/// torch's get waits for minutes for a key without a value, so it is asked before.
bool PyStore::has_value(const std::string& key) {
  if (nb::hasattr(store_, "check")) return static_cast<bool>(nb::bool_(store_.attr("check")(list_of(key))));
  try {
    store_.attr("wait")(list_of(key), timedelta(short_wait));
    return true;
  } catch (const nb::python_error& error) {
    if (!says_missing(error)) throw;
    return false;
  }
}

}  // namespace headrace::python
