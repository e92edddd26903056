// SPDX-License-Identifier: Apache-2.0
#include "memory/page_copy.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

#if defined(__x86_64__)

constexpr std::size_t line_bytes = 64;
constexpr std::size_t least_streamed_bytes = 1024;

bool has_avx2() noexcept {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

/// Whole lines. `to` begins one.
__attribute__((target("avx2"))) void stream_lines(std::byte* to, const std::byte* from,
                                                  std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += line_bytes) {
    const auto* const source = reinterpret_cast<const __m256i*>(from + i);
    auto* const target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
  }
}

void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  // Whole lines only: a line that is streamed in part costs more than it saves.
  const std::size_t head =
      (line_bytes - (reinterpret_cast<std::uintptr_t>(to) & (line_bytes - 1))) % line_bytes;
  if (head != 0) std::memcpy(to, from, head);
  const std::size_t body = (bytes - head) / line_bytes * line_bytes;
  stream_lines(to + head, from + head, body);
  const std::size_t done = head + body;
  if (done != bytes) std::memcpy(to + done, from + done, bytes - done);
}

constexpr std::size_t block_bytes = 256;  // copied, then as much is fetched

/// Copies whole blocks and fetches as much of `next`: that into the second level's cache, where all of a page
/// has room. The target's lines lie with the core that has read them: they are asked for a block ahead.
/// (PREFETCHW does nothing on processors that do not know it.)
__attribute__((target("avx2,prfchw"))) void copy_blocks(std::byte* to, const std::byte* from,
                                                        std::size_t bytes, const std::byte* next) noexcept {
  for (std::size_t i = 0; i < bytes; i += block_bytes) {
    for (std::size_t line = i; line < i + block_bytes; line += line_bytes) {
      __builtin_prefetch(next + line, 0, 2);
      __builtin_prefetch(to + block_bytes + line, 1, 3);
    }
    for (std::size_t at = i; at < i + block_bytes; at += 2 * line_bytes) {
      const auto* const source = reinterpret_cast<const __m256i*>(from + at);
      auto* const target = reinterpret_cast<__m256i*>(to + at);
      const __m256i a = _mm256_loadu_si256(source);
      const __m256i b = _mm256_loadu_si256(source + 1);
      const __m256i c = _mm256_loadu_si256(source + 2);
      const __m256i d = _mm256_loadu_si256(source + 3);
      _mm256_storeu_si256(target, a);
      _mm256_storeu_si256(target + 1, b);
      _mm256_storeu_si256(target + 2, c);
      _mm256_storeu_si256(target + 3, d);
    }
  }
}

bool begins_a_page(const std::byte* at) noexcept {
  constexpr std::uintptr_t page_bytes = 4096;  // the smallest there is
  return reinterpret_cast<std::uintptr_t>(at) % page_bytes == 0;
}

#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, CopyMode mode) noexcept {
#if defined(__x86_64__)
  if (mode == CopyMode::streaming && bytes >= least_streamed_bytes && has_avx2()) {
    copy_streaming(to, from, bytes);
    return;
  }
#endif
  (void)mode;
  std::memcpy(to, from, bytes);
}

void copy_and_fetch(std::byte* to, const std::byte* from, std::size_t bytes,
                    std::span<const std::byte> next) noexcept {
  std::size_t done = 0;
#if defined(__x86_64__)
  // Where a source straddles pages memcpy, the processor's own string copy, is slow: bench/notes/shm.md.
  if (!begins_a_page(from) && has_avx2()) {
    done = std::min(bytes, next.size()) / block_bytes * block_bytes;
    copy_blocks(to, from, done, next.data());
  }
#endif
  if (done == 0 && !next.empty()) prefetch_source(next.data());
  if (done != bytes) std::memcpy(to + done, from + done, bytes - done);
}

void finish_streaming() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace headrace
