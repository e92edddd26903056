// SPDX-License-Identifier: Apache-2.0
#include "collectives/registrations.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <utility>

namespace headrace::collectives {
namespace {

std::string shape_text(const Elements& tensor) {
  return fmt::format("{} {}", tensor.count, dtype_name(tensor.dtype));
}

bool same(const Elements& one, const Elements& other) {
  return one.data == other.data && one.count == other.count && one.dtype == other.dtype;
}

}  // namespace

Result<void> Registrations::check_new_locked(const Elements& tensor) const {
  const auto taken = [&](const Entry& entry) {
    return entry.tensor.data == tensor.data && entry.tensor.count != 0 && tensor.count != 0;
  };
  if (std::ranges::none_of(entries_, taken)) return {};
  return make_error(Code::invalid_argument,
                    "the memory at {} is registered already: call tensor_deregister first", tensor.data);
}

Result<void> Registrations::check_new(const Elements& tensor) const {
  const std::scoped_lock lock(mutex_);
  return check_new_locked(tensor);
}

Result<void> Registrations::add(const Elements& tensor, std::uint64_t number,
                                std::shared_ptr<const void> owner) {
  const std::scoped_lock lock(mutex_);
  HEADRACE_TRY_VOID(check_new_locked(tensor));
  entries_.push_back({tensor, number, std::move(owner)});
  return {};
}

Result<std::size_t> Registrations::position_of(const Elements& tensor) const {
  auto at = std::ranges::find_if(entries_, [&](const Entry& entry) { return same(entry.tensor, tensor); });
  if (at != entries_.end()) return static_cast<std::size_t>(at - entries_.begin());
  at = std::ranges::find(entries_, tensor.data, [](const Entry& entry) { return entry.tensor.data; });
  if (at == entries_.end())
    return make_error(Code::invalid_argument,
                      "no memory at {} is registered; {} tensors are: give one of these", tensor.data,
                      entries_.size());
  return make_error(Code::invalid_argument,
                    "the memory at {} is registered as {}, and {} is given: give it as it was registered",
                    tensor.data, shape_text(at->tensor), shape_text(tensor));
}

Result<std::uint64_t> Registrations::find(const Elements& tensor) const {
  const std::scoped_lock lock(mutex_);
  HEADRACE_TRY(position, position_of(tensor));
  return entries_[position].number;
}

Result<Registrations::Entry> Registrations::take(const Elements& tensor) {
  const std::scoped_lock lock(mutex_);
  HEADRACE_TRY(position, position_of(tensor));
  Entry entry = std::move(entries_[position]);
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(position));
  return entry;
}

void Registrations::clear() {
  Entries gone;  // their owners go after the lock
  const std::scoped_lock lock(mutex_);
  gone.swap(entries_);
}

}  // namespace headrace::collectives
