// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/copy.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::shm {
namespace {

#if defined(__x86_64__)

constexpr std::size_t block_bytes = 128;
constexpr std::size_t least_streamed_bytes = 1024;

/// `to` is aligned to 32 bytes, `bytes` a multiple of block_bytes.
__attribute__((target("avx2"))) void stream_blocks(std::byte* to, const std::byte* from,
                                                   std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += block_bytes) {
    const auto* const source = reinterpret_cast<const __m256i*>(from + i);
    auto* const target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
}

bool can_stream() noexcept {
  static const bool can = __builtin_cpu_supports("avx2") != 0;
  return can;
}

void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  // Whole lines only: a line that is streamed in part costs more than it saves.
  const std::size_t head = (64 - (reinterpret_cast<std::uintptr_t>(to) & 63)) & 63;
  if (head != 0) std::memcpy(to, from, head);
  const std::size_t body = (bytes - head) / block_bytes * block_bytes;
  stream_blocks(to + head, from + head, body);
  const std::size_t done = head + body;
  if (done != bytes) std::memcpy(to + done, from + done, bytes - done);
}

#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, CopyMode mode) noexcept {
#if defined(__x86_64__)
  if (mode == CopyMode::streaming && bytes >= least_streamed_bytes && can_stream()) {
    copy_streaming(to, from, bytes);
    return;
  }
#endif
  (void)mode;
  std::memcpy(to, from, bytes);
}

void finish_streaming() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace headrace::shm
