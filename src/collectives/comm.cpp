// SPDX-License-Identifier: Apache-2.0
// The public face of collectives: checks arguments, and hands the operation to the communicator.
#include <headrace/comm.hpp>

#include <headrace/version.hpp>

#include "base/errors.hpp"
#include "base/names.hpp"
#include "collectives/algorithms.hpp"
#include "collectives/core.hpp"

#include <array>
#include <numeric>
#include <optional>
#include <utility>

namespace headrace {
namespace {

using collectives::ConstPart;
using collectives::Exchange;
using collectives::Operation;
using collectives::Part;
using collectives::Reduction;

Part part_of(const Elements& elements) { return {static_cast<std::byte*>(elements.data), elements.bytes()}; }
ConstPart part_of(const ConstElements& elements) {
  return {static_cast<const std::byte*>(elements.data), elements.bytes()};
}
template <class List>
auto parts_of(const List& list) {
  std::vector<decltype(part_of(list[0]))> parts;
  parts.reserve(list.size());
  for (const auto& elements : list) parts.push_back(part_of(elements));
  return parts;
}

/// One call whose arguments are checked. The first error stays.
class Arguments {
 public:
  Arguments(const Comm::Core& core, const char* op) : core_(core), op_(op) {
    // Before anything takes a lock: the parent may have held it.
    if (core.forked()) error_ = core.why_not_in_child();
  }

  Arguments& memory(const char* what, const ConstElements& elements) {
    if (static_cast<std::size_t>(elements.dtype) >= dtype_count)
      return refuse("{} has the element type {}, which does not exist", what,
                    static_cast<int>(elements.dtype));
    if (elements.count > PTRDIFF_MAX / element_bytes(elements.dtype))
      return refuse("{} has {} elements: more than any memory", what, elements.count);
    if (elements.data == nullptr && elements.count != 0)
      return refuse("{} has {} elements and a null address", what, elements.count);
    return *this;
  }
  Arguments& same(const char* what, const ConstElements& a, const char* other, const ConstElements& b) {
    same_type(what, a, other, b);
    return a.count == b.count ? *this
                              : refuse("{} has {} elements, {} has {}: both need the same count", what,
                                       a.count, other, b.count);
  }
  Arguments& same_type(const char* what, const ConstElements& a, const char* other, const ConstElements& b) {
    memory(what, a).memory(other, b);
    return a.dtype == b.dtype ? *this
                              : refuse("{} is {}, {} is {}: both need the same type", what,
                                       dtype_name(a.dtype), other, dtype_name(b.dtype));
  }
  Arguments& times(const char* many, const ConstElements& a, const char* one, const ConstElements& b) {
    same_type(many, a, one, b);
    return a.count == b.count * size() ? *this
                                       : refuse("{} has {} elements: {} ranks times {} of {} are {}", many,
                                                a.count, size(), b.count, one, b.count * size());
  }
  template <class List>
  Arguments& list(const char* what, const List& list, std::size_t expected) {
    if (list.size() != expected)
      return refuse("{} has {} entries, {} are expected", what, list.size(), expected);
    for (const auto& elements : list) memory(what, elements);
    return *this;
  }
  /// Each entry as the one element list: type, and count if `counts`.
  template <class List>
  Arguments& each(const char* what, const List& list, const char* other, const ConstElements& one,
                  bool counts) {
    for (const auto& elements : list)
      counts ? same(what, elements, other, one) : same_type(what, elements, other, one);
    return *this;
  }
  Arguments& root(int root) {
    if (root < 0 || static_cast<std::size_t>(root) >= size())
      return refuse("there is no root {}; there are {} ranks, from 0", root, size());
    return *this;
  }
  Arguments& splits(const char* what, std::span<const std::size_t> splits, const ConstElements& elements) {
    memory(what, elements);
    if (splits.size() != size()) return refuse("{} has {} splits for {} ranks", what, splits.size(), size());
    const std::size_t sum = std::accumulate(splits.begin(), splits.end(), std::size_t{0});
    if (sum != elements.count)
      return refuse("the splits of {} add up to {}, its elements are {}", what, sum, elements.count);
    return *this;
  }
  Arguments& that(bool holds, std::string_view otherwise) { return holds ? *this : refuse("{}", otherwise); }
  /// The error with its context, once.
  [[nodiscard]] std::optional<Error> take_error() {
    if (!error_) return std::nullopt;
    return std::move(*error_).within(
        fmt::format("rank {}, {} of {}", core_.rank(), op_, name_text(core_.name())));
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(core_.size()); }

