// SPDX-License-Identifier: Apache-2.0
// tcp over the GPUs of the program that loads this plugin. The program itself links no tcp, so it stays as it
// is when tcp changes.
#include "backends/tcp/backend.hpp"
#include "gpu_backends/on_gpus.hpp"

namespace {

/// The name differs from that of the built tcp, which moves host memory where there is no GPU.
class TcpOnGpus : public headrace::test::OnGpus<headrace::tcp::TcpBackend> {
 public:
  static constexpr const char* name = "tcp_gpu";
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const headrace_backend_v1* headrace_backend_on_gpus(
    const headrace::cuda::DriverTable* driver, const headrace_kernels_v1* kernels) {
  TcpOnGpus::use(*driver, *kernels);
  return headrace::plugin::table<TcpOnGpus>();
}
