// SPDX-License-Identifier: Apache-2.0
#include <headrace/completion_queue.hpp>

#include "engine/completed_numbers.hpp"
#include "engine/transfer.hpp"

namespace headrace {

Result<CompletionQueue> CompletionQueue::open() {
  HEADRACE_TRY(event, EventFd::create());
  return CompletionQueue(std::make_shared<engine::CompletedNumbers>(std::move(event)));
}

void CompletionQueue::add(const Request& request, std::uint64_t number) const {
  request.transfer_->enqueue_completion(numbers_, number);
}

void CompletionQueue::put(std::uint64_t number) const { numbers_->push(number); }

std::vector<std::uint64_t> CompletionQueue::take() const { return numbers_->take(); }
std::size_t CompletionQueue::take(std::span<std::uint64_t> room) const { return numbers_->take(room); }
int CompletionQueue::event_fd() const noexcept { return numbers_->event_fd(); }

}  // namespace headrace