 private:
  template <class... Args>
  Arguments& refuse(fmt::format_string<Args...> text, Args&&... args) {
    if (!error_) error_ = make_error(Code::invalid_argument, text, std::forward<Args>(args)...);
    return *this;
  }
  const Comm::Core& core_;
  const char* const op_;
  std::optional<Error> error_;
};

/// The hints of one operation.
struct OpHints {
  enum class Algorithm { by_size, one_shot, two_shot } algorithm = Algorithm::by_size;

  static Result<OpHints> read(const std::map<std::string, std::string>& hints) {
    OpHints found;
    for (const auto& [name, value] : hints) {
      if (name != "algorithm")
        return make_error(Code::invalid_argument,
                          "no hint \"{}\" of an operation: did you mean \"algorithm\"?", name);
      if (value != "one_shot" && value != "two_shot")
        return make_error(Code::invalid_argument, "hint algorithm is \"{}\": write one_shot or two_shot",
                          value);
      found.algorithm = value == "one_shot" ? Algorithm::one_shot : Algorithm::two_shot;
    }
    return found;
  }
};

/// Parts of one piece of memory, in a row.
template <class P>
std::vector<P> cut(P whole, std::span<const std::size_t> counts, std::size_t width) {
  std::vector<P> parts;
  for (const std::size_t count : counts) {
    parts.push_back({whole.data, count * width});
    whole.data += count * width;
  }
  return parts;
}
template <class P>
std::vector<P> cut_evenly(P whole, std::size_t ranks) {
  std::vector<std::size_t> bytes(ranks, whole.bytes / ranks);
  return cut(whole, bytes, 1);
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
  if (core_) core_->close();
}
/// In a forked child it stays: its threads and locks are the parent's, and none of them would let it go.
void Comm::let_go() {
  close();
  if (core_ && core_->forked())
    static_cast<void>(std::make_unique<std::shared_ptr<Core>>(std::move(core_)).release());
}

Result<Comm> Comm::open(const CommOptions& options) {
  auto core = Core::open(options);
  if (!core)
    return std::move(core).error().within(
        fmt::format("open communicator {} as rank {}", name_text(options.name), options.rank));
  return Comm(std::move(*core));
}

int Comm::rank() const { return core_->rank(); }
int Comm::size() const { return core_->size(); }
std::vector<int> Comm::ranks() const { return core_->ranks(); }
std::string Comm::name() const { return core_->name(); }
CommOptions Comm::options() const { return core_->options(); }
std::string_view Comm::backend() const { return "host"; }
std::string_view Comm::backend_version() const { return HEADRACE_VERSION; }
void Comm::set_timeout(Timeout timeout) { core_->set_timeout(timeout); }
Result<void> Comm::set_hints(const std::map<std::string, std::string>& hints) {
  return core_->set_hints(hints);
}

Result<std::optional<Comm>> Comm::split(std::span<const int> ranks, const std::string& name,
                                        const SplitOptions& options) {
  HEADRACE_TRY(core, core_->split(ranks, name, options));
  if (!core) return std::optional<Comm>();
  return std::optional<Comm>(Comm(std::move(core)));
}

void Comm::abort(std::string_view reason) { core_->abort(reason); }
bool Comm::is_aborted() const { return core_->ended(); }
Result<void> Comm::finalize() { return core_->finalize(); }

Result<Work> Comm::all_reduce(const Elements& inout, ReduceOp op, const OpOptions& options) {
  return all_reduce(inout, inout, op, options);
}

Result<Work> Comm::all_reduce(const ConstElements& input, const Elements& output, ReduceOp op,
                              const OpOptions& options) {
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, "all_reduce").same("the input", input, "the output", output));
  HEADRACE_TRY(reduction, Reduction::find(op, input.dtype, size()));
  HEADRACE_TRY(hints, OpHints::read(options.hints));
  const collectives::Tuning tuning = core_->tuning();
  const bool one_shot = hints.algorithm == OpHints::Algorithm::by_size
                            ? input.bytes() <= tuning.one_shot_bytes
                            : hints.algorithm == OpHints::Algorithm::one_shot;
  return core_->collective(Operation::all_reduce, options,
                           [=, in = input.data, out = output.data, n = input.count](Exchange& exchange) {
                             return one_shot ? all_reduce_one_shot(exchange, in, out, n, reduction)
                                             : all_reduce_two_shot(exchange, in, out, n, reduction,
                                                                   tuning.block_bytes);
                           });
}

Result<Work> Comm::all_gather(std::span<const Elements> outputs, const ConstElements& input,
                              const OpOptions& options) {
  Arguments arguments(*core_, "all_gather");
  HEADRACE_CHECK_ARGUMENTS(arguments.list("outputs", outputs, arguments.size())
                               .each("an output", outputs, "the input", input, true));
  return all_gather_v(outputs, input, options);
}

