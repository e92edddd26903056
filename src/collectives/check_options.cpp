// SPDX-License-Identifier: Apache-2.0
#include "collectives/check_options.hpp"

#include "base/errors.hpp"
#include "base/names.hpp"
#include "base/utf8.hpp"
#include "gpu/device.hpp"

#include <cstddef>
#include <numeric>

namespace headrace::collectives {

Result<void> check_name(const std::string& name) {
  constexpr std::size_t longest_name = 128;
  if (name.empty() || name.size() > longest_name || !is_utf8(name) || has_control_character(name)) {
    return make_error(Code::invalid_argument,
                      "a communicator's name is UTF-8 of 1 to {} bytes without control characters, not {}",
                      longest_name, name_text(name));
  }
  return {};
}

Result<void> check_options(const CommOptions& options) {
  HEADRACE_TRY_VOID(check_name(options.name));
  constexpr int most_ranks = 4096;
  if (options.size < 1 || options.size > most_ranks || options.rank < 0 || options.rank >= options.size) {
    return make_error(
        Code::invalid_argument,
        "rank {} of size {}: the size is 1 to {}, and the rank is at least 0 and below the size",
        options.rank, options.size, most_ranks);
  }
  return {};
}

Result<CommOptions> with_device_number(CommOptions options) {
  HEADRACE_TRY(device, device_from_text(options.device));
  if (device.kind == Device::Kind::cuda && options.device.find(':') == std::string::npos) {
    HEADRACE_TRY(driver, cuda::load_driver());
    HEADRACE_TRY(current, gpu::current_device(driver));
    device.index = current;
  }
  options.device = device_text(device);
  return options;
}

Device device_of(const CommOptions& options) { return device_from_text(options.device).value(); }

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace headrace::collectives
