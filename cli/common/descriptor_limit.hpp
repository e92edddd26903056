// SPDX-License-Identifier: Apache-2.0
// Each allocated tensor takes a descriptor in this process and in every peer. Raises the limit of this
// process to its hard limit.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace headrace::cli {

/// How many files this process may open.
inline std::uint64_t descriptor_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : UINT64_MAX;
}

inline void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if this fails, the call that lacks a descriptor reports it
}

}  // namespace headrace::cli
