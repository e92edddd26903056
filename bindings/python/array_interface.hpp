// SPDX-License-Identifier: Apache-2.0
// What `__array_interface__` and `__cuda_array_interface__` return: memory with its address, in version 3.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace headrace::python {

/// One dimension, without gaps. The reader of the interface keeps the object, and so the memory.
inline nanobind::dict array_interface(std::uintptr_t address, std::size_t length, const char* typestr,
                                      bool read_only) {
  nanobind::dict interface;
  interface["version"] = 3;
  interface["shape"] = nanobind::make_tuple(length);
  interface["typestr"] = typestr;
  interface["data"] = nanobind::make_tuple(address, read_only);
  interface["strides"] = nanobind::none();
  return interface;
}

/// The same for GPU memory on which no work is queued for which a reader must wait.
inline nanobind::dict cuda_array_interface(std::uintptr_t address, std::size_t length, const char* typestr,
                                           bool read_only) {
  nanobind::dict interface = array_interface(address, length, typestr, read_only);
  interface["stream"] = nanobind::none();
  return interface;
}

}  // namespace headrace::python
