// SPDX-License-Identifier: Apache-2.0
#include "cli/demo/placement.hpp"

#include "cli/common/errors.hpp"

namespace headrace::cli::demo {

Result<Placement> place(const std::string& device, int gpus) {
  HEADRACE_CLI_TRY(wanted, device_from_text(device));
  if (wanted.kind == Device::Kind::cpu) return Placement{};
  if (gpus == 0)
    return fail(Code::not_supported,
                "--device {}: this machine has no GPU: leave the option out to run on the CPU", device);
  if (wanted.index >= gpus)
    return fail(Code::not_supported, "--device {}: the GPUs of this machine are cuda:0 to cuda:{}", device,
                gpus - 1);
  const bool one = device.find(':') != std::string::npos || gpus == 1;
  Placement placement{device_text(wanted), {}};
  for (int i = one ? wanted.index : 1; i < (one ? wanted.index + 1 : gpus); ++i)
    placement.decode.push_back(device_text({Device::Kind::cuda, i}));
  return placement;
}

}  // namespace headrace::cli::demo
