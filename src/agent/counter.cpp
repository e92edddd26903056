// SPDX-License-Identifier: Apache-2.0
#include <headrace/counter.hpp>

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
Result<int> Counter::event_fd(std::uint64_t at_least) const { return all_->event_fd(*count_, at_least); }

}  // namespace headrace
