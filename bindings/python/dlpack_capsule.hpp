// SPDX-License-Identifier: Apache-2.0
// What `__dlpack__` gives out: memory of ours, described for other libraries to use in place.
#pragma once

#include "bindings/python/dlpack_structs.hpp"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

namespace nb = nanobind;

namespace headrace::python {

/// Row-major, without gaps.
struct DlArray {
  void* data = nullptr;
  DType dtype = DType::uint8;
  Shape shape = {};
  DlDevice device{};
  bool read_only = false;
  std::shared_ptr<const void> owner;  ///< of the memory; let go of on any thread, with the GIL or without
};

/// A capsule that keeps the memory until who takes it over lets go: of DLPack 1, if the reader says by
/// `max_version` that it knows it, else of the one before.
///   how  what `__dlpack__` was called with; `stream` is the caller's to see to
/// Raises BufferError: memory that can be read only, for a reader of the one before, which would not learn
/// it; a copy, or another device.
nb::object dlpack_capsule(DlArray array, const nb::kwargs& how);

}  // namespace headrace::python
