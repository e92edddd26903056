// SPDX-License-Identifier: Apache-2.0
// The host's half of the kernels that move pages: which kernel, how many blocks.
#pragma once

#include <headrace/plugin/kernels_v1.h>

#include <cstdint>

namespace headrace::kernels {

// The entries of the table.
std::int32_t move_pages(void* kernels, const headrace_move_pages_v1* args, void* stream);
std::int32_t move_parts(void* kernels, const headrace_move_parts_v1* args, void* stream);
std::int32_t move_few(void* kernels, const headrace_move_few_v1* args, void* stream);

}  // namespace headrace::kernels
