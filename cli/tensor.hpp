// SPDX-License-Identifier: Apache-2.0
// A tensor as files and notes describe it: element type, shape, and how many bytes that makes.
#pragma once

#include <headrace/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::cli {

/// An element type by the name that safetensors gives it.
struct ElementType {
  std::string_view name;  ///< "BF16"
  unsigned bits;
  std::string_view npy;  ///< NumPy's spelling, little-endian: "<f4"; empty: NumPy has none
  bool safetensors;      ///< whether safetensors knows it
};

/// The row of that name, or null.
[[nodiscard]] const ElementType* element_type(std::string_view name);
/// The row of that NumPy spelling, or null.
[[nodiscard]] const ElementType* element_type_from_npy(std::string_view descr);

struct TensorInfo {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;  ///< what type and shape make
};

inline constexpr std::size_t most_dimensions = 64;

/// The bytes that a tensor of that type and shape has.
///   errors  invalid_argument (more dimensions or bytes than can be, a last byte that is not full)
[[nodiscard]] Result<std::uint64_t> tensor_bytes(const ElementType& type,
                                                 std::span<const std::uint64_t> shape);
/// "BF16 [4096, 1024]".
[[nodiscard]] std::string shape_text(const TensorInfo& tensor);

/// XXH3, 64 bits.
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);

/// The same of bytes that come in parts.
class RunningChecksum {
 public:
  RunningChecksum();
  void add(std::span<const std::byte> bytes);
  /// Of what was added since the last time, or since the beginning; what is added next begins anew.
  [[nodiscard]] std::uint64_t take();

 private:
  std::unique_ptr<void, void (*)(void*)> state_;
};

}  // namespace headrace::cli
