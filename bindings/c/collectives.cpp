// SPDX-License-Identifier: Apache-2.0
// Operations and messages of include/headrace/c/comm.h.
#include "comm_handles.hpp"

#include <cstddef>

namespace headrace::c {
namespace {

// The caller's arrays are read as they are.
template <class Type>
constexpr bool has_layout_of_c =
    sizeof(Type) == sizeof(headrace_elements) && offsetof(Type, data) == offsetof(headrace_elements, data) &&
    offsetof(Type, count) == offsetof(headrace_elements, count) &&
    offsetof(Type, dtype) == offsetof(headrace_elements, dtype);
static_assert(has_layout_of_c<Elements> && has_layout_of_c<ConstElements>);
static_assert(HEADRACE_REDUCE_PREMUL_SUM == static_cast<int>(ReduceOp::premul_sum) &&
              HEADRACE_ANY_SOURCE == any_source);
static_assert(HEADRACE_FLOAT8_E5M2 == static_cast<int>(DType::float8_e5m2) &&
              HEADRACE_FLOAT8_E5M2 + 1 == dtype_count);

template <class Type>
Result<std::span<const Type>> list_in(const headrace_elements* first, std::uint64_t count, const char* what) {
  const auto list = array_in(first, count, what);
  if (!list) return list.error();
  return std::span(reinterpret_cast<const Type*>(list->data()), list->size());
}

Result<ReduceOp> reduce_op_of(std::int32_t op, const headrace_op_options* options) {
  if (op < HEADRACE_REDUCE_SUM || op > HEADRACE_REDUCE_PREMUL_SUM)
    return wrong("there is no reduce operation " + std::to_string(op) + ": see headrace_reduce_op");
  return ReduceOp(static_cast<ReduceOp::Kind>(op), options == nullptr ? 1 : options->factor);
}

Result<OpOptions> options_of(const headrace_op_options* given) {
  OpOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  options.async = given->async != 0;
  options.timeout = timeout_of(given->timeout_ns);
  auto hints = pairs_in(given->hints);
  if (!hints) return std::move(hints).error();
  options.hints = std::move(*hints);
  options.stream = given->stream;
  return options;
}

Result<MessageOptions> options_of(const headrace_message_options* given) {
  MessageOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  options.async = given->async != 0;
  options.timeout = timeout_of(given->timeout_ns);
  options.tag = given->tag;
  options.stream = given->stream;
  return options;
}

/// give_work for an operation of a communicator.
template <class Options, class Start>
std::int32_t operate(headrace_comm* comm, const Options* options, headrace_work** work,
                     headrace_error** error, const Start& start) {
  return give_work(work, error, [&]() -> Result<Work> {
    HEADRACE_C_TRY(given(comm, "comm"));
    const auto wanted = options_of(options);
    if (!wanted) return wanted.error();
    return start(comm->comm, *wanted);
  });
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Comm;
using headrace::ConstElements;
using headrace::Elements;
using headrace::MessageOptions;
using headrace::OpOptions;
using headrace::Result;
using headrace::Work;

const char* headrace_reduce_op_name(std::int32_t op) {
  return headrace::reduce_op_name(static_cast<headrace::ReduceOp::Kind>(op)).data();
}

std::int32_t headrace_comm_all_reduce(headrace_comm* comm, const headrace_elements* input,
                                      const headrace_elements* output, std::int32_t op,
                                      const headrace_op_options* options, headrace_work** work,
                                      headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(input, "input"));
    HEADRACE_C_TRY(given(output, "output"));
    const auto reduction = reduce_op_of(op, options);
    if (!reduction) return reduction.error();
    return on.all_reduce(input_of(*input), output_of(*output), *reduction, how);
  });
}

std::int32_t headrace_comm_all_gather(headrace_comm* comm, const headrace_elements* outputs,
                                      std::uint64_t output_count, const headrace_elements* input,
                                      const headrace_op_options* options, headrace_work** work,
                                      headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    const auto to = list_in<Elements>(outputs, output_count, "outputs");
    if (!to) return to.error();
    HEADRACE_C_TRY(given(input, "input"));
    return on.all_gather(*to, input_of(*input), how);
  });
}

