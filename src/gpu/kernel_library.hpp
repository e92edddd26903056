// SPDX-License-Identifier: Apache-2.0
// libheadrace_kernels.so: found beside this library and checked; one of its images is loaded into a device's
// context.
#pragma once

#include "gpu/device.hpp"

#include <headrace/plugin/kernels_v1.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace headrace::gpu {

class KernelLibrary {
 public:
  /// Loads the library at `path`; empty: the one beside this library.
  ///   errors   not_supported (there is none, it does not load, or it has another version: both versions),
  ///            corrupt
  [[nodiscard]] static Result<KernelLibrary> load(const std::string& path = {});
  /// Uses another table, which must stay; for tests.
  ///   errors   corrupt, not_supported
  [[nodiscard]] static Result<KernelLibrary> from_table(const headrace_kernels_v1& table, std::string where);

  [[nodiscard]] const headrace_kernels_v1& table() const noexcept { return *table_; }
  /// The table of a family, of at least this version and size.
  ///   errors   not_supported (the library has no such family, or an older one: both versions), corrupt
  [[nodiscard]] Result<const headrace_kernel_family_v1*> family(const char* name, std::uint32_t version,
                                                                std::size_t table_bytes) const;
  /// The kinds of GPU that have an image, as "sm_80, sm_90a"; "none" if there are none.
  [[nodiscard]] std::string image_names() const;
  /// The image for a compute capability.
  ///   errors   not_supported (none: which there are, and how to build one)
  [[nodiscard]] Result<const headrace_kernel_image_v1*> image_for(const DeviceInfo& device) const;

 private:
  KernelLibrary(const headrace_kernels_v1& table, std::string where)
      : table_(&table), where_(std::move(where)) {}

  const headrace_kernels_v1* table_;
  std::string where_;
};

/// The kernels of all families, loaded on one device. KernelFamily launches them, from any thread.
class Kernels {
 public:
  ///   errors   not_supported (no image for this GPU), backend_failed (the driver refuses the image)
  [[nodiscard]] static Result<std::shared_ptr<const Kernels>> open(const KernelLibrary& library,
                                                                   std::shared_ptr<const Device> device);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  [[nodiscard]] const Device& device() const noexcept { return *device_; }
  [[nodiscard]] const std::shared_ptr<const Device>& shared_device() const noexcept { return device_; }
  [[nodiscard]] const std::string& image() const noexcept { return image_; }

  [[nodiscard]] const KernelLibrary& library() const noexcept { return library_; }
  /// What entries of the families' tables take.
  [[nodiscard]] void* set() const noexcept { return set_; }

 private:
  Kernels(const KernelLibrary& library, std::shared_ptr<const Device> device, std::string image);

  const KernelLibrary library_;
  std::shared_ptr<const Device> device_;
  std::string image_;
  headrace_kernels_driver_v1 driver_{};
  void* set_ = nullptr;
};

}  // namespace headrace::gpu
