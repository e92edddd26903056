// SPDX-License-Identifier: Apache-2.0
// Bytes that the process has allocated and not freed: under a sanitizer from its allocator, else from malloc.
#pragma once

#include <malloc.h>

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#include <sanitizer/allocator_interface.h>
#define HEADRACE_TEST_SANITIZER_HEAP 1
#endif
#endif

namespace headrace::test {

/// Whether it is exact. malloc counts what its caches keep as allocated.
#ifdef HEADRACE_TEST_SANITIZER_HEAP
inline constexpr bool heap_in_use_is_exact = true;
#else
inline constexpr bool heap_in_use_is_exact = false;
#endif

inline std::size_t heap_in_use() {
#ifdef HEADRACE_TEST_SANITIZER_HEAP
  return ::__sanitizer_get_current_allocated_bytes();
#else
  return ::mallinfo2().uordblks;
#endif
}

}  // namespace headrace::test
