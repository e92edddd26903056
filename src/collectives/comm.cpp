// SPDX-License-Identifier: Apache-2.0
// The public face of collectives: checks arguments, and hands the call to the communicator.
#include <headrace/comm.hpp>
#include <headrace/comm_window.hpp>

#include "base/errors.hpp"
#include "base/names.hpp"
#include "collectives/arguments.hpp"
#include "collectives/backends.hpp"
#include "collectives/core.hpp"
#include "collectives/observers.hpp"

#include <array>
#include <atomic>
#include <optional>
#include <utility>

namespace headrace {
namespace {

using collectives::Arguments;

CommCall call_of(CommOperation operation, const OpOptions& options) {
  CommCall call;
  call.operation = operation;
  call.async = options.async;
  call.timeout = options.timeout;
  call.hints = &options.hints;
  call.stream = options.stream;
  return call;
}
CommCall call_of(CommOperation operation, const MessageOptions& options) {
  CommCall call;
  call.operation = operation;
  call.async = options.async;
  call.timeout = options.timeout;
  call.tag = options.tag;
  call.stream = options.stream;
  return call;
}

template <class T>
std::span<const T> one(const T& elements) {
  return {&elements, 1};
}

}  // namespace

// Refuses wrong arguments of the operation.
#define HEADRACE_CHECK_ARGUMENTS(...) \
  if (auto refused = (__VA_ARGS__).take_error()) return std::move(*refused)

Comm::Comm(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Comm::Comm(Comm&&) noexcept = default;
Comm& Comm::operator=(Comm&& other) noexcept {
  if (this != &other) {
    let_go();
    core_ = std::move(other.core_);
  }
  return *this;
}
Comm::~Comm() { let_go(); }
void Comm::close() {
  if (!core_) return;
  if (!core_->forked()) core_->close_coalescing();
  core_->close();
}
/// In a forked child it stays: its threads and locks are the parent's, and none of them would let it go.
void Comm::let_go() {
  close();
  if (core_ && core_->forked())
    static_cast<void>(std::make_unique<std::shared_ptr<Core>>(std::move(core_)).release());
}

Result<Comm> Comm::open(const CommOptions& options) {
  HEADRACE_TRY(observers, collectives::Observers::read());
  auto core = collectives::open_backend(options);
  if (!core)
    return std::move(core).error().within(
        fmt::format("open communicator {} as rank {}", name_text(options.name), options.rank));
  Comm comm(*core);
  HEADRACE_TRY_VOID(observers.add_to(comm, comm.core_));
  return comm;
}

int Comm::rank() const { return core_->rank(); }
int Comm::size() const { return core_->size(); }
std::vector<int> Comm::ranks() const { return core_->ranks(); }
std::string Comm::name() const { return core_->name(); }
Device Comm::device() const { return core_->device(); }
CommOptions Comm::options() const { return core_->options(); }
std::string_view Comm::backend() const { return core_->backend(); }
std::string_view Comm::backend_version() const { return core_->backend_version(); }
void Comm::set_timeout(Timeout timeout) { core_->set_timeout(timeout); }
Result<void> Comm::set_hints(const std::map<std::string, std::string>& hints) {
  return core_->set_hints(hints);
}

Result<void> Comm::tensor_register(const Elements& tensor, std::shared_ptr<const void> owner) {
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, CommOperation::tensor_register).memory("the tensor", tensor));
  return core_->tensor_register(tensor, std::move(owner));
}

Result<void> Comm::tensor_deregister(const Elements& tensor) {
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, CommOperation::tensor_deregister).memory("the tensor", tensor));
  return core_->tensor_deregister(tensor);
}

Result<void> Comm::suspend() {
  if (core_->forked()) return core_->why_not_in_child();
  return core_->suspend();
}
Result<void> Comm::resume() {
  if (core_->forked()) return core_->why_not_in_child();
  return core_->resume();
}
bool Comm::is_suspended() const { return core_->suspended(); }

Result<Window> Comm::new_window() {
  if (core_->forked()) return core_->why_not_in_child();
  return core_->new_window();
}

