// SPDX-License-Identifier: Apache-2.0
// libheadrace_kernels.so: found beside this library and checked; one of its images is loaded into a device's
// context.
#pragma once

#include "gpu/device.hpp"

#include <headrace/plugin/kernels_v1.h>

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

/// The kernels, loaded on one device. Launches may come from any thread.
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

  // Each queues one launch. The device's context is current.
  [[nodiscard]] cuda::Outcome move(const headrace_move_pages_v1& args, cuda::Stream stream) const {
    return static_cast<cuda::Outcome>(table_->move_pages(set_, &args, stream));
  }
  [[nodiscard]] cuda::Outcome move(const headrace_move_parts_v1& args, cuda::Stream stream) const {
    return static_cast<cuda::Outcome>(table_->move_parts(set_, &args, stream));
  }
  [[nodiscard]] cuda::Outcome move(const headrace_move_few_v1& args, cuda::Stream stream) const {
    return static_cast<cuda::Outcome>(table_->move_few(set_, &args, stream));
  }
  [[nodiscard]] cuda::Outcome move(const headrace_move_grids_v1& args, cuda::Stream stream) const {
    return static_cast<cuda::Outcome>(table_->move_grids(set_, &args, stream));
  }
  [[nodiscard]] cuda::Outcome run(const headrace_courier_v1& args, cuda::Stream stream) const {
    return static_cast<cuda::Outcome>(table_->run_courier(set_, &args, stream));
  }

 private:
  Kernels(const headrace_kernels_v1& table, std::shared_ptr<const Device> device, std::string image);

  const headrace_kernels_v1* table_;
  std::shared_ptr<const Device> device_;
  std::string image_;
  headrace_kernels_driver_v1 driver_{};
  void* set_ = nullptr;
};

}  // namespace headrace::gpu
