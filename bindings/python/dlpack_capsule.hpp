// SPDX-License-Identifier: Apache-2.0
// The result of `__dlpack__`: memory of this process, described so that other libraries use it in place.
#pragma once

#include "bindings/python/dlpack_structs.hpp"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

namespace nb = nanobind;

namespace headrace::python {

/// An array, row-major without gaps.
struct DlArray {
  void* data = nullptr;
  DType dtype = DType::uint8;
  Shape shape = {};
  DlDevice device{};
  bool read_only = false;
  std::shared_ptr<const void>
      owner;  ///< owns the memory; may be released on any thread, with or without the GIL
};

/// Makes a capsule that keeps the memory until its importer releases it. It has DLPack version 1 if the
/// importer says by `max_version` that it knows it, else the version before.
///   how  the arguments of `__dlpack__`; the caller handles `stream`
/// Raises BufferError if a copy or another device is asked for, or if the memory is read-only and the
/// importer does not know version 1, in which only it could be told.
nb::object dlpack_capsule(DlArray array, const nb::kwargs& how);

// The methods of a class that exports DLPack.
inline constexpr const char dlpack_signature[] = "def __dlpack__(self, **kwargs: object) -> typing.Any";
inline constexpr const char dlpack_doc[] =
    "Exports the memory by DLPack, for torch.from_dlpack and similar functions.";
inline constexpr const char dlpack_device_signature[] = "def __dlpack_device__(self) -> tuple[int, int]";
inline constexpr const char dlpack_device_doc[] = "DLPack's type and number of the device.";

}  // namespace headrace::python