Result<std::optional<Comm>> Comm::split(std::span<const int> ranks, const std::string& name,
                                        const SplitOptions& options) {
  HEADRACE_TRY(observers, collectives::Observers::read());
  HEADRACE_TRY(core, core_->split(ranks, name, options));
  if (!core) return std::optional<Comm>();
  Comm part(std::move(core));
  HEADRACE_TRY_VOID(observers.add_to(part, part.core_));
  return std::optional<Comm>(std::move(part));
}

Result<std::string> Comm::init_handle() const { return core_->init_handle(); }

Result<Comm> Comm::reconfigure(const std::string& uuid, std::span<const std::string> handles,
                               const SplitOptions& options) const {
  auto core = core_->reconfigure(uuid, handles, options);
  if (!core) return core_->refused("reconfigure", std::move(core).error());
  return Comm(std::move(*core));
}

Result<Comm> Comm::shrink(std::span<const int> excluded, const SplitOptions& options) {
  auto core = core_->shrink(excluded, options);
  if (!core) return core_->refused("shrink", std::move(core).error());
  return Comm(std::move(*core));
}

CommHook Comm::add_hooks(CommHooks hooks) { return {core_->hooks(), core_->hooks()->add(std::move(hooks))}; }

void Comm::abort(std::string_view reason) { core_->abort(reason); }
bool Comm::is_aborted() const { return core_->ended(); }
Result<void> Comm::finalize() {
  if (!core_->forked()) core_->close_coalescing();
  return core_->finalize();
}

Result<void> Comm::start_coalescing() { return core_->start_coalescing(); }
Result<Work> Comm::end_coalescing(bool async) { return core_->end_coalescing(async); }
Result<void> Comm::cancel_coalescing(std::string_view reason) { return core_->cancel_coalescing(reason); }
bool Comm::is_coalescing() const { return core_->coalesces() != nullptr; }

Result<Work> Comm::all_reduce(const Elements& inout, ReduceOp op, const OpOptions& options) {
  return all_reduce(inout, inout, op, options);
}

Result<Work> Comm::all_reduce(const ConstElements& input, const Elements& output, ReduceOp op,
                              const OpOptions& options) {
  CommCall call = call_of(CommOperation::all_reduce, options);
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, call.operation).same("the input", input, "the output", output));
  call.inputs = one(input);
  call.outputs = one(output);
  call.op = op;
  return core_->call(call, options.owner);
}

Result<Work> Comm::all_gather(std::span<const Elements> outputs, const ConstElements& input,
                              const OpOptions& options) {
  CommCall call = call_of(CommOperation::all_gather, options);
  Arguments arguments(*core_, call.operation);
  HEADRACE_CHECK_ARGUMENTS(arguments.list("outputs", outputs, arguments.size())
                               .each("an output", outputs, "the input", input, true));
  call.inputs = one(input);
  call.outputs = outputs;
  return core_->call(call, options.owner);
}

Result<Work> Comm::all_gather_v(std::span<const Elements> outputs, const ConstElements& input,
                                const OpOptions& options) {
  CommCall call = call_of(CommOperation::all_gather_v, options);
  Arguments arguments(*core_, call.operation);
  arguments.list("outputs", outputs, arguments.size()).each("an output", outputs, "the input", input, false);
  HEADRACE_CHECK_ARGUMENTS(arguments.that(
      outputs.size() != arguments.size() || outputs[static_cast<std::size_t>(rank())].count == input.count,
      "the output for this rank has another count than the input"));
  call.inputs = one(input);
  call.outputs = outputs;
  return core_->call(call, options.owner);
}

Result<Work> Comm::all_gather_single(const Elements& output, const ConstElements& input,
                                     const OpOptions& options) {
  CommCall call = call_of(CommOperation::all_gather_single, options);
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, call.operation).times("the output", output, "the input", input));
  call.inputs = one(input);
  call.outputs = one(output);
  return core_->call(call, options.owner);
}

struct AllGatherHandle::Prepared {
  Prepared(const std::shared_ptr<Comm::Core>& of, const Elements& elements) : core(of), output(elements) {}

