/* SPDX-License-Identifier: Apache-2.0 */
/* The number of pieces of memory that this thread has allocated: under a sanitizer its hooks count, else a
 * malloc of this program's, which libheadrace.so uses as well. */
#ifndef HEADRACE_TESTS_ALLOCATIONS_H
#define HEADRACE_TESTS_ALLOCATIONS_H

#include <stddef.h>

static _Thread_local unsigned long allocations;

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEADRACE_TESTS_HOOKS 1
#endif
#endif

#ifdef HEADRACE_TESTS_HOOKS
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                              void (*on_free)(const volatile void*));
static void count_allocation(const volatile void* memory, size_t bytes) {
  (void)memory;
  (void)bytes;
  ++allocations;
}
static void let_go(const volatile void* memory) { (void)memory; }
static inline int count_allocations(void) {
  return __sanitizer_install_malloc_and_free_hooks(count_allocation, let_go) != 0;
}
#else
void* __libc_malloc(size_t bytes);
void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
static inline int count_allocations(void) { return 1; }
#endif

#endif
