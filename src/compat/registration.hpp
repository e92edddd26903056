// SPDX-License-Identifier: Apache-2.0
// Memory that is registered with the fabric of the process, by one RdmaMemory or for a segment of an
// allocator.
#pragma once

#include "compat/endpoint.hpp"

#include <headrace/compat/rdma_transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace headrace::compat {

class Registration {
 public:
  Registration(std::shared_ptr<Endpoint> endpoint, FabricMemory memory);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  ///   errors  those of Fabric::open and Fabric::register_memory
  [[nodiscard]] static Result<std::shared_ptr<Registration>> make(const MemoryRange& range);

  /// Ends the posts that use it; then no peer reaches it. Its owner may free the memory afterwards.
  void drop();

  [[nodiscard]] const FabricMemory& memory() const { return memory_; }
  [[nodiscard]] Endpoint& endpoint() const { return *endpoint_; }
  [[nodiscard]] bool dropped() const { return dropped_; }
  [[nodiscard]] std::uint64_t offset_of(const void* inside) const {
    return reinterpret_cast<std::uintptr_t>(inside) - memory_.address();
  }

 private:
  std::shared_ptr<Endpoint> endpoint_;
  FabricMemory memory_;
  std::atomic<bool> dropped_{false};
};

/// The segment of RdmaRegTensor that contains these bytes; null: there is none.
[[nodiscard]] std::shared_ptr<Registration> segment_of(const void* buf, std::size_t len);

}  // namespace headrace::compat
