/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the programs in C: one that fails ends the program with its line and the last error. */
#ifndef HEADRACE_TESTS_CHECK_H
#define HEADRACE_TESTS_CHECK_H

#include <headrace/c/types.h>

#include <stdio.h>
#include <stdlib.h>

static _Thread_local headrace_error* last_error;

/* Where the next call writes its error; the former one is freed. */
static inline headrace_error** fresh(void) {
  headrace_error_free(last_error);
  last_error = NULL;
  return &last_error;
}

/* The sentence of the last call that was given `fresh()`; it said nothing if it worked. */
static inline const char* text(void) { return headrace_error_message(last_error); }

static inline void check(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: not so: %s (last error: %s)\n", line, what, text());
  exit(1);
}
#define CHECK(condition) check(condition, #condition, __LINE__)

#endif
