/* SPDX-License-Identifier: Apache-2.0 */
/* The number of pieces of memory that this thread has allocated, by the hooks of a sanitizer. Without one it
 * stays 0, and so does `allocations_count`. */
#ifndef HEADRACE_TESTS_ALLOCATIONS_H
#define HEADRACE_TESTS_ALLOCATIONS_H

#include <stddef.h>

static _Thread_local unsigned long allocations;
static int allocations_count;

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
static inline void count_allocations(void) {
  allocations_count = __sanitizer_install_malloc_and_free_hooks(count_allocation, let_go);
}
#else
static inline void count_allocations(void) {}
#endif

#endif
