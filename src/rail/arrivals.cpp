// SPDX-License-Identifier: Apache-2.0
#include "rail/arrivals.hpp"

#include <algorithm>
#include <utility>

namespace headrace::rail {
namespace {

std::uint64_t all_bits(std::uint32_t chunks) {
  return chunks >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << chunks) - 1;
}

}  // namespace

Arrivals::Slot& Arrivals::slot(std::uint64_t number) {
  const std::uint64_t at = number - below_;
  if (at >= slots_.size()) slots_.resize(at + 1);
  return slots_[at];
}

Result<void> Arrivals::marked(std::uint32_t bits) {
  const Mark mark = read_mark(bits);
  const std::uint64_t distance = distance_from(below_, mark);
  if (distance >= number_window) {
    ++dropped_marks_;
    return {};
  }
  const std::uint64_t number = below_ + distance;
  Slot& at = slot(number);
  const std::uint64_t bit = std::uint64_t{1} << mark.chunk;
  if (at.counted || (at.bits & bit) != 0) {
    ++dropped_marks_;
    return {};
  }
  if (at.announcement && at.announcement->chunks > 0 && mark.chunk >= at.announcement->chunks)
    return make_error(Code::corrupt, "chunk {} of number {} was marked, and {} chunks were announced",
                      mark.chunk, number, at.announcement->chunks);
  at.bits |= bit;
  count_if_complete(number);
  return {};
}

Result<void> Arrivals::announced(const Announcement& announcement) {
  const std::uint64_t number = announcement.number;
  if (number < below_) return {};
  if (number - below_ >= number_window)
    return make_error(Code::corrupt, "number {} was announced, and {} to {} may be open", number, below_,
                      below_ + number_window - 1);
  Slot& at = slot(number);
  if (at.counted || (at.announcement && at.announcement->chunks == 0)) return {};
  if (announcement.chunks > 0 && (at.bits & ~all_bits(announcement.chunks)) != 0)
    return make_error(Code::corrupt, "number {} was announced with {} chunks, and later ones were marked",
                      number, announcement.chunks);
  at.announcement = announcement;
  count_if_complete(number);
  return {};
}

bool Arrivals::complete(std::uint64_t number, const Slot& slot) const {
  if (slot.counted || !slot.announcement) return false;
  if (slot.announcement->chunks == 0) return true;
  return held_ == 0 && number >= settled_only_below_ && slot.bits == all_bits(slot.announcement->chunks);
}

void Arrivals::count_if_complete(std::uint64_t number) {
  Slot& at = slot(number);
  if (!complete(number, at)) return;
  at.counted = true;
  ready_.push_back(*at.announcement);
  while (!slots_.empty() && slots_.front().counted) {
    slots_.pop_front();
    ++below_;
  }
}

std::optional<Announcement> Arrivals::next() {
  if (ready_.empty()) return std::nullopt;
  const Announcement first = ready_.front();
  ready_.pop_front();
  return first;
}

void Arrivals::settle_below(std::uint64_t next) { settled_only_below_ = std::max(settled_only_below_, next); }

void Arrivals::look_again() {
  const std::uint64_t end = below_ + slots_.size();
  for (std::uint64_t number = below_; number < end; ++number)
    if (number >= below_) count_if_complete(number);
}

CountedNumbers Arrivals::counted() const {
  CountedNumbers numbers;
  numbers.below = below_;
  for (std::size_t at = 0; at < slots_.size(); ++at)
    if (slots_[at].counted) numbers.bits[at / 64] |= std::uint64_t{1} << (at % 64);
  return numbers;
}

}  // namespace headrace::rail