  /// Whether the handle may be used with a communicator.
  [[nodiscard]] static std::string_view why_not(const Prepared* prepared,
                                                const std::shared_ptr<Comm::Core>& core) {
    if (prepared == nullptr || prepared->core.lock() != core)
      return "the handle is of another communicator: make one by all_gather_p_init of this one";
    return prepared->freed ? "the handle has been freed: make another one by all_gather_p_init" : "";
  }

  const std::weak_ptr<Comm::Core> core;
  const Elements output;
  std::atomic<bool> freed{false};
};

Result<AllGatherHandle> Comm::all_gather_p_init(const Elements& output) {
  Arguments arguments(*core_, CommOperation::all_gather_single);
  HEADRACE_CHECK_ARGUMENTS(arguments.memory("the output", output).divisible("the output", output));
  return AllGatherHandle(std::make_shared<AllGatherHandle::Prepared>(core_, output));
}

Result<Work> Comm::all_gather_p_exec(const AllGatherHandle& handle, const ConstElements& input,
                                     const OpOptions& options) {
  CommCall call = call_of(CommOperation::all_gather_single, options);
  const AllGatherHandle::Prepared* const prepared = handle.prepared_.get();
  const std::string_view why_not = AllGatherHandle::Prepared::why_not(prepared, core_);
  Arguments arguments(*core_, call.operation);
  HEADRACE_CHECK_ARGUMENTS(arguments.that(why_not.empty(), why_not));
  HEADRACE_CHECK_ARGUMENTS(arguments.share("the input", input, "the handle", prepared->output));
  call.inputs = one(input);
  call.outputs = one(prepared->output);
  return core_->call(call, options.owner);
}

Result<void> Comm::all_gather_p_free(const AllGatherHandle& handle) {
  const std::string_view why_not = AllGatherHandle::Prepared::why_not(handle.prepared_.get(), core_);
  HEADRACE_CHECK_ARGUMENTS(
      Arguments(*core_, CommOperation::all_gather_single).that(why_not.empty(), why_not));
  handle.prepared_->freed = true;
  return {};
}

Result<Work> Comm::reduce_scatter(const Elements& output, std::span<const ConstElements> inputs, ReduceOp op,
                                  const OpOptions& options) {
  CommCall call = call_of(CommOperation::reduce_scatter, options);
  Arguments arguments(*core_, call.operation);
  HEADRACE_CHECK_ARGUMENTS(arguments.list("inputs", inputs, arguments.size())
                               .each("an input", inputs, "the output", output, true));
  call.inputs = inputs;
  call.outputs = one(output);
  call.op = op;
  return core_->call(call, options.owner);
}

Result<Work> Comm::reduce_scatter_v(const Elements& output, std::span<const ConstElements> inputs,
                                    ReduceOp op, const OpOptions& options) {
  CommCall call = call_of(CommOperation::reduce_scatter_v, options);
  Arguments arguments(*core_, call.operation);
  arguments.list("inputs", inputs, arguments.size()).each("an input", inputs, "the output", output, false);
  HEADRACE_CHECK_ARGUMENTS(arguments.that(
      inputs.size() != arguments.size() || inputs[static_cast<std::size_t>(rank())].count == output.count,
      "the input for this rank has another count than the output"));
  call.inputs = inputs;
  call.outputs = one(output);
  call.op = op;
  return core_->call(call, options.owner);
}

Result<Work> Comm::reduce_scatter_single(const Elements& output, const ConstElements& input, ReduceOp op,
                                         const OpOptions& options) {
  CommCall call = call_of(CommOperation::reduce_scatter_single, options);
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, call.operation).times("the input", input, "the output", output));
  call.inputs = one(input);
  call.outputs = one(output);
  call.op = op;
  return core_->call(call, options.owner);
}

Result<Work> Comm::reduce_scatter_quantized(const Elements& output, const ConstElements& input, ReduceOp op,
                                            std::uint64_t seed, const OpOptions& options) {
  CommCall call = call_of(CommOperation::reduce_scatter_quantized, options);
  HEADRACE_CHECK_ARGUMENTS(
      Arguments(*core_, call.operation)
          .times("the input", input, "the output", output)
          .that(input.dtype == DType::float32, "the elements must be float32")
          .that(op.kind == ReduceOp::sum || op.kind == ReduceOp::avg, "its reductions are sum and avg"));
  call.inputs = one(input);
  call.outputs = one(output);
  call.op = op;
  call.seed = seed;
  return core_->call(call, options.owner);
}

