// SPDX-License-Identifier: Apache-2.0
// Regions, allocations and mappings as Python holds them.
#pragma once

#include <headrace/memory.hpp>

#include "bindings/python/interpreter.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace headrace::python {

struct PyRegion {
  Region region;
};

/// What `allocate` gave. A view of it holds this object, and this object the memory, whatever becomes of the
/// region.
struct PyMemory {
  PyRegion region;
  std::shared_ptr<std::byte> storage;
};

/// A peer's memory, mapped here.
class PyMapping {
 public:
  explicit PyMapping(Mapping mapping) : mapping_(std::make_shared<Mapping>(std::move(mapping))) {}
  PyMapping(PyMapping&&) = default;
  ~PyMapping() { home_.release(mapping_); }

  [[nodiscard]] std::span<std::byte> bytes() const { return mapping_->bytes(); }
  [[nodiscard]] bool writable() const { return mapping_->writable(); }
  [[nodiscard]] bool alive() const { return mapping_->alive(); }

 private:
  HomeProcess home_;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace headrace::python
