// SPDX-License-Identifier: Apache-2.0
// Words and units of parts at any address: parts are aligned to their elements alone.
#pragma once

#include "kernels/collectives/element.cuh"

namespace headrace::kernels::collectives {

template <class T>
__device__ __forceinline__ uint64_t read_by(uint64_t address, unsigned bytes) {
  uint64_t word = 0;
  for (unsigned i = 0; i < bytes; i += sizeof(T))
    word |= static_cast<uint64_t>(*reinterpret_cast<const T*>(address + i)) << (8 * i);
  return word;
}
template <class T>
__device__ __forceinline__ void write_by(uint64_t address, unsigned bytes, uint64_t word) {
  for (unsigned i = 0; i < bytes; i += sizeof(T))
    *reinterpret_cast<T*>(address + i) = static_cast<T>(word >> (8 * i));
}

/// The first `bytes` bytes of a word, the others 0.
static __device__ __noinline__ uint64_t read_some(uint64_t address, unsigned bytes) {
  const uint64_t all = address | bytes;
  if (all % 4 == 0) return read_by<uint32_t>(address, bytes);
  if (all % 2 == 0) return read_by<uint16_t>(address, bytes);
  return read_by<uint8_t>(address, bytes);
}
static __device__ __noinline__ void write_some(uint64_t address, unsigned bytes, uint64_t word) {
  const uint64_t all = address | bytes;
  if (all % 4 == 0) return write_by<uint32_t>(address, bytes, word);
  if (all % 2 == 0) return write_by<uint16_t>(address, bytes, word);
  return write_by<uint8_t>(address, bytes, word);
}

// `Simple`: the part is whole units, each at a multiple of its length. To look at addresses and ends takes
// more instructions than the work, and a kernel that runs for microseconds fetches each of them for the first
// time.

/// The word of a part that begins `at` bytes in it; what is behind its end is 0.
template <bool Simple>
__device__ __forceinline__ uint64_t read_word(const Part& part, uint64_t at) {
  const uint64_t address = part.address + at;
  if (at >= part.bytes) return 0;
  if constexpr (Simple) return *reinterpret_cast<const uint64_t*>(address);
  const uint64_t left = part.bytes - at;
  if (left >= 8 && address % 8 == 0) return *reinterpret_cast<const uint64_t*>(address);
  return read_some(address, left < 8 ? static_cast<unsigned>(left) : 8);
}
/// Nothing is written behind the part's end.
template <bool Simple>
__device__ __forceinline__ void write_word(const Part& part, uint64_t at, uint64_t word) {
  const uint64_t address = part.address + at;
  if (at >= part.bytes) return;
  const uint64_t left = part.bytes - at;
  if (Simple || (left >= 8 && address % 8 == 0))
    *reinterpret_cast<uint64_t*>(address) = word;
  else
    write_some(address, left < 8 ? static_cast<unsigned>(left) : 8, word);
}

__device__ __forceinline__ Unit load_unit(uint64_t address) {
  const auto pair = *reinterpret_cast<const ulonglong2*>(address);
  return {{pair.x, pair.y}};
}
__device__ __forceinline__ void store_unit(uint64_t address, const Unit& unit) {
  *reinterpret_cast<ulonglong2*>(address) = make_ulonglong2(unit.words[0], unit.words[1]);
}
template <bool Simple>
__device__ __forceinline__ Unit read_unit(const Part& part, uint64_t at) {
  const uint64_t address = part.address + at;
  if constexpr (Simple) return at < part.bytes ? load_unit(address) : Unit{};
  if (at + unit_bytes <= part.bytes && address % unit_bytes == 0) return load_unit(address);
  return {{read_word<false>(part, at), read_word<false>(part, at + 8)}};
}
template <bool Simple>
__device__ __forceinline__ void write_unit(const Part& part, uint64_t at, const Unit& unit) {
  const uint64_t address = part.address + at;
  if constexpr (Simple) {
    if (at < part.bytes) store_unit(address, unit);
  } else {
    if (at + unit_bytes <= part.bytes && address % unit_bytes == 0) return store_unit(address, unit);
    write_word<false>(part, at, unit.words[0]);
    write_word<false>(part, at + 8, unit.words[1]);
  }
}

}  // namespace headrace::kernels::collectives
