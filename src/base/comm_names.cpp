// SPDX-License-Identifier: Apache-2.0
// Names of the values of <headrace/comm_call.hpp>.
#include <headrace/comm_call.hpp>

#include <array>
#include <cstddef>
#include <string_view>

namespace headrace {
namespace {

constexpr std::array<std::string_view, 9> op_names{"sum",  "product", "min",  "max",       "avg",
                                                   "band", "bor",     "bxor", "premul_sum"};

constexpr std::array window_operation_names{"tensor_register", "tensor_deregister", "put",        "get",
                                            "signal",          "wait_signal",       "atomic_add", "flush"};

constexpr std::array operation_names{
    "open",
    "split",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_v",
    "all_gather_single",
    "reduce_scatter",
    "reduce_scatter_v",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_v_single",
    "gather",
    "gather_single",
    "scatter",
    "barrier",
    "send",
    "recv",
    "monitored_barrier",
    "batch",
    "coalesced",
    "reduce_scatter_quantized",
    "device_all_to_all_v_single",
    "suspend",
    "resume",
};
static_assert(operation_names.size() == static_cast<std::size_t>(CommOperation::resume) + 1);

}  // namespace

std::string_view comm_operation_name(CommOperation operation) noexcept {
  const auto index = static_cast<std::size_t>(operation);
  const std::size_t of_window = index - static_cast<std::size_t>(CommOperation::tensor_register);
  if (of_window < window_operation_names.size()) return window_operation_names[of_window];
  return index < operation_names.size() ? operation_names[index] : "unknown";
}

std::string_view reduce_op_name(ReduceOp::Kind kind) noexcept {
  const auto index = static_cast<std::size_t>(kind);
  return index < op_names.size() ? op_names[index] : "unknown";
}

}  // namespace headrace
