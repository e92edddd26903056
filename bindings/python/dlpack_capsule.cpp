// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/dlpack_capsule.hpp"

#include <nanobind/stl/pair.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

namespace headrace::python {
namespace {

using Lengths = std::array<std::int64_t, most_tensor_dimensions>;

[[noreturn]] void refuse(const char* sentence) {
  PyErr_SetString(PyExc_BufferError, sentence);
  throw nb::python_error();
}

/// Owned by a capsule: the memory, and the shape that the DLPack structure points to.
template <class Managed>
struct Exported {
  static constexpr const char* name =
      std::is_same_v<Managed, DlManagedTensor> ? "dltensor" : "dltensor_versioned";

  explicit Exported(DlArray from) : array(std::move(from)) {
    std::int64_t stride = 1;
    for (std::size_t i = array.shape.rank(); i-- > 0;) {
      shape[i] = array.shape[i];
      strides[i] = stride;
      stride *= std::max<std::int64_t>(shape[i], 1);
    }
    managed.tensor = {array.data,
                      array.device,
                      static_cast<std::int32_t>(array.shape.rank()),
                      dlpack_dtype(array.dtype),
                      shape.data(),
                      strides.data(),
                      0};
    managed.owner = this;
    managed.release = [](Managed* gone) { delete static_cast<Exported*>(gone->owner); };
  }

  Managed managed{};
  const DlArray array;
  Lengths shape{}, strides{};
};

template <class Managed>
void free_capsule(PyObject* capsule) {
  constexpr const char* name = Exported<Managed>::name;
  if (PyCapsule_IsValid(capsule, name) == 0) return;  // an importer has taken it over and renamed it
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->release(managed);
}

template <class Managed>
nb::object in_capsule(std::unique_ptr<Exported<Managed>> exported) {
  nb::object capsule =
      nb::steal(PyCapsule_New(&exported->managed, Exported<Managed>::name, &free_capsule<Managed>));
  if (!capsule.is_valid()) throw nb::python_error();
  (void)exported.release();
  return capsule;
}

/// A named argument; not valid if it was not given or is None.
nb::object given(const nb::kwargs& how, const char* name) {
  if (!how.contains(name)) return {};
  nb::object value = how[name];
  return value.is_none() ? nb::object() : value;
}

void check_wishes(const DlArray& array, const nb::kwargs& how) {
  if (const nb::object copy = given(how, "copy"); copy.is_valid() && nb::cast<bool>(copy))
    refuse("__dlpack__ does not copy the memory: copy the imported tensor");
  const nb::object device = given(how, "dl_device");
  if (!device.is_valid()) return;
  const auto [type, index] = nb::cast<std::pair<std::int32_t, std::int32_t>>(device);
  if (type != array.device.type || index != array.device.index)
    refuse("__dlpack__ does not move the memory to another device: move the imported tensor");
}

}  // namespace

nb::object dlpack_capsule(DlArray array, const nb::kwargs& how) {
  check_wishes(array, how);
  const nb::object version = given(how, "max_version");
  if (version.is_valid() && nb::cast<std::pair<int, int>>(version).first >= 1) {
    auto exported = std::make_unique<Exported<DlManagedTensorVersioned>>(std::move(array));
    exported->managed.version = {1, 0};  // no field of a later version is used
    exported->managed.flags = exported->array.read_only ? dl_read_only : 0;
    return in_capsule(std::move(exported));
  }
  if (array.read_only)
    refuse("the memory is read-only, which DLPack before version 1 cannot express: use max_version=(1, 0)");
  return in_capsule(std::make_unique<Exported<DlManagedTensor>>(std::move(array)));
}

}  // namespace headrace::python
