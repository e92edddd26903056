// SPDX-License-Identifier: Apache-2.0
// What flags and words of a window mean. Nothing is cleared: a flag counts for the operation whose epoch it
// holds. Dispatches and combines have epochs of their own, from 1, the same on all ranks.
#pragma once

#include "moe/both_sides.hpp"

#include <stdint.h>

namespace headrace::moe {

/// A window has so many halves, which epochs use in turn; so many operations may be under way.
inline constexpr uint64_t halves = 2;

/// Whether a card or a chunk of this epoch is there.
HEADRACE_BOTH_SIDES bool has_come(uint64_t flag, uint64_t epoch) { return flag == epoch; }

/// A chunk of partials that never comes: its target has left out the rank that was to send the records.
inline constexpr uint64_t missing_bit = uint64_t{1} << 63;
HEADRACE_BOTH_SIDES bool is_missing(uint64_t flag, uint64_t epoch) { return flag == (epoch | missing_bit); }

/// Whether a rank may write its part of this epoch into a window whose rank has taken its parts up to
/// `taken`.
HEADRACE_BOTH_SIDES bool may_write(uint64_t taken, uint64_t epoch) { return taken + halves >= epoch; }

/// Whether one more operation may begin, when `sent` have begun and `received` of them have ended.
HEADRACE_BOTH_SIDES bool may_begin(uint64_t sent, uint64_t received) { return sent - received < halves; }

}  // namespace headrace::moe