Result<Work> Comm::all_to_all(std::span<const Elements> outputs, std::span<const ConstElements> inputs,
                              const OpOptions& options) {
  CommCall call = call_of(CommOperation::all_to_all, options);
  Arguments arguments(*core_, call.operation);
  arguments.list("outputs", outputs, arguments.size()).list("inputs", inputs, arguments.size());
  if (!outputs.empty() && !inputs.empty())
    arguments.each("an output", outputs, "the first input", inputs[0], false)
        .each("an input", inputs, "the first output", outputs[0], false);
  const auto mine = static_cast<std::size_t>(rank());
  HEADRACE_CHECK_ARGUMENTS(arguments.that(
      outputs.size() <= mine || inputs.size() <= mine || outputs[mine].count == inputs[mine].count,
      "the output for this rank has another count than its input"));
  call.inputs = inputs;
  call.outputs = outputs;
  return core_->call(call, options.owner);
}

Result<Work> Comm::all_to_all_single(const Elements& output, const ConstElements& input,
                                     const OpOptions& options) {
  CommCall call = call_of(CommOperation::all_to_all_single, options);
  Arguments arguments(*core_, call.operation);
  HEADRACE_CHECK_ARGUMENTS(
      arguments.same("the output", output, "the input", input)
          .that(input.count % arguments.size() == 0,
                "the count is no multiple of the number of ranks: use all_to_all_v_single"));
  call.inputs = one(input);
  call.outputs = one(output);
  return core_->call(call, options.owner);
}

Result<Work> Comm::all_to_all_v_single(const Elements& output, const ConstElements& input,
                                       std::span<const std::size_t> output_splits,
                                       std::span<const std::size_t> input_splits, const OpOptions& options) {
  CommCall call = call_of(CommOperation::all_to_all_v_single, options);
  Arguments arguments(*core_, call.operation);
  const auto mine = static_cast<std::size_t>(rank());
  HEADRACE_CHECK_ARGUMENTS(arguments.same_type("the output", output, "the input", input)
                               .splits("the output", output_splits, output)
                               .splits("the input", input_splits, input)
                               .that(output_splits.size() <= mine || input_splits.size() <= mine ||
                                         output_splits[mine] == input_splits[mine],
                                     "the output split for this rank differs from its input split"));
  call.inputs = one(input);
  call.outputs = one(output);
  call.input_splits = input_splits;
  call.output_splits = output_splits;
  return core_->call(call, options.owner);
}

Result<Work> Comm::device_all_to_all_v_single(const Elements& output, const ConstElements& input,
                                              const ConstElements& output_splits,
                                              const ConstElements& input_splits, const OpOptions& options) {
  CommCall call = call_of(CommOperation::device_all_to_all_v_single, options);
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, call.operation)
                               .same_type("the output", output, "the input", input)
                               .split_elements("the output", output_splits)
                               .split_elements("the input", input_splits));
  const std::array inputs{input, output_splits, input_splits};
  call.inputs = inputs;
  call.outputs = one(output);
  return core_->call(call, options.owner);
}

Result<Work> Comm::barrier(const OpOptions& options) {
  CommCall call = call_of(CommOperation::barrier, options);
  return core_->call(call, options.owner);
}

Result<void> Comm::monitored_barrier(Timeout timeout, bool wait_all_ranks) {
  OpOptions options;
  options.timeout = timeout;
  CommCall call = call_of(CommOperation::monitored_barrier, options);
  call.wait_all_ranks = wait_all_ranks;
  HEADRACE_TRY_VOID(core_->call(call, nullptr));
  return {};
}

