// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/c10d/symmetric_allocator.hpp"

#include "bindings/torch/c10d/backend.hpp"
#include "bindings/torch/c10d/errors.hpp"
#include "bindings/torch/comm/endings.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

namespace headrace::torch_group {
namespace {

namespace torch_memory = c10d::symmetric_memory;

Agent open_agent() {
  std::random_device random;
  AgentOptions options;
  options.backends = {"shm"};
  return take(Agent::open(c10::str("symmetric-memory-", random(), "-", random()), options));
}

/// With or without the GIL.
std::shared_ptr<Comm> comm_of_group(const std::string& name) {
  const py::gil_scoped_acquire gil;
  return comm_of(py::module_::import("headrace._torch.opening").attr("comm_of_group_name")(name));
}

/// Never destroyed: tensors that outlive the interpreter call it.
SymmetricAllocator& allocator() {
  static auto& one = *new c10::intrusive_ptr<SymmetricAllocator>(c10::make_intrusive<SymmetricAllocator>());
  return *one;
}

}  // namespace

Agent& SymmetricAllocator::agent() {
  const std::scoped_lock lock(mutex_);
  if (!agent_) agent_.emplace(open_agent());
  return *agent_;
}

SymmetricAllocator::Allocation& SymmetricAllocator::allocation_at(void* address) {
  const auto found = allocations_.find(address);
  TORCH_CHECK(found != allocations_.end(),
              "the tensor's memory is not that of a symmetric tensor on the CPU: make it by "
              "torch.distributed._symmetric_memory.empty(..., device=\"cpu\")");
  return found->second;
}

void* SymmetricAllocator::alloc(size_t size, int /*device_idx*/,
                                const std::optional<std::string>& group_name) {
  const WithoutGil without;
  Agent& agent = this->agent();
  Region region = take(agent.allocate(std::max<std::size_t>(size, 1)));
  auto storage = take(agent.storage(region.id));
  void* const address = storage.get();
  const std::scoped_lock lock(mutex_);
  allocations_.insert_or_assign(address, Allocation{std::move(region), std::move(storage), group_name, {}});
  return address;
}

void SymmetricAllocator::free(void* ptr) {
  auto freed = std::make_shared<Allocation>();
  {
    const std::scoped_lock lock(mutex_);
    const auto found = allocations_.find(ptr);
    if (found == allocations_.end()) return;
    *freed = std::move(found->second);
    allocations_.erase(found);
  }
  // Other ranks are told, and one that stands still does not answer: not on the thread that drops a tensor.
  at_endings([this, freed] {
    freed->met.clear();
    static_cast<void>(agent().deregister(freed->region.id, std::chrono::seconds(1)));
  });
}

size_t SymmetricAllocator::get_alloc_size(void* ptr) {
  const std::scoped_lock lock(mutex_);
  return allocation_at(ptr).region.length_bytes;
}

bool SymmetricAllocator::has_allocation(void* ptr) {
  const std::scoped_lock lock(mutex_);
  return allocations_.count(ptr) != 0;
}

c10::intrusive_ptr<torch_memory::SymmetricMemory> SymmetricAllocator::rendezvous(
    void* ptr, const std::optional<std::string>& group_name) {
  Region region;
  std::optional<std::string> group = group_name;
  {
    const std::scoped_lock lock(mutex_);
    const Allocation& allocation = allocation_at(ptr);
    region = allocation.region;
    if (!group) group = allocation.group;
  }
  TORCH_CHECK(group, "rendezvous of a tensor that was made for no group: give the group");
  std::shared_ptr<Comm> comm = comm_of_group(*group);
  const WithoutGil without;
  {
    const std::scoped_lock lock(mutex_);
    const Allocation& allocation = allocation_at(ptr);
    if (const auto met = allocation.met.find(comm.get()); met != allocation.met.end()) return met->second;
  }
  Comm* const key = comm.get();
  auto memory = SymmetricMemory::meet(std::move(comm), agent(), region);
  const std::scoped_lock lock(mutex_);
  allocation_at(ptr).met.insert_or_assign(key, memory);
  return memory;
}

void SymmetricAllocator::close() {
  std::map<void*, Allocation> left;
  {
    const std::scoped_lock lock(mutex_);
    left = allocations_;
    for (auto& [address, allocation] : allocations_) allocation.met.clear();
  }
  left.clear();  // the windows, without the lock
  const std::scoped_lock lock(mutex_);
  if (agent_) agent_->close();
}

void register_symmetric_memory() {
  const auto ours = c10::intrusive_ptr<torch_memory::SymmetricMemoryAllocator>::reclaim_copy(&allocator());
  torch_memory::register_availability(ours->name(), ours);
  if (!torch_memory::has_allocator(c10::DeviceType::CPU))
    torch_memory::register_allocator(c10::DeviceType::CPU, ours);
}

void close_symmetric_memory() { allocator().close(); }

}  // namespace headrace::torch_group
