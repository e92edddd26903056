// SPDX-License-Identifier: Apache-2.0
// Each allocated tensor is a descriptor here and in every peer: take as many as this process may have.
#pragma once

#include <sys/resource.h>

namespace headrace::cli {

inline void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // where it is refused, what needs more will say so
}

}  // namespace headrace::cli
