// SPDX-License-Identifier: Apache-2.0
// The physical memory and the reserved addresses of the fake driver's virtual memory API.
#pragma once

#include "support/fake_cuda/pieces.hpp"
#include "vendor/cuda/types.hpp"

#include <cstddef>
#include <map>

namespace headrace::cuda {

class FakePhysicalMemory {
 public:
  struct Allocation {
    int fd = -1;  // the name of the file says which GPU it belongs to
    std::size_t bytes = 0;
    AllocationProperties properties;
    int references = 1;
  };

  explicit FakePhysicalMemory(BufferIds& ids) : ids_(ids) {}
  ~FakePhysicalMemory();
  FakePhysicalMemory(const FakePhysicalMemory&) = delete;
  FakePhysicalMemory& operator=(const FakePhysicalMemory&) = delete;

  [[nodiscard]] PhysicalMemory make(std::size_t bytes, const AllocationProperties& properties);
  /// Takes memory that another handle made, by a descriptor, which it duplicates.
  [[nodiscard]] PhysicalMemory import(int fd, std::size_t bytes, const AllocationProperties& properties);
  [[nodiscard]] Outcome release(PhysicalMemory memory);
  /// Null: there is no such memory.
  [[nodiscard]] Allocation* find(PhysicalMemory memory);
  [[nodiscard]] std::size_t bytes_of(Device device) const;
  [[nodiscard]] int count() const { return static_cast<int>(allocations_.size()); }

  /// 0: there is no room.
  [[nodiscard]] Address reserve(std::size_t bytes);
  [[nodiscard]] bool is_reservation(Address address, std::size_t bytes) const;
  [[nodiscard]] bool is_reserved(Address address, std::size_t bytes) const;
  void unreserve(Address address);
  [[nodiscard]] int reservation_count() const { return static_cast<int>(reservations_.size()); }

 private:
  BufferIds& ids_;
  std::map<PhysicalMemory, Allocation> allocations_;
  std::map<Address, std::size_t> reservations_;
};

}  // namespace headrace::cuda
