// SPDX-License-Identifier: Apache-2.0
#include "base/errors.hpp"

#include <headrace/tensor.hpp>

#include <charconv>

namespace headrace {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

}  // namespace

std::string device_text(Device device) {
  return device.kind == Device::Kind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

Result<Device> device_from_text(std::string_view text) {
  const std::string name = lower(text);
  if (name == "cpu") return Device{};
  if (name == "cuda") return Device{Device::Kind::cuda, 0};
  constexpr std::string_view prefix = "cuda:";
  if (name.starts_with(prefix)) {
    Device device{Device::Kind::cuda, 0};
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, device.index);
    if (error == std::errc() && rest == end && device.index >= 0 && device.index < 128) return device;
  }
  return make_error(Code::invalid_argument,
                    "there is no device \"{}\": write cpu, cuda or cuda:1 (cuda stands for AMD's GPUs too)",
                    text);
}

}  // namespace headrace
