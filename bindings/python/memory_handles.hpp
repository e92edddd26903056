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

/// A peer's memory, mapped here. What is made of it holds `share()`, in this process.
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
    /// A mapping for a GPU waits for this GPU at its end, and Python does not wait with it. The last to hold
    /// it may be another library's tensor, on a thread that Python knows or on another.
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
