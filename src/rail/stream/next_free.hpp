// SPDX-License-Identifier: Apache-2.0
// Numbers of 32 bits for what comes and goes: a NIC that runs for days gives out more than there are.
#pragma once

#include <cstdint>

namespace headrace::rail::stream {

/// The next number that is not taken, and steps behind it. Not all may be taken.
template <class Taken>
std::uint32_t next_free(std::uint32_t& next, const Taken& taken) {
  while (taken(next)) ++next;
  return next++;
}

}  // namespace headrace::rail::stream
