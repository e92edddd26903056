// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/dlpack_structs.hpp"

#include <algorithm>
#include <array>

namespace headrace::python {
namespace {

struct Row {
  DType ours;
  std::uint8_t code, bits;
};
constexpr std::array<Row, dtype_count> rows{{{DType::float32, 2, 32},
                                             {DType::float64, 2, 64},
                                             {DType::float16, 2, 16},
                                             {DType::bfloat16, 4, 16},
                                             {DType::int8, 0, 8},
                                             {DType::int16, 0, 16},
                                             {DType::int32, 0, 32},
                                             {DType::int64, 0, 64},
                                             {DType::uint8, 1, 8},
                                             {DType::uint16, 1, 16},
                                             {DType::uint32, 1, 32},
                                             {DType::uint64, 1, 64},
                                             {DType::boolean, 6, 8},
                                             {DType::complex64, 5, 64},
                                             {DType::complex128, 5, 128},
                                             {DType::float8_e4m3fn, 10, 8},
                                             {DType::float8_e5m2, 12, 8}}};

}  // namespace

std::optional<DType> dtype_from_dlpack(DlDataType type) {
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [&](const Row& r) { return r.code == type.code && r.bits == type.bits; });
  if (row == rows.end() || type.lanes != 1) return std::nullopt;
  return row->ours;
}

DlDataType dlpack_dtype(DType type) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.ours == type; });
  return {row->code, row->bits, 1};
}

std::optional<Device> device_from_dlpack(DlDevice device) {
  switch (device.type) {
    case dl_cpu:
    case dl_cuda_host:
    case dl_rocm_host:
      return Device{};
    case dl_cuda:
    case dl_rocm:
    case dl_cuda_managed:
      return Device{Device::Kind::cuda, device.index};
    default:
      return std::nullopt;
  }
}

}  // namespace headrace::python
