// SPDX-License-Identifier: Apache-2.0
// The description of a tensor in files and notes: element type, shape and number of bytes.
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

/// An element type. The name is the one of safetensors.
struct ElementType {
  std::string_view name;  ///< "BF16"
  unsigned bits;
  std::string_view npy;  ///< NumPy's spelling, little-endian: "<f4"; empty: NumPy has none
  bool safetensors;      ///< whether safetensors has it
};

/// The type of that name, or null.
[[nodiscard]] const ElementType* element_type(std::string_view name);
/// The type of that NumPy spelling, or null.
[[nodiscard]] const ElementType* element_type_from_npy(std::string_view descr);

struct TensorInfo {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;  ///< follows from type and shape
};

inline constexpr std::size_t most_dimensions = 64;

/// The number of bytes of a tensor of that type and shape.
///   errors  invalid_argument (too many dimensions or bytes, a last byte that is not full)
[[nodiscard]] Result<std::uint64_t> tensor_bytes(const ElementType& type,
                                                 std::span<const std::uint64_t> shape);
/// "BF16 [4096, 1024]".
[[nodiscard]] std::string shape_text(const TensorInfo& tensor);

/// XXH3, 64 bits.
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes);

/// The same checksum, of bytes that are added step by step.
class RunningChecksum {
 public:
  RunningChecksum();
  void add(std::span<const std::byte> bytes);
  /// The checksum of the bytes that were added since the last take(). The next bytes begin a new one.
  [[nodiscard]] std::uint64_t take();

 private:
  std::unique_ptr<void, void (*)(void*)> state_;
};

}  // namespace headrace::cli
