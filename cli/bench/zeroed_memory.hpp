// SPDX-License-Identifier: Apache-2.0
// Memory of which the system gives each page when it is first used: outputs of a benchmark have room for the
// worst case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace headrace::cli {

class ZeroedMemory {
 public:
  explicit ZeroedMemory(std::int64_t bytes)
      : memory_(static_cast<std::byte*>(std::calloc(static_cast<std::size_t>(bytes) + 1, 1)), &std::free) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
};

}  // namespace headrace::cli