std::int32_t headrace_comm_all_gather_v(headrace_comm* comm, const headrace_elements* outputs,
                                        std::uint64_t output_count, const headrace_elements* input,
                                        const headrace_op_options* options, headrace_work** work,
                                        headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    const auto to = list_in<Elements>(outputs, output_count, "outputs");
    if (!to) return to.error();
    HEADRACE_C_TRY(given(input, "input"));
    return on.all_gather_v(*to, input_of(*input), how);
  });
}

std::int32_t headrace_comm_all_gather_single(headrace_comm* comm, const headrace_elements* output,
                                             const headrace_elements* input,
                                             const headrace_op_options* options, headrace_work** work,
                                             headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    HEADRACE_C_TRY(given(input, "input"));
    return on.all_gather_single(output_of(*output), input_of(*input), how);
  });
}

std::int32_t headrace_comm_reduce_scatter(headrace_comm* comm, const headrace_elements* output,
                                          const headrace_elements* inputs, std::uint64_t input_count,
                                          std::int32_t op, const headrace_op_options* options,
                                          headrace_work** work, headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    const auto from = list_in<ConstElements>(inputs, input_count, "inputs");
    if (!from) return from.error();
    const auto reduction = reduce_op_of(op, options);
    if (!reduction) return reduction.error();
    return on.reduce_scatter(output_of(*output), *from, *reduction, how);
  });
}

std::int32_t headrace_comm_reduce_scatter_v(headrace_comm* comm, const headrace_elements* output,
                                            const headrace_elements* inputs, std::uint64_t input_count,
                                            std::int32_t op, const headrace_op_options* options,
                                            headrace_work** work, headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    const auto from = list_in<ConstElements>(inputs, input_count, "inputs");
    if (!from) return from.error();
    const auto reduction = reduce_op_of(op, options);
    if (!reduction) return reduction.error();
    return on.reduce_scatter_v(output_of(*output), *from, *reduction, how);
  });
}

std::int32_t headrace_comm_reduce_scatter_single(headrace_comm* comm, const headrace_elements* output,
                                                 const headrace_elements* input, std::int32_t op,
                                                 const headrace_op_options* options, headrace_work** work,
                                                 headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    HEADRACE_C_TRY(given(input, "input"));
    const auto reduction = reduce_op_of(op, options);
    if (!reduction) return reduction.error();
    return on.reduce_scatter_single(output_of(*output), input_of(*input), *reduction, how);
  });
}

std::int32_t headrace_comm_all_to_all(headrace_comm* comm, const headrace_elements* outputs,
                                      std::uint64_t output_count, const headrace_elements* inputs,
                                      std::uint64_t input_count, const headrace_op_options* options,
                                      headrace_work** work, headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    const auto to = list_in<Elements>(outputs, output_count, "outputs");
    if (!to) return to.error();
    const auto from = list_in<ConstElements>(inputs, input_count, "inputs");
    if (!from) return from.error();
    return on.all_to_all(*to, *from, how);
  });
}

std::int32_t headrace_comm_all_to_all_single(headrace_comm* comm, const headrace_elements* output,
                                             const headrace_elements* input,
                                             const headrace_op_options* options, headrace_work** work,
                                             headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    HEADRACE_C_TRY(given(input, "input"));
    return on.all_to_all_single(output_of(*output), input_of(*input), how);
  });
}

std::int32_t headrace_comm_all_to_all_v_single(headrace_comm* comm, const headrace_elements* output,
                                               const headrace_elements* input,
                                               const std::uint64_t* output_splits,
                                               const std::uint64_t* input_splits, std::uint64_t split_count,
                                               const headrace_op_options* options, headrace_work** work,
                                               headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    HEADRACE_C_TRY(given(input, "input"));
    const auto to = array_in(output_splits, split_count, "output_splits");
    if (!to) return to.error();
    const auto from = array_in(input_splits, split_count, "input_splits");
    if (!from) return from.error();
    return on.all_to_all_v_single(output_of(*output), input_of(*input), *to, *from, how);
  });
}