Result<Work> Comm::all_gather_v(std::span<const Elements> outputs, const ConstElements& input,
                                const OpOptions& options) {
  Arguments arguments(*core_, "all_gather_v");
  arguments.list("outputs", outputs, arguments.size()).each("an output", outputs, "the input", input, false);
  HEADRACE_CHECK_ARGUMENTS(arguments.that(
      outputs.size() != arguments.size() || outputs[static_cast<std::size_t>(rank())].count == input.count,
      "the output for this rank has another count than the input"));
  return core_->collective(Operation::all_gather, options,
                           [to = parts_of(outputs), from = part_of(input)](Exchange& exchange) {
                             return collectives::all_gather(exchange, to, from);
                           });
}

Result<Work> Comm::all_gather_single(const Elements& output, const ConstElements& input,
                                     const OpOptions& options) {
  Arguments arguments(*core_, "all_gather_single");
  HEADRACE_CHECK_ARGUMENTS(arguments.times("the output", output, "the input", input));
  return core_->collective(Operation::all_gather, options,
                           [to = cut_evenly(part_of(output), arguments.size()), from = part_of(input)](
                               Exchange& exchange) { return collectives::all_gather(exchange, to, from); });
}

Result<Work> Comm::reduce_scatter(const Elements& output, std::span<const ConstElements> inputs, ReduceOp op,
                                  const OpOptions& options) {
  Arguments arguments(*core_, "reduce_scatter");
  HEADRACE_CHECK_ARGUMENTS(arguments.list("inputs", inputs, arguments.size())
                               .each("an input", inputs, "the output", output, true));
  return reduce_scatter_v(output, inputs, op, options);
}

Result<Work> Comm::reduce_scatter_v(const Elements& output, std::span<const ConstElements> inputs,
                                    ReduceOp op, const OpOptions& options) {
  Arguments arguments(*core_, "reduce_scatter_v");
  arguments.list("inputs", inputs, arguments.size()).each("an input", inputs, "the output", output, false);
  HEADRACE_CHECK_ARGUMENTS(arguments.that(
      inputs.size() != arguments.size() || inputs[static_cast<std::size_t>(rank())].count == output.count,
      "the input for this rank has another count than the output"));
  HEADRACE_TRY(reduction, Reduction::find(op, output.dtype, size()));
  return core_->collective(Operation::reduce_scatter, options,
                           [reduction, to = part_of(output), from = parts_of(inputs)](Exchange& exchange) {
                             return collectives::reduce_scatter(exchange, to, from, reduction);
                           });
}

Result<Work> Comm::reduce_scatter_single(const Elements& output, const ConstElements& input, ReduceOp op,
                                         const OpOptions& options) {
  Arguments arguments(*core_, "reduce_scatter_single");
  HEADRACE_CHECK_ARGUMENTS(arguments.times("the input", input, "the output", output));
  HEADRACE_TRY(reduction, Reduction::find(op, output.dtype, size()));
  return core_->collective(
      Operation::reduce_scatter, options,
      [reduction, to = part_of(output), from = cut_evenly(part_of(input), arguments.size())](
          Exchange& exchange) { return collectives::reduce_scatter(exchange, to, from, reduction); });
}

Result<Work> Comm::all_to_all(std::span<const Elements> outputs, std::span<const ConstElements> inputs,
                              const OpOptions& options) {
  Arguments arguments(*core_, "all_to_all");
  arguments.list("outputs", outputs, arguments.size()).list("inputs", inputs, arguments.size());
  if (!outputs.empty() && !inputs.empty())
    arguments.each("an output", outputs, "the first input", inputs[0], false)
        .each("an input", inputs, "the first output", outputs[0], false);
  const auto mine = static_cast<std::size_t>(rank());
  HEADRACE_CHECK_ARGUMENTS(arguments.that(
      outputs.size() <= mine || inputs.size() <= mine || outputs[mine].count == inputs[mine].count,
      "the output for this rank has another count than its input"));
  return core_->collective(Operation::all_to_all, options,
                           [to = parts_of(outputs), from = parts_of(inputs)](Exchange& exchange) {
                             return collectives::all_to_all(exchange, to, from);
                           });
}

Result<Work> Comm::all_to_all_single(const Elements& output, const ConstElements& input,
                                     const OpOptions& options) {
  Arguments arguments(*core_, "all_to_all_single");
  HEADRACE_CHECK_ARGUMENTS(
      arguments.same("the output", output, "the input", input)
          .that(input.count % arguments.size() == 0,
                "the count is no multiple of the number of ranks: use all_to_all_v_single"));
  const std::vector<std::size_t> counts(arguments.size(), input.count / arguments.size());
  return all_to_all_v_single(output, input, counts, counts, options);
}

