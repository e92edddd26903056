// SPDX-License-Identifier: Apache-2.0
#include "fabric/command_queue.hpp"

#include "base/errors.hpp"
#include "fabric/worker.hpp"
#include "gpu/stream.hpp"

namespace headrace::fabric {
namespace {

constexpr std::size_t most_a_poll = 64;  // then the worker polls its NICs

}  // namespace

// ------------------------------------------------------------------ memory

Result<std::unique_ptr<QueueMemory>> QueueMemory::make(const std::shared_ptr<const gpu::Device>& device,
                                                       std::uint32_t capacity, std::int64_t timeout_ns) {
  HEADRACE_TRY(host, HostBlock::make(device, commands_at + capacity * sizeof(headrace_fabric_command_v1)));
  std::unique_ptr<QueueMemory> made(new QueueMemory(std::move(host)));
  auto& handle = made->at<headrace_fabric_queue_v1>(handle_at);
  handle.told = made->host_.address();
  handle.status = made->host_.address() + status_at;
  handle.commands = made->host_.address() + commands_at;
  handle.timeout_ns = timeout_ns;
  handle.capacity = capacity;
  if (device != nullptr) HEADRACE_TRY_VOID(made->copy_handle_to(device));
  return made;
}

/// Kernels change it: words of host memory would cost them a way over PCIe.
Result<void> QueueMemory::copy_handle_to(const std::shared_ptr<const gpu::Device>& device) {
  HEADRACE_TRY(on_gpu, gpu::DeviceMemory::allocate(device, sizeof(headrace_fabric_queue_v1)));
  HEADRACE_TRY(stream, gpu::Stream::make(device));
  const gpu::ContextGuard current(*device);
  HEADRACE_CUDA_TRY(device->driver(),
                    device->driver().memcpy_async(on_gpu.address(), host_.address() + handle_at,
                                                  sizeof(headrace_fabric_queue_v1), stream.handle()),
                    "copy {} bytes to GPU {}", sizeof(headrace_fabric_queue_v1), device->ordinal());
  HEADRACE_TRY_VOID(stream.wait_idle());
  on_gpu_ = std::move(on_gpu);
  return {};
}

std::uint64_t QueueMemory::handle() const {
  return on_gpu_.bytes() != 0 ? on_gpu_.address() : host_.address() + handle_at;
}

// ------------------------------------------------------------------ from any thread

/// Freeing memory of GPUs may wait for kernels, which may wait for the worker: so it is not freed there.
CommandQueue::~CommandQueue() {
  setup.callbacks->push([memory = std::shared_ptr<QueueMemory>(std::move(memory_))] {});
}

void CommandQueue::close() {
  closed_.store(true, std::memory_order_release);
  std::atomic_ref(memory_->told().closed).store(1, std::memory_order_release);
}

std::optional<FabricQueueStatus> CommandQueue::status() const {
  headrace_fabric_status_v1& status = memory_->status();
  const std::uint64_t reason = acquire(status.reason);
  if (reason == 0) return std::nullopt;
  return FabricQueueStatus{reason == HEADRACE_FABRIC_FULL, acquire(status.command), acquire(status.ended)};
}

HeldQueue::~HeldQueue() {
  if (queue_->setup.fork->forked()) {
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): its memory and its worker are the parent's
    static_cast<void>(new std::shared_ptr<CommandQueue>(std::move(queue_)));
  } else {
    queue_->close();
  }
}

// ------------------------------------------------------------------ of the worker

bool CommandQueue::poll(Carrier& carrier) {
  for (std::size_t taken = 0; taken < most_a_poll; ++taken) {
    const auto command = next();
    // Commands that find too many posts of the group wait in the ring, and kernels for slots there.
    if (!command || !setup.worker->take_room()) return taken > 0;
    ++taken_;
    carry(*command, carrier);
  }
  return true;
}

/// It pairs with Commands::fill: who sees the turn sees the units, and what was written before.
std::optional<CommandQueue::Command> CommandQueue::next() const {
  if (stopped_) return std::nullopt;
  headrace_fabric_command_v1& command = memory_->command(taken_ % setup.capacity);
  const std::uint64_t write = acquire(command.write);
  if (static_cast<std::uint32_t>(write) != static_cast<std::uint32_t>(taken_ / setup.capacity + 1))
    return std::nullopt;
  const std::uint64_t units = acquire(command.units);
  return Command{taken_ + 1, static_cast<std::uint32_t>(write >> 32), static_cast<std::uint32_t>(units),
                 static_cast<std::uint32_t>(units >> 32)};
}

Result<void> CommandQueue::check(const Command& command) const {
  if (command.write >= setup.writes.size())
    return make_error(Code::invalid_argument, "command {} of a queue names write {}: its list has {}",
                      command.number, command.write, setup.writes.size());
  const std::uint32_t units = setup.writes[command.write].units;
  if (command.first <= units && command.count <= units - command.first) return {};
  return make_error(Code::invalid_argument,
                    "command {} of a queue has {} units from unit {} on of write {}, which has {}",
                    command.number, command.count, command.first, command.write, units);
}

void CommandQueue::carry(const Command& command, Carrier& carrier) {
  if (auto checked = check(command); !checked) {
    setup.worker->give_back();
    return end(command.number, std::move(checked).error());
  }
  const Write& write = setup.writes[command.write];
  Part::Setup part = write.part;
  part.here_rows.base += command.first * write.unit_bytes;
  part.there_rows.base += command.first * write.unit_bytes;
  part.page_bytes = command.count * write.unit_bytes;
  if (write.counts_units && command.count == 0) part.plan.counted.reset();
  if (write.counts_units && part.plan.counted) part.plan.counted->amount = command.count;
  Work::Setup about{fmt::format("command {} of a queue, write {}", command.number, command.write),
                    part.page_bytes,
                    UINT64_MAX,
                    setup.worker,
                    setup.callbacks,
                    setup.fork};
  if (write.timeout) about.deadline_ns = Deadline::after(*write.timeout, *setup.clock).point_ns();
  auto work = std::make_shared<Work>(std::move(about));
  work->run.parts.push_back(std::make_shared<Part>(work, std::move(part)));
  work->run.when_over = [self = shared_from_this(), number = command.number, run = &work->run] {
    self->end(number, run->failed);
  };
  carrier.post(work);
}

/// Kernels see the number of those that have ended without one among them that has not.
void CommandQueue::end(std::uint64_t number, std::optional<Error> failed) {
  headrace_fabric_told_v1& told = memory_->told();
  if (failed) {
    std::atomic_ref(told.failed).store(++failed_, std::memory_order_relaxed);
    if (!stopped_) setup.callbacks->tell(std::move(*failed));
  }
  over_[(number - 1) % setup.capacity] = true;
  while (ended_ < taken_ && over_[ended_ % setup.capacity]) over_[ended_++ % setup.capacity] = false;
  std::atomic_ref(told.ended).store(ended_, std::memory_order_release);
}

void CommandQueue::begin_close() {
  stopped_ = true;
  close();
}

bool CommandQueue::is_over() const {
  return closed_.load(std::memory_order_acquire) && ended_ == taken_ && !next();
}

}  // namespace headrace::fabric