std::int32_t headrace_comm_device_all_to_all_v_single(headrace_comm* comm, const headrace_elements* output,
                                                      const headrace_elements* input,
                                                      const headrace_elements* output_splits,
                                                      const headrace_elements* input_splits,
                                                      const headrace_op_options* options,
                                                      headrace_work** work, headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    HEADRACE_C_TRY(given(input, "input"));
    HEADRACE_C_TRY(given(output_splits, "output_splits"));
    HEADRACE_C_TRY(given(input_splits, "input_splits"));
    return on.device_all_to_all_v_single(output_of(*output), input_of(*input), input_of(*output_splits),
                                         input_of(*input_splits), how);
  });
}

std::int32_t headrace_comm_barrier(headrace_comm* comm, const headrace_op_options* options,
                                   headrace_work** work, headrace_error** error) {
  return operate(comm, options, work, error,
                 [](Comm& on, const OpOptions& how) -> Result<Work> { return on.barrier(how); });
}

std::int32_t headrace_comm_broadcast(headrace_comm* comm, const headrace_elements* inout, std::int32_t root,
                                     const headrace_op_options* options, headrace_work** work,
                                     headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(inout, "inout"));
    return on.broadcast(output_of(*inout), root, how);
  });
}

std::int32_t headrace_comm_reduce(headrace_comm* comm, const headrace_elements* inout, std::int32_t root,
                                  std::int32_t op, const headrace_op_options* options, headrace_work** work,
                                  headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(inout, "inout"));
    const auto reduction = reduce_op_of(op, options);
    if (!reduction) return reduction.error();
    return on.reduce(output_of(*inout), root, *reduction, how);
  });
}

std::int32_t headrace_comm_gather(headrace_comm* comm, const headrace_elements* outputs,
                                  std::uint64_t output_count, const headrace_elements* input,
                                  std::int32_t root, const headrace_op_options* options, headrace_work** work,
                                  headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    const auto to = list_in<Elements>(outputs, output_count, "outputs");
    if (!to) return to.error();
    HEADRACE_C_TRY(given(input, "input"));
    return on.gather(*to, input_of(*input), root, how);
  });
}

std::int32_t headrace_comm_gather_single(headrace_comm* comm, const headrace_elements* output,
                                         const headrace_elements* input, std::int32_t root,
                                         const headrace_op_options* options, headrace_work** work,
                                         headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(input, "input"));
    if (on.rank() != root) return on.gather_single({}, input_of(*input), root, how);
    HEADRACE_C_TRY(given(output, "output"));
    return on.gather_single(output_of(*output), input_of(*input), root, how);
  });
}

std::int32_t headrace_comm_scatter(headrace_comm* comm, const headrace_elements* output,
                                   const headrace_elements* inputs, std::uint64_t input_count,
                                   std::int32_t root, const headrace_op_options* options,
                                   headrace_work** work, headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    const auto from = list_in<ConstElements>(inputs, input_count, "inputs");
    if (!from) return from.error();
    return on.scatter(output_of(*output), *from, root, how);
  });
}

std::int32_t headrace_comm_send(headrace_comm* comm, const headrace_elements* input, std::int32_t destination,
                                const headrace_message_options* options, headrace_work** work,
                                headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const MessageOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(input, "input"));
    return on.send(input_of(*input), destination, how);
  });
}

std::int32_t headrace_comm_recv(headrace_comm* comm, const headrace_elements* output, std::int32_t source,
                                const headrace_message_options* options, headrace_work** work,
                                headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const MessageOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    return on.recv(output_of(*output), source, how);
  });
}