Result<Work> Comm::all_to_all_v_single(const Elements& output, const ConstElements& input,
                                       std::span<const std::size_t> output_splits,
                                       std::span<const std::size_t> input_splits, const OpOptions& options) {
  Arguments arguments(*core_, "all_to_all_v_single");
  const auto mine = static_cast<std::size_t>(rank());
  HEADRACE_CHECK_ARGUMENTS(arguments.same_type("the output", output, "the input", input)
                               .splits("the output", output_splits, output)
                               .splits("the input", input_splits, input)
                               .that(output_splits.size() <= mine || input_splits.size() <= mine ||
                                         output_splits[mine] == input_splits[mine],
                                     "the output split for this rank differs from its input split"));
  const std::size_t width = element_bytes(input.dtype);
  return core_->collective(
      Operation::all_to_all, options,
      [to = cut(part_of(output), output_splits, width), from = cut(part_of(input), input_splits, width)](
          Exchange& exchange) { return collectives::all_to_all(exchange, to, from); });
}

Result<Work> Comm::barrier(const OpOptions& options) {
  return core_->collective(Operation::barrier, options, collectives::barrier);
}

Result<Work> Comm::broadcast(const Elements& inout, int root, const OpOptions& options) {
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, "broadcast").memory("the memory", inout).root(root));
  return core_->collective(Operation::broadcast, options, [=, part = part_of(inout)](Exchange& exchange) {
    return collectives::broadcast(exchange, part, root);
  });
}

Result<Work> Comm::reduce(const Elements& inout, int root, ReduceOp op, const OpOptions& options) {
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, "reduce").memory("the memory", inout).root(root));
  HEADRACE_TRY(reduction, Reduction::find(op, inout.dtype, size()));
  return core_->collective(Operation::reduce, options, [=, part = part_of(inout)](Exchange& exchange) {
    return collectives::reduce(exchange, part, root, reduction);
  });
}

Result<Work> Comm::gather(std::span<const Elements> outputs, const ConstElements& input, int root,
                          const OpOptions& options) {
  Arguments arguments(*core_, "gather");
  HEADRACE_CHECK_ARGUMENTS(arguments.root(root)
                               .memory("the input", input)
                               .list("outputs", outputs, rank() == root ? arguments.size() : 0)
                               .each("an output", outputs, "the input", input, true));
  return core_->collective(Operation::gather, options,
                           [=, to = parts_of(outputs), from = part_of(input)](Exchange& exchange) {
                             return collectives::gather(exchange, to, from, root);
                           });
}

Result<Work> Comm::gather_single(const Elements& output, const ConstElements& input, int root,
                                 const OpOptions& options) {
  Arguments arguments(*core_, "gather_single");
  arguments.root(root).memory("the input", input);
  if (rank() == root) arguments.times("the output", output, "the input", input);
  HEADRACE_CHECK_ARGUMENTS(arguments);
  std::vector<Part> parts;
  if (rank() == root) parts = cut_evenly(part_of(output), arguments.size());
  return core_->collective(Operation::gather, options,
                           [=, to = std::move(parts), from = part_of(input)](Exchange& exchange) {
                             return collectives::gather(exchange, to, from, root);
                           });
}

Result<Work> Comm::scatter(const Elements& output, std::span<const ConstElements> inputs, int root,
                           const OpOptions& options) {
  Arguments arguments(*core_, "scatter");
  HEADRACE_CHECK_ARGUMENTS(arguments.root(root)
                               .memory("the output", output)
                               .list("inputs", inputs, rank() == root ? arguments.size() : 0)
                               .each("an input", inputs, "the output", output, true));
  return core_->collective(Operation::scatter, options,
                           [=, to = part_of(output), from = parts_of(inputs)](Exchange& exchange) {
                             return collectives::scatter(exchange, to, from, root);
                           });
}

Result<Work> Comm::send(const ConstElements& input, int destination, const MessageOptions& options) {
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, "send").memory("the input", input));
  return core_->send(input, destination, options);
}

Result<Work> Comm::recv(const Elements& output, int source, const MessageOptions& options) {
  HEADRACE_CHECK_ARGUMENTS(Arguments(*core_, "recv").memory("the output", output));
  return core_->receive(output, source, options);
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

Result<void> Work::wait(Timeout timeout) const {
  if (!state_) return {};
  if (!state_->ended() && state_->core()->forked()) return state_->core()->why_not_in_child();
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
