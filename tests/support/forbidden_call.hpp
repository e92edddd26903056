// SPDX-License-Identifier: Apache-2.0
// A system call that a filter forbids, as in containers.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/child_ending.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>

namespace headrace::test {

/// Runs `body` in a child whose system call of that number meets `action` (SECCOMP_RET_...); whether it
/// answered true there.
template <class Body>
::testing::AssertionResult with_filter(int number, unsigned action, const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      ::_exit(2);
    ::_exit(body() ? 0 : 1);
  }
  return ends_well(child);
}

/// Runs `body` in a child whose system call of that number answers with `error`; whether it answered true
/// there.
template <class Body>
::testing::AssertionResult without_call(int number, int error, const Body& body) {
  return with_filter(number, SECCOMP_RET_ERRNO | static_cast<unsigned>(error), body);
}

}  // namespace headrace::test
