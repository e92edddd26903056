// SPDX-License-Identifier: Apache-2.0
// Copies to and from memory of the caller's, which may be read-only or gone: the kernel says so where memcpy
// would end the process.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace headrace {

// Less than 2 GiB a call. False: some of the memory is not there, or may not be touched so; the target may
// have been written in part. Where a filter forbids the kernel's copy (seccomp) it is made by memcpy, and the
// promise is off.

[[nodiscard]] bool copy_unless_it_faults(void* to, const void* from, std::size_t bytes);
/// The pieces one after the other.
[[nodiscard]] bool gather_unless_it_faults(void* to, std::span<const iovec> pieces);
[[nodiscard]] bool scatter_unless_it_faults(std::span<const iovec> pieces, const void* from);

}  // namespace headrace
