// SPDX-License-Identifier: Apache-2.0
// Memory of symmetric tensors on the CPU: torch.distributed._symmetric_memory calls it.
#pragma once

#include "bindings/torch/c10d/symmetric_memory.hpp"

#include <headrace/agent.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace headrace::torch_group {

/// Allocates memory of an agent of this process, which is opened for the first tensor: torch does not say
/// for which group a tensor will be.
///   threads  any
class SymmetricAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  void* alloc(size_t size, int device_idx, const std::optional<std::string>& group_name) override;
  /// Of other ranks: what they have mapped keeps its bytes.
  void free(void* ptr) override;
  size_t get_alloc_size(void* ptr) override;
  /// A collective, the first time for a tensor and a group.
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> rendezvous(
      void* ptr, const std::optional<std::string>& group_name) override;
  bool has_multicast_support(int /*device_idx*/) override { return false; }
  c10::DeviceType supported_device_type() override { return c10::DeviceType::CPU; }
  std::string name() override { return "HEADRACE"; }
  bool has_allocation(void* ptr) override;
  /// Leaves the other ranks. Memory stays until its tensors go.
  void close();

 private:
  struct Allocation {
    Region region;
    std::shared_ptr<std::byte> storage;
    std::optional<std::string> group;
    std::map<Comm*, c10::intrusive_ptr<SymmetricMemory>> met;  // each keeps its communicator
  };
  Agent& agent();
  /// With the lock.
  Allocation& allocation_at(void* address);

  std::mutex mutex_;
  std::optional<Agent> agent_;
  std::map<void*, Allocation> allocations_;
};

/// Makes torch use it for symmetric tensors on the CPU, unless it has another allocator for them.
void register_symmetric_memory();
/// When the interpreter ends.
void close_symmetric_memory();

}  // namespace headrace::torch_group
