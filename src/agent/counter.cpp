// SPDX-License-Identifier: Apache-2.0
#include <headrace/counter.hpp>

#include "base/errors.hpp"
#include "engine/arrival_counters.hpp"

namespace headrace {

Immediate Counter::immediate() const { return immediate_; }
std::uint64_t Counter::value() const { return count_->value(); }
Status Counter::wait(std::uint64_t at_least, Timeout timeout) const {
  return all_->wait(*count_, at_least, timeout);
}
void Counter::on_reached(std::uint64_t at_least, std::function<void()> reached) const {
  all_->on_reached(*count_, at_least, std::move(reached));
}
Result<int> Counter::event_fd(std::uint64_t at_least) const { return all_->event_fd(count_, at_least); }

Result<CounterWord> Counter::word(std::optional<int> device) const {
  if (!device) return CounterWord(count_, reinterpret_cast<std::uintptr_t>(&count_->word()), {});
  HEADRACE_TRY(word, all_->gpu_word(count_, *device));
  const auto address = static_cast<std::uintptr_t>(word->address());
  return CounterWord(std::move(word), address, device);
}

}  // namespace headrace
