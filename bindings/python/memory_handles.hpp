// SPDX-License-Identifier: Apache-2.0
// Regions, allocated memory and mappings for Python.
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

/// Memory from `allocate`. A view of it keeps this object, and this object keeps the memory, even if the
/// region is deregistered.
struct PyMemory {
  PyRegion region;
  std::shared_ptr<std::byte> storage;
};

/// A peer's memory that is mapped into this process. Arrays of it keep `share()`.
class PyMapping {
 public:
  explicit PyMapping(Mapping mapping) : kept_(std::make_shared<Kept>(std::move(mapping))) {}
  PyMapping(PyMapping&&) = default;
  PyMapping& operator=(PyMapping&&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const { return kept_->mapping->bytes(); }
  [[nodiscard]] int device() const { return kept_->mapping->device(); }
  [[nodiscard]] bool writable() const { return kept_->mapping->writable(); }
  [[nodiscard]] bool alive() const { return kept_->mapping->alive(); }
  [[nodiscard]] std::shared_ptr<const void> share() const { return kept_; }

 private:
  struct Kept {
    explicit Kept(Mapping made) : mapping(std::make_shared<Mapping>(std::move(made))) {}
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    /// The end of a mapping for a GPU waits for that GPU, so it must be without the GIL. The last reference
    /// may be another library's tensor, on a thread with or without the GIL.
    ~Kept() {
      const bool waits = mapping->device() >= 0 && home.is_here();
      if (!waits || Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) {
        home.release(mapping);
        return;
      }
      const PyGILState_STATE gil = PyGILState_Ensure();
      {
        const WithoutGil scope;
        home.release(mapping);
      }
      PyGILState_Release(gil);
    }

    const HomeProcess home;
    std::shared_ptr<Mapping> mapping;
  };

  std::shared_ptr<Kept> kept_;
};

}  // namespace headrace::python
