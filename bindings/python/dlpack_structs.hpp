// SPDX-License-Identifier: Apache-2.0
// The structures of DLPack 1.2, with the layout of its specification.
#pragma once

#include <headrace/tensor.hpp>

#include <cstdint>
#include <optional>

namespace headrace::python {

struct DlDevice {
  std::int32_t type, index;
};
struct DlDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t rank;
  DlDataType type;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null: row-major
  std::uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* owner;
  void (*release)(DlManagedTensor*);
};
struct DlVersion {
  std::uint32_t major, minor;
};
/// Since version 1.
struct DlManagedTensorVersioned {
  DlVersion version;
  void* owner;
  void (*release)(DlManagedTensorVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};
inline constexpr std::uint64_t dl_read_only = 1;
/// The table behind a type's `__dlpack_c_exchange_api__`. Functions that are not used here have type void*.
struct DlExchangeTable {
  DlVersion version;
  DlExchangeTable* older;
  void* allocate;
  void* export_managed;
  void* import_managed;
  /// Describes the object without owning it; returns 0 on success.
  int (*describe)(void* object, DlTensor* out);
  void* current_stream;
};

enum DlDeviceType : std::int32_t {
  dl_cpu = 1,
  dl_cuda = 2,
  dl_cuda_host = 3,
  dl_rocm = 10,
  dl_rocm_host = 11,
  dl_cuda_managed = 13
};

[[nodiscard]] std::optional<DType> dtype_from_dlpack(DlDataType type);
[[nodiscard]] DlDataType dlpack_dtype(DType type);
/// The number of a CUDA stream for `__dlpack__`, where the default stream is 1.
[[nodiscard]] inline std::uintptr_t dlpack_stream(void* stream) {
  return stream == nullptr ? 1 : reinterpret_cast<std::uintptr_t>(stream);
}
[[nodiscard]] std::optional<Device> device_from_dlpack(DlDevice device);

}  // namespace headrace::python