Result<Work> Comm::broadcast(const Elements& inout, int root, const OpOptions& options) {
  CommCall call = call_of(CommOperation::broadcast, options);
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, call.operation).memory("the memory", inout).root(root));
  const ConstElements input = inout;
  call.inputs = one(input);
  call.outputs = one(inout);
  call.peer = root;
  return core_->call(call, options.owner);
}

Result<Work> Comm::reduce(const Elements& inout, int root, ReduceOp op, const OpOptions& options) {
  CommCall call = call_of(CommOperation::reduce, options);
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, call.operation).memory("the memory", inout).root(root));
  const ConstElements input = inout;
  call.inputs = one(input);
  call.outputs = one(inout);
  call.op = op;
  call.peer = root;
  return core_->call(call, options.owner);
}

Result<Work> Comm::gather(std::span<const Elements> outputs, const ConstElements& input, int root,
                          const OpOptions& options) {
  CommCall call = call_of(CommOperation::gather, options);
  Arguments arguments(*core_, call.operation);
  HEADRACE_CHECK_ARGUMENTS(arguments.root(root)
                               .memory("the input", input)
                               .list("outputs", outputs, rank() == root ? arguments.size() : 0)
                               .each("an output", outputs, "the input", input, true));
  call.inputs = one(input);
  call.outputs = outputs;
  call.peer = root;
  return core_->call(call, options.owner);
}

Result<Work> Comm::gather_single(const Elements& output, const ConstElements& input, int root,
                                 const OpOptions& options) {
  CommCall call = call_of(CommOperation::gather_single, options);
  Arguments arguments(*core_, call.operation);
  arguments.root(root).memory("the input", input);
  if (rank() == root) arguments.times("the output", output, "the input", input);
  HEADRACE_CHECK_ARGUMENTS(arguments);
  call.inputs = one(input);
  if (rank() == root) call.outputs = one(output);
  call.peer = root;
  return core_->call(call, options.owner);
}

Result<Work> Comm::scatter(const Elements& output, std::span<const ConstElements> inputs, int root,
                           const OpOptions& options) {
  CommCall call = call_of(CommOperation::scatter, options);
  Arguments arguments(*core_, call.operation);
  HEADRACE_CHECK_ARGUMENTS(arguments.root(root)
                               .memory("the output", output)
                               .list("inputs", inputs, rank() == root ? arguments.size() : 0)
                               .each("an input", inputs, "the output", output, true));
  call.inputs = inputs;
  call.outputs = one(output);
  call.peer = root;
  return core_->call(call, options.owner);
}

Result<Work> Comm::send(const ConstElements& input, int destination, const MessageOptions& options) {
  CommCall call = call_of(CommOperation::send, options);
  HEADRACE_CHECK_ARGUMENTS(
      Arguments(*core_, call.operation).memory("the input", input).peer(destination, false));
  call.inputs = one(input);
  call.peer = destination;
  return core_->call(call, options.owner);
}

Result<Work> Comm::recv(const Elements& output, int source, const MessageOptions& options) {
  CommCall call = call_of(CommOperation::recv, options);
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, call.operation).memory("the output", output).peer(source, true));
  call.outputs = one(output);
  call.peer = source;
  return core_->call(call, options.owner);
}

// --- batches

struct Batch::Messages {
  std::shared_ptr<Comm::Core> core;
  std::vector<collectives::KeptCall> calls = {};
  bool issued = false;

  [[nodiscard]] Result<void> usable(CommOperation operation) const {
    if (!issued) return {};
    return core->refused(operation, make_error(Code::invalid_argument,
                                               "the batch has been issued: make another one by Comm::batch"));
  }
};

Batch::Batch(std::shared_ptr<Comm::Core> core) : messages_(std::make_unique<Messages>(std::move(core))) {}
Batch::~Batch() = default;
Batch::Batch(Batch&&) noexcept = default;
Batch& Batch::operator=(Batch&&) noexcept = default;

Batch Comm::batch() const { return Batch(core_); }

Result<void> Batch::send(const ConstElements& input, int destination, std::uint32_t tag) {
  CommCall call = call_of(CommOperation::send, MessageOptions{.tag = tag});
  HEADRACE_TRY_VOID(messages_->usable(call.operation));
  HEADRACE_CHECK_ARGUMENTS(
      Arguments(*messages_->core, call.operation).memory("the input", input).peer(destination, false));
  call.inputs = one(input);
  call.peer = destination;
  messages_->calls.emplace_back(call);
  return {};
}

