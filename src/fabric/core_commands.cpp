// SPDX-License-Identifier: Apache-2.0
// Queues of commands: what is checked before kernels post.
#include "fabric/command_queue.hpp"
#include "fabric/core.hpp"

#include <utility>

namespace headrace::fabric {
namespace {

constexpr std::uint32_t most_commands = 4096;  // so many requests of a link wait for their turn

Error of_write(std::size_t number, Error error) {
  return std::move(error).within(fmt::format("write {} of the queue", number));
}

}  // namespace

Result<CommandQueue::Write> Core::queue_write(const FabricQueueWrite& write) const {
  if (write.unit_bytes != 0 && write.units > UINT64_MAX / write.unit_bytes)
    return make_error(Code::invalid_argument, "{} units of {} bytes are more than 2^64 bytes", write.units,
                      write.unit_bytes);
  HEADRACE_TRY(part, range_part({HEADRACE_WRITE, write.from, write.from_offset, write.to, write.to_offset,
                                 write.unit_bytes * write.units}));
  HEADRACE_TRY(plan, plan_of(write.post, part.here->group, 1));
  part.plan = plan;
  const bool counts_units = write.post.count_by == FabricCountBy::page;
  return CommandQueue::Write{std::move(part), write.unit_bytes, write.units, counts_units,
                             write.post.timeout};
}

Result<FabricCommandQueue> Core::command_queue(std::span<const FabricQueueWrite> writes,
                                               const FabricQueueOptions& options) {
  HEADRACE_TRY_VOID(usable());
  if (writes.empty()) return make_error(Code::invalid_argument, "a queue has a list of at least one write");
  if (options.capacity == 0 || options.capacity > most_commands)
    return make_error(Code::invalid_argument, "a queue has 1 to {} slots, not {}", most_commands,
                      options.capacity);
  CommandQueue::Setup setup;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    auto write = queue_write(writes[i]);
    if (!write) return of_write(i, std::move(write).error());
    const std::size_t first =
        setup.writes.empty() ? write->part.here->group : setup.writes.front().part.here->group;
    if (write->part.here->group != first)
      return of_write(i,
                      make_error(Code::invalid_argument,
                                 "its memory is of group {}, and that of write 0 of group {}: make a queue "
                                 "for each group",
                                 write->part.here->group, first));
    setup.writes.push_back(std::move(*write));
  }
  std::shared_ptr<const gpu::Device> device;
  if (options.device) {
    HEADRACE_TRY(opened, flags_->open_gpu(*options.device));
    device = std::move(opened);
  }
  const std::int64_t timeout_ns = options.timeout ? options.timeout->count() : -1;
  HEADRACE_TRY(memory, QueueMemory::make(device, options.capacity, timeout_ns));
  setup.device = options.device;
  setup.capacity = options.capacity;
  setup.worker = workers_[setup.writes.front().part.here->group];
  setup.callbacks = callbacks_;
  setup.clock = clock_;
  setup.fork = fork_;
  auto made = std::make_shared<CommandQueue>(std::move(setup), std::move(memory));
  {
    const std::lock_guard lock(queues_mutex_);
    std::erase_if(queues_, [](const auto& queue) { return queue.expired(); });
    queues_.push_back(made);
  }
  if (!made->setup.worker->poll_memory(made))
    return make_error(Code::invalid_argument, "the fabric is closed: open another");
  return FabricCommandQueue(std::make_shared<const HeldQueue>(std::move(made)));
}

/// Kernels that wait leave.
void Core::close_queues() {
  const std::lock_guard lock(queues_mutex_);
  for (const auto& each : queues_)
    if (const auto queue = each.lock()) queue->close();
}

}  // namespace headrace::fabric
