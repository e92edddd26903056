// SPDX-License-Identifier: Apache-2.0
// Couriers for the fake driver.
#pragma once

#include "kernels/courier/reference.hpp"
#include "support/fake_kernels.hpp"

#include <headrace/plugin/kernels/courier_v1.h>

namespace headrace::cuda {

/// The courier of `add_reference_kernels`, for example after a test has replaced it.
inline void add_reference_courier(FakeCuda& fake, CopyFunction copy = nullptr) {
  add_reference_family(fake, HEADRACE_COURIER_FAMILY, copy);
}

/// A courier that leaves at once, as if each job had come right after its last poll.
inline void add_courier_that_leaves(FakeCuda& fake) {
  fake.add_kernel("headrace_courier", sizeof(headrace_courier_launch_v1), [](const void* argument) {
    kernels::courier::ReferenceStay(*static_cast<const headrace_courier_launch_v1*>(argument)).tell_left();
    return Outcome::success;
  });
}

}  // namespace headrace::cuda
