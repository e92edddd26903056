// SPDX-License-Identifier: Apache-2.0
#include "kernels/windows/windows.hpp"

#include "kernels/common/kernel_set.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace headrace::kernels::windows {
namespace {

struct Functions {
  void *signal, *wait_signal, *atomic_add;
};

constexpr FamilyKernel family_kernels[] = {
    {"headrace_window_signal", offsetof(Functions, signal)},
    {"headrace_window_wait_signal", offsetof(Functions, wait_signal)},
    {"headrace_window_atomic_add", offsetof(Functions, atomic_add)},
};
static_assert(std::size(family_kernels) * sizeof(void*) == sizeof(Functions));

using Word = headrace_windows_word_v1;

bool is_complete(const Word& args, std::uint64_t word_bytes) {
  return args.struct_size >= sizeof args && args.word != 0 && args.word % word_bytes == 0;
}

std::int32_t launch(void* kernels, void* Functions::*function, const Word& args, void* stream) {
  const KernelSet& set = KernelSet::of(kernels);
  return set.launch(set.functions_of<Functions>(family).*function, 1, 1, args, stream);
}

std::int32_t signal(void* kernels, const Word* args, void* stream) {
  const bool is_known = args->kind == HEADRACE_COMM_SIGNAL_ADD || args->kind == HEADRACE_COMM_SIGNAL_SET;
  if (!is_complete(*args, sizeof(std::uint64_t)) || !is_known) return invalid_value;
  return launch(kernels, &Functions::signal, *args, stream);
}

std::int32_t wait_signal(void* kernels, const Word* args, void* stream) {
  const bool is_known = args->kind >= HEADRACE_COMM_EQ && args->kind <= HEADRACE_COMM_TAKE;
  if (!is_complete(*args, sizeof(std::uint64_t)) || !is_known || args->status == 0) return invalid_value;
  return launch(kernels, &Functions::wait_signal, *args, stream);
}

std::int32_t atomic_add(void* kernels, const Word* args, void* stream) {
  if (args->kind != 4 && args->kind != 8) return invalid_value;
  if (!is_complete(*args, static_cast<std::uint64_t>(args->kind)) || args->status == 0) return invalid_value;
  return launch(kernels, &Functions::atomic_add, *args, stream);
}

constexpr headrace_windows_v1 table{
    {sizeof table, HEADRACE_WINDOWS_FAMILY_VERSION, 0}, signal, wait_signal, atomic_add};

}  // namespace

constinit const Family family{HEADRACE_WINDOWS_FAMILY, &table.family, family_kernels, sizeof(Functions)};

}  // namespace headrace::kernels::windows
