// SPDX-License-Identifier: Apache-2.0
// Hooks of include/headrace/c/comm_hooks.h.
#include "comm_handles.hpp"

#include <headrace/c/comm_hooks.h>

#include <utility>

struct headrace_hook {
  headrace::CommHook hook;
};

namespace headrace::c {
namespace {

static_assert(HEADRACE_OPERATION_RECV == static_cast<std::int32_t>(CommOperation::recv));
static_assert(HEADRACE_OPERATION_BARRIER == static_cast<std::int32_t>(CommOperation::barrier));
static_assert(HEADRACE_OPERATION_REDUCE_SCATTER_QUANTIZED ==
              static_cast<std::int32_t>(CommOperation::reduce_scatter_quantized));
static_assert(HEADRACE_OPERATION_FLUSH == static_cast<std::int32_t>(CommOperation::flush));

/// The C form of elements: collectives.cpp asserts that the layouts are the same.
template <class Type>
const headrace_elements* elements_of(std::span<const Type> lists) {
  return reinterpret_cast<const headrace_elements*>(lists.data());
}

headrace_comm_call call_of(const CommCall& call) {
  headrace_comm_call made{};
  made.struct_size = sizeof made;
  made.operation = static_cast<std::int32_t>(call.operation);
  made.async = call.async ? 1 : 0;
  made.number = call.number;
  made.inputs = elements_of(call.inputs);
  made.input_count = call.inputs.size();
  made.outputs = elements_of(call.outputs);
  made.output_count = call.outputs.size();
  made.input_splits = call.input_splits.data();
  made.output_splits = call.output_splits.data();
  made.split_count = call.input_splits.size();
  made.op = call.op.kind;
  made.peer = call.peer;
  made.factor = call.op.factor;
  made.timeout_ns = call.timeout ? call.timeout->count() : -1;
  made.tag = call.tag;
  return made;
}

std::int32_t code_of(const Error& error) { return static_cast<std::int32_t>(error.code); }
const char* message_of(const Error& error) {
  return error.code == Code::ok ? nullptr : error.message.c_str();
}

/// The functions of the caller. The last C++ function that holds them drops the context.
class HooksOfCaller {
 public:
  explicit HooksOfCaller(const headrace_comm_hooks& hooks) : hooks_(hooks) {}
  ~HooksOfCaller() {
    if (hooks_.drop != nullptr) hooks_.drop(hooks_.context);
  }
  HooksOfCaller(const HooksOfCaller&) = delete;
  HooksOfCaller& operator=(const HooksOfCaller&) = delete;

  [[nodiscard]] Result<void> before(const CommCall& given) const {
    const headrace_comm_call call = call_of(given);
    headrace_bytes why;
    const std::int32_t code = hooks_.before(hooks_.context, &call, &why);
    if (code == 0) return {};
    if (code < 0 || code > static_cast<std::int32_t>(Code::internal))
      return wrong("the hook before returned " + std::to_string(code) +
                   ", which is no code of headrace_code_name");
    const auto known = static_cast<Code>(code);
    return Error{known, why.text.empty() ? std::string(code_sentence(known)) : std::move(why.text), no_page};
  }

  /// The C++ hooks that call the functions, and keep them.
  static CommHooks hooks(const headrace_comm_hooks& given) {
    const auto kept = std::make_shared<const HooksOfCaller>(given);
    CommHooks hooks;
    if (given.before != nullptr) hooks.before = [kept](const CommCall& call) { return kept->before(call); };
    if (given.scheduled != nullptr)
      hooks.scheduled = [kept](const CommCall& call) {
        const headrace_comm_call made = call_of(call);
        kept->hooks_.scheduled(kept->hooks_.context, &made);
      };
    if (given.started != nullptr)
      hooks.started = [kept](const CommCallId& call) {
        kept->hooks_.started(kept->hooks_.context, static_cast<std::int32_t>(call.operation), call.number);
      };
    if (given.completed != nullptr)
      hooks.completed = [kept](const CommCallId& call, const Error& error) {
        kept->hooks_.completed(kept->hooks_.context, static_cast<std::int32_t>(call.operation), call.number,
                               code_of(error), message_of(error));
      };
    if (given.after != nullptr)
      hooks.after = [kept](const CommCall& call, const Result<Work>& result) {
        const headrace_comm_call made = call_of(call);
        const Error error = result ? Error{Code::ok, {}} : result.error();
        kept->hooks_.after(kept->hooks_.context, &made, code_of(error), message_of(error));
      };
    // Also without a function: something keeps the context until the hooks are removed.
    hooks.aborted = [kept](const Error& cause) {
      if (kept->hooks_.aborted != nullptr)
        kept->hooks_.aborted(kept->hooks_.context, code_of(cause), message_of(cause));
    };
    return hooks;
  }

 private:
  const headrace_comm_hooks hooks_;
};

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

const char* headrace_comm_operation_name(std::int32_t operation) {
  return headrace::comm_operation_name(static_cast<headrace::CommOperation>(operation)).data();
}

std::int32_t headrace_comm_add_hooks(headrace_comm* comm, const headrace_comm_hooks* hooks,
                                     headrace_hook** hook, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    if (hook != nullptr) *hook = nullptr;
    HEADRACE_C_TRY(whole(hooks, "hooks"));
    auto functions = HooksOfCaller::hooks(*hooks);
    HEADRACE_C_TRY(given(comm, "comm"));
    auto added = comm->comm.add_hooks(std::move(functions));
    if (hook != nullptr) *hook = new headrace_hook{std::move(added)};
    return {};
  });
}

void headrace_hook_remove(headrace_hook* hook) {
  if (hook != nullptr) hook->hook.remove();
  delete hook;
}

void headrace_hook_free(headrace_hook* hook) { delete hook; }
