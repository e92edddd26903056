// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/device_checks.hpp"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>

namespace headrace::torch_runtime {
namespace {

struct Outcome {
  bool passed;
  std::string detail;
};

template <class... Parts>
std::string text(const char* format, Parts... parts) {
  std::array<char, 240> line{};
  std::snprintf(line.data(), line.size(), format, parts...);
  return line.data();
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
}

/// Written memory can be read back, also if rows are further apart than their length.
Outcome allocation(c10::Device device, at::ScalarType type) {
  constexpr std::int64_t rows = 1024, columns = 256, stride = 320;
  at::Tensor tensor =
      at::empty_strided({rows, columns}, {stride, 1}, at::TensorOptions().dtype(type).device(device));
  tensor.fill_(3);
  const double sum = tensor.to(at::kDouble).sum().item<double>();
  return {sum == 3.0 * rows * columns,
          text("%lld strided elements of 3 add up to %.0f", static_cast<long long>(rows) * columns, sum)};
}

/// A million normal numbers have mean 0 and deviation 1.
Outcome random(c10::Device device, at::ScalarType type) {
  constexpr double tolerance = 0.02;  // about twenty times the expected error for a million numbers
  const at::Tensor numbers =
      at::randn({1 << 20}, at::TensorOptions().dtype(type).device(device)).to(at::kDouble);
  const double mean = numbers.mean().item<double>();
  const double deviation = numbers.std().item<double>();
  return {std::abs(mean) < tolerance && std::abs(deviation - 1) < tolerance,
          text("mean %.4f, standard deviation %.4f of 2^20 normal numbers", mean, deviation)};
}

/// Compares the product of two matrices with the same product in float64 on the CPU.
Outcome matmul(c10::Device device, at::ScalarType type) {
  constexpr std::int64_t size = 256;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  // Whole numbers, so that both sides are exact: the accumulator holds all products and sums exactly.
  const at::Tensor a = at::randint(-2, 3, {size, size}, options);
  const at::Tensor b = at::randint(-2, 3, {size, size}, options);
  const at::Tensor product = at::matmul(a.to(device, type), b.to(device, type)).to(at::kCPU, at::kDouble);
  const double off = (product - at::matmul(a, b)).abs().max().item<double>();
  const double allowed = type == at::kBFloat16 ? 2 : 0;  // sums above 256 may have no exact bfloat16
  return {off <= allowed, text("%lld x %lld, off by %.3g at most", static_cast<long long>(size),
                               static_cast<long long>(size), off)};
}

/// One operation over 64 MiB: more than any cache, and enough for every block of a GPU.
Outcome large(c10::Device device, at::ScalarType type) {
  const auto count = static_cast<std::int64_t>((64 << 20) / at::elementSize(type));
  const at::Tensor numbers = at::full({count}, 0.5, at::TensorOptions().dtype(type).device(device));
  const at::Tensor result = numbers.mul(4).add(1);
  const double least = result.min().to(at::kDouble).item<double>();
  const double most = result.max().to(at::kDouble).item<double>();
  return {least == 3 && most == 3, text("0.5 * 4 + 1 over %lld elements is from %g to %g",
                                        static_cast<long long>(count), least, most)};
}

struct Kind {
  const char* name;
  Outcome (*run)(c10::Device, at::ScalarType);
};
constexpr std::array kinds{Kind{"allocation", allocation}, Kind{"random", random}, Kind{"matmul", matmul},
                           Kind{"large", large}};

struct CheckedType {
  const char* name;
  at::ScalarType type;
};
constexpr std::array checked_types{CheckedType{"float32", at::kFloat}, CheckedType{"float16", at::kHalf},
                                   CheckedType{"bfloat16", at::kBFloat16}};

Outcome attempt(const Kind& kind, const CheckedType& type, c10::Device device) noexcept {
  try {
    Outcome outcome = kind.run(device, type.type);
    synchronize(device);
    return outcome;
  } catch (const c10::Error& error) {
    return {false, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {false, error.what()};
  }
}

template <std::size_t Size>
void copy(char (&to)[Size], const std::string& from) {
  const std::size_t length = std::min(Size - 1, from.size());
  std::copy_n(from.data(), length, to);
  to[length] = '\0';
}

}  // namespace

bool check_device(c10::Device device, std::size_t index, headrace_check_v1& check) noexcept {
  if (index >= kinds.size() * checked_types.size()) return false;
  const Kind& kind = kinds[index / checked_types.size()];
  const CheckedType& type = checked_types[index % checked_types.size()];
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = attempt(kind, type, device);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  copy(check.name, std::string(kind.name) + " " + type.name);
  copy(check.detail, outcome.detail);
  check.passed = outcome.passed ? 1 : 0;
  check.milliseconds = took.count();
  return true;
}

}  // namespace headrace::torch_runtime
