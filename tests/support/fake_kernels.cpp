// SPDX-License-Identifier: Apache-2.0
#include "support/fake_kernels.hpp"

#include "kernels/common/reference.hpp"
#include "kernels/library/library.hpp"

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

namespace headrace::cuda {
namespace {

using kernels::reference::Progress;

void copy_bytes(void* target, const void* source, std::size_t bytes) { std::memcpy(target, source, bytes); }

std::optional<Outcome> outcome_of(Progress progress) {
  if (progress == Progress::stays) return std::nullopt;
  return progress == Progress::ended ? Outcome::success : Outcome::illegal_address;
}

void add_family(FakeCuda& fake, const kernels::reference::Family& family, CopyFunction copy) {
  const kernels::reference::Memory memory{
      [&fake](std::uint64_t address, std::uint64_t bytes) { return fake.reachable(address, bytes); }, copy};
  for (const kernels::reference::Kernel& kernel : family.kernels)
    fake.add_staying_kernel(kernel.name, kernel.argument_bytes, [kernel, memory](const void* argument) {
      return [launch = kernel.launch(argument, memory)] { return outcome_of(launch()); };
    });
}

}  // namespace

void add_reference_kernels(FakeCuda& fake) {
  for (const auto* const family : kernels::reference::families) add_family(fake, *family, copy_bytes);
}

void add_reference_family(FakeCuda& fake, std::string_view name, CopyFunction copy) {
  for (const auto* const family : kernels::reference::families)
    if (family->name == name) return add_family(fake, *family, copy == nullptr ? copy_bytes : copy);
  throw std::invalid_argument("there is no family of kernels " + std::string(name));
}

const headrace_kernels_v1& fake_kernels_table() {
  static constexpr char image[] = "FAKE";
  static const headrace_kernel_image_v1 images[] = {{"sm_90a", 9, 0, 1, 0, image, sizeof image}};
  static const headrace_kernels_v1 table = kernels::make_table(images, 1);
  return table;
}

}  // namespace headrace::cuda