std::int32_t headrace_comm_monitored_barrier(headrace_comm* comm, std::int64_t timeout_ns,
                                             std::int32_t wait_all_ranks, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    return comm->comm.monitored_barrier(timeout_of(timeout_ns), wait_all_ranks != 0);
  });
}

std::int32_t headrace_comm_reduce_scatter_quantized(headrace_comm* comm, const headrace_elements* output,
                                                    const headrace_elements* input, std::int32_t op,
                                                    std::uint64_t seed, const headrace_op_options* options,
                                                    headrace_work** work, headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(output, "output"));
    HEADRACE_C_TRY(given(input, "input"));
    const auto reduction = reduce_op_of(op, options);
    if (!reduction) return reduction.error();
    return on.reduce_scatter_quantized(output_of(*output), input_of(*input), *reduction, seed, how);
  });
}

std::int32_t headrace_comm_all_gather_p_init(headrace_comm* comm, const headrace_elements* output,
                                             headrace_all_gather** handle, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(output, "output"));
    HEADRACE_C_TRY(given(handle, "handle"));
    auto prepared = comm->comm.all_gather_p_init(output_of(*output));
    if (!prepared) return std::move(prepared).error();
    *handle = new headrace_all_gather{std::move(*prepared)};
    return {};
  });
}

std::int32_t headrace_comm_all_gather_p_exec(headrace_comm* comm, const headrace_all_gather* handle,
                                             const headrace_elements* input,
                                             const headrace_op_options* options, headrace_work** work,
                                             headrace_error** error) {
  return operate(comm, options, work, error, [&](Comm& on, const OpOptions& how) -> Result<Work> {
    HEADRACE_C_TRY(given(handle, "handle"));
    HEADRACE_C_TRY(given(input, "input"));
    return on.all_gather_p_exec(handle->handle, input_of(*input), how);
  });
}

void headrace_all_gather_free(headrace_all_gather* handle) { delete handle; }

std::int32_t headrace_comm_batch(headrace_comm* comm, headrace_batch** batch, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    HEADRACE_C_TRY(given(batch, "batch"));
    *batch = new headrace_batch{comm->comm.batch()};
    return {};
  });
}

std::int32_t headrace_batch_send(headrace_batch* batch, const headrace_elements* input,
                                 std::int32_t destination, std::uint32_t tag, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(batch, "batch"));
    HEADRACE_C_TRY(given(input, "input"));
    return batch->batch.send(input_of(*input), destination, tag);
  });
}

std::int32_t headrace_batch_recv(headrace_batch* batch, const headrace_elements* output, std::int32_t source,
                                 std::uint32_t tag, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(batch, "batch"));
    HEADRACE_C_TRY(given(output, "output"));
    return batch->batch.recv(output_of(*output), source, tag);
  });
}

std::int32_t headrace_batch_issue(headrace_batch* batch, const headrace_op_options* options,
                                  headrace_work** work, headrace_error** error) {
  return give_work(work, error, [&]() -> Result<Work> {
    HEADRACE_C_TRY(given(batch, "batch"));
    const auto wanted = options_of(options);
    if (!wanted) return wanted.error();
    return batch->batch.issue(*wanted);
  });
}

void headrace_batch_free(headrace_batch* batch) { delete batch; }

std::int32_t headrace_comm_start_coalescing(headrace_comm* comm, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    return comm->comm.start_coalescing();
  });
}

std::int32_t headrace_comm_end_coalescing(headrace_comm* comm, std::int32_t async, headrace_work** work,
                                          headrace_error** error) {
  return give_work(work, error, [&]() -> Result<Work> {
    HEADRACE_C_TRY(given(comm, "comm"));
    return comm->comm.end_coalescing(async != 0);
  });
}

std::int32_t headrace_comm_cancel_coalescing(headrace_comm* comm, const char* reason,
                                             headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(comm, "comm"));
    return reason == nullptr ? comm->comm.cancel_coalescing() : comm->comm.cancel_coalescing(reason);
  });
}
