// SPDX-License-Identifier: Apache-2.0
// Tensors of a model: inputs are views of the caller's memory, outputs have their own memory.
#pragma once

#include <headrace/result.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace headrace {

/// An element type. The values are those of `headrace_dtype_v1` and never change.
enum class DType : std::int32_t {
  float32 = 0,
  float64 = 1,
  float16 = 2,
  bfloat16 = 3,
  int8 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  uint8 = 8,
  uint16 = 9,
  uint32 = 10,
  uint64 = 11,
  boolean = 12,  ///< "bool", one byte each
  complex64 = 13,
  complex128 = 14,
  float8_e4m3fn = 15,
  float8_e5m2 = 16,
};
inline constexpr std::size_t dtype_count = 17;

/// torch's name of a type without "torch.": "float32", "bool", "float8_e4m3fn".
HEADRACE_API std::string_view dtype_name(DType dtype) noexcept;
/// The type of a name; "torch.float32" is accepted too. errors: invalid_argument (lists the names)
HEADRACE_API Result<DType> dtype_from_name(std::string_view name);
/// Bytes of one element.
HEADRACE_API std::size_t element_bytes(DType dtype) noexcept;

/// One element as a number; of a complex element the real part. Integers above 2^53 are rounded.
HEADRACE_API double read_element(const void* data, DType dtype, std::int64_t index) noexcept;
/// Sets one element to the nearest value that its type has. Integers drop the fraction and are limited to the
/// type's range.
HEADRACE_API void write_element(void* data, DType dtype, std::int64_t index, double value) noexcept;

inline constexpr std::size_t most_tensor_dimensions = 8;

/// The lengths of a tensor's dimensions, or its strides, stored in place: a copy allocates nothing.
class Shape {
 public:
  constexpr Shape() noexcept = default;  ///< no dimensions: a scalar
  /// Takes the first most_tensor_dimensions lengths and ignores the rest; ask `fits` first.
  constexpr Shape(std::initializer_list<std::int64_t> lengths) noexcept
      : Shape(std::span<const std::int64_t>(lengths.begin(), lengths.size())) {}
  constexpr explicit Shape(std::span<const std::int64_t> lengths) noexcept
      : rank_(std::min(lengths.size(), most_tensor_dimensions)) {
    std::copy_n(lengths.begin(), rank_, lengths_.begin());
  }
  [[nodiscard]] static constexpr bool fits(std::size_t rank) noexcept {
    return rank <= most_tensor_dimensions;
  }

  [[nodiscard]] constexpr std::size_t rank() const noexcept { return rank_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return rank_ == 0; }
  [[nodiscard]] constexpr std::int64_t operator[](std::size_t i) const noexcept { return lengths_[i]; }
  [[nodiscard]] constexpr std::int64_t& operator[](std::size_t i) noexcept { return lengths_[i]; }
  [[nodiscard]] constexpr const std::int64_t* begin() const noexcept { return lengths_.data(); }
  [[nodiscard]] constexpr const std::int64_t* end() const noexcept { return lengths_.data() + rank_; }
  [[nodiscard]] constexpr const std::int64_t* data() const noexcept { return lengths_.data(); }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return rank_; }

  /// The product of the lengths; 1 for a scalar. Does not check for overflow: the shape must have been
  /// checked.
  [[nodiscard]] constexpr std::int64_t count() const noexcept {
    std::int64_t product = 1;
    for (const std::int64_t length : *this) product *= length;
    return product;
  }
  friend constexpr bool operator==(const Shape& a, const Shape& b) noexcept {
    return a.rank_ == b.rank_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  std::size_t rank_ = 0;
  std::array<std::int64_t, most_tensor_dimensions> lengths_{};
};

/// The text of a shape: "[4, 256]".
HEADRACE_API std::string shape_text(const Shape& shape);

/// The device whose memory holds a tensor.
struct Device {
  enum class Kind : std::int32_t {
    cpu = 0,
    cuda = 1,  ///< also AMD's GPUs, as in torch
  };
  Kind kind = Kind::cpu;
  std::int32_t index = 0;  ///< cuda: the ordinal; cpu: 0
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

/// The text of a device: "cpu", "cuda:1".
HEADRACE_API std::string device_text(Device device);
/// The device of "cpu", "cuda" or "cuda:1", upper or lower case. errors: invalid_argument (lists the forms)
HEADRACE_API Result<Device> device_from_text(std::string_view text);

/// A tensor in memory of another owner, who keeps it. Cheap to copy.
struct TensorView {
  const void* data = nullptr;  ///< may be null if the shape has no elements
  DType dtype = DType::float32;
  Shape shape = {};
  Shape strides = {};  ///< in elements, one for each dimension; empty: row-major without gaps
  Device device = {};

  /// Whether the elements are row-major without gaps. Strides of dimensions of length 1 do not matter.
  [[nodiscard]] HEADRACE_API bool is_contiguous() const noexcept;
  /// Bytes of all elements, without gaps.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(shape.count()) * element_bytes(dtype);
  }
};

/// A tensor that owns its memory, row-major without gaps. Movable; the destructor frees the memory.
class Tensor {
 public:
  /// Frees the memory: called once with `handle`, on the thread that destroys the tensor.
  using Release = void (*)(void* handle);

  Tensor() noexcept = default;
  Tensor(TensorView view, void* handle, Release release) noexcept
      : view_(view), handle_(handle), release_(release) {}
  Tensor(Tensor&& other) noexcept
      : view_(std::exchange(other.view_, {})),
        handle_(std::exchange(other.handle_, nullptr)),
        release_(std::exchange(other.release_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    if (this != &other) {
      reset();
      view_ = std::exchange(other.view_, {});
      handle_ = std::exchange(other.handle_, nullptr);
      release_ = std::exchange(other.release_, nullptr);
    }
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { reset(); }

  /// A tensor of zeros in host memory, aligned to 64 bytes.
  ///   errors  invalid_argument (a negative length, or too many bytes), exhausted
  static HEADRACE_API Result<Tensor> zeros(DType dtype, const Shape& shape);
  /// A copy of a tensor in host memory, row-major for any strides of `view`.
  ///   errors  invalid_argument (`view` is not in host memory; as zeros), exhausted
  static HEADRACE_API Result<Tensor> copy_of(const TensorView& view);

  [[nodiscard]] const TensorView& view() const noexcept { return view_; }
  operator const TensorView&() const noexcept { return view_; }  // NOLINT(google-explicit-constructor)

  [[nodiscard]] const void* data() const noexcept { return view_.data; }
  [[nodiscard]] void* data() noexcept { return const_cast<void*>(view_.data); }
  [[nodiscard]] DType dtype() const noexcept { return view_.dtype; }
  [[nodiscard]] const Shape& shape() const noexcept { return view_.shape; }
  [[nodiscard]] Device device() const noexcept { return view_.device; }
  [[nodiscard]] std::size_t bytes() const noexcept { return view_.bytes(); }
  /// The elements as `T`, which must have the size of an element. Only for host memory.
  template <class T>
  [[nodiscard]] std::span<const T> elements() const noexcept {
    return {static_cast<const T*>(view_.data), static_cast<std::size_t>(view_.shape.count())};
  }
  template <class T>
  [[nodiscard]] std::span<T> elements() noexcept {
    return {static_cast<T*>(data()), static_cast<std::size_t>(view_.shape.count())};
  }

 private:
  void reset() noexcept {
    if (release_ != nullptr) std::exchange(release_, nullptr)(std::exchange(handle_, nullptr));
  }

  TensorView view_;
  void* handle_ = nullptr;
  Release release_ = nullptr;
};

}  // namespace headrace
