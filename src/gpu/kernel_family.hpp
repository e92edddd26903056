// SPDX-License-Identifier: Apache-2.0
// One family of the kernels that are loaded on a device. A host asks for the families that it needs, each
// with the version of the header that it was compiled with.
#pragma once

#include "gpu/kernel_library.hpp"

#include <cstdint>
#include <memory>
#include <utility>

namespace headrace::gpu {

///   Table    the table of the family, for example headrace_grids_v1
///   threads  any
template <class Table>
class KernelFamily {
 public:
  /// `name` and `version` are those of the family's header.
  ///   errors   not_supported (the library has no such family, or an older one), corrupt
  [[nodiscard]] static Result<KernelFamily> of(std::shared_ptr<const Kernels> kernels, const char* name,
                                               std::uint32_t version) {
    HEADRACE_TRY(table, kernels->library().family(name, version, sizeof(Table)));
    return KernelFamily(std::move(kernels), *reinterpret_cast<const Table*>(table));
  }

  /// Its entries that launch nothing take `kernels().set()`.
  [[nodiscard]] const Table& table() const noexcept { return *table_; }
  [[nodiscard]] const Kernels& kernels() const noexcept { return *kernels_; }

  /// Queues one launch: launch<&headrace_grids_v1::move_grids>(args, stream). The device's context is
  /// current.
  template <auto Entry, class Args>
  [[nodiscard]] cuda::Outcome launch(const Args& args, cuda::Stream stream) const {
    return static_cast<cuda::Outcome>((table_->*Entry)(kernels_->set(), &args, stream));
  }

 private:
  KernelFamily(std::shared_ptr<const Kernels> kernels, const Table& table)
      : kernels_(std::move(kernels)), table_(&table) {}

  std::shared_ptr<const Kernels> kernels_;
  const Table* table_;
};

}  // namespace headrace::gpu