Result<void> Batch::recv(const Elements& output, int source, std::uint32_t tag) {
  CommCall call = call_of(CommOperation::recv, MessageOptions{.tag = tag});
  HEADRACE_TRY_VOID(messages_->usable(call.operation));
  HEADRACE_CHECK_ARGUMENTS(
      Arguments(*messages_->core, call.operation).memory("the output", output).peer(source, true));
  call.outputs = one(output);
  call.peer = source;
  messages_->calls.emplace_back(call);
  return {};
}

Result<Work> Batch::issue(const OpOptions& options) {
  HEADRACE_TRY_VOID(messages_->usable(CommOperation::batch));
  HEADRACE_CHECK_ARGUMENTS(Arguments(*messages_->core, CommOperation::batch)
                               .that(options.hints.empty(), "a batch has no hints, and some are given"));
  messages_->issued = true;
  for (collectives::KeptCall& call : messages_->calls) {
    call.set_timeout(options.timeout);
    call.set_stream(options.stream);
  }
  return messages_->core->batch(messages_->calls, options);
}

#undef HEADRACE_CHECK_ARGUMENTS

// --- works

namespace {

constexpr std::array work_status_names{"not_started", "in_progress", "completed",
                                       "timed_out",   "aborted",     "failed"};

}  // namespace

std::string_view work_status_name(WorkStatus status) noexcept {
  const auto index = static_cast<std::size_t>(status);
  return index < work_status_names.size() ? work_status_names[index] : "unknown";
}

WorkStatus Work::status() const { return state_ ? state_->status() : WorkStatus::completed; }

bool Work::is_completed() const {
  if (!state_) return true;
  if (!state_->ended()) state_->core()->poll();
  return state_->ended();
}

namespace {

/// Refuses a wait that would have no end.
Result<void> may_wait(const std::shared_ptr<Work::State>& work) {
  Comm::Core& core = *work->core();
  if (!work->ended() && core.forked()) return core.why_not_in_child();
  if (core.coalesces() != work) return {};
  return core.refused(
      CommOperation::coalesced,
      make_error(Code::invalid_argument, "its calls are kept by this thread: call end_coalescing first"));
}

}  // namespace

Result<void> Work::wait_on(void* stream) const {
  if (!state_) return {};
  HEADRACE_TRY_VOID(may_wait(state_));
  Comm::Core& core = *state_->core();
  if (!core.on_gpu())
    return core.refused(
        state_->call().operation,
        make_error(Code::invalid_argument,
                   "wait_on is for communicators on a GPU, and this one moves host memory: use "
                   "wait"));
  const std::vector<Work> parts = state_->parts();
  for (const Work& part : parts) HEADRACE_TRY_VOID(part.wait_on(stream));
  if (parts.empty() && !state_->ended()) HEADRACE_TRY_VOID(core.wait_on(*state_, stream));
  if (state_->ended() && state_->status() != WorkStatus::completed) return state_->error();
  return {};
}

Result<void> Work::wait(Timeout timeout) const {
  if (!state_) return {};
  HEADRACE_TRY_VOID(may_wait(state_));
  const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline::never();
  if (!state_->core()->wait(*state_, deadline)) {
    const int awaited = state_->awaited();
    return collectives::described(*state_->core(), state_->call(),
                                  make_error(Code::timed_out, "it still waits for {}; it goes on",
                                             awaited < 0 ? "another rank" : fmt::format("rank {}", awaited)));
  }
  if (state_->status() == WorkStatus::completed) return {};
  return state_->error();
}

Error Work::error() const {
  if (!state_ || !state_->ended()) return Error{Code::ok, {}};
  return state_->error();
}

int Work::source() const { return state_ && state_->ended() ? state_->source() : -1; }

void Work::on_end(std::function<void()> callback) const {
  if (state_)
    state_->on_end(std::move(callback));
  else
    callback();
}

}  // namespace headrace
