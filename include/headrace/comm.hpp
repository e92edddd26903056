// SPDX-License-Identifier: Apache-2.0
// Collectives: operations in which every rank of a communicator takes part. Ranks are processes, or threads
// of one process, on one host or several.
#pragma once

#include <headrace/comm_call.hpp>
#include <headrace/comm_hooks.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// The place where the ranks of a communicator find each other, given by the caller: torch's Store, for
/// example.
///   threads  called by the thread that opens the communicator alone
class CommStore {
 public:
  virtual ~CommStore() = default;
  /// Sets a key; a later call replaces its value.
  virtual Result<void> set(const std::string& key, const std::string& value) = 0;
  /// The value of a key. errors: not_found (no value yet)
  virtual Result<std::string> get(const std::string& key) = 0;
  /// Whether `split` and `shrink` may call it, too, as long as the communicator lives. Backends of GPUs need
  /// it there. False: it is called while the communicator opens alone.
  [[nodiscard]] virtual bool lasts() const { return false; }
};

struct CommOptions {
  int rank = 0;  ///< of this participant: 0 to size - 1
  int size = 1;  ///< number of ranks
  /// What moves the elements, the same on all ranks: "host", "lazy" (the same; ranks connect at their first
  /// message, and all at the first collective), "fake" (every operation is done at once, and none moves an
  /// element: for measuring, and for programs without other ranks), "auto" (on GPUs "p2p" or "nccl" for each
  /// call, by a table; on the CPU "host"), or one of list_comm_backends().
  std::string backend = "host";
  /// Where the elements of every call lie: "cpu", "cuda:1", or "cuda": the current GPU of the thread that
  /// opens it, which options() returns by its number. Ranks may have different GPUs.
  std::string device = "cpu";
  /// The same on all ranks: 1 to 128 bytes. Communicators that share a meeting place have different names.
  std::string name = "world";
  /// Where the ranks meet: "tcp://host:port", at which rank 0 listens; "file:///folder"; "memory:NAME" for
  /// threads of one process; "etcd://host:port[,host:port...][/namespace]". Not needed for one rank.
  std::string meeting = {};
  /// Instead of `meeting`.
  std::shared_ptr<CommStore> store = {};
  Timeout meeting_timeout = std::chrono::seconds(120);  ///< until all ranks have come
  Timeout timeout = std::chrono::seconds(600);          ///< of each operation, unless it has its own
  /// Ends the process when an operation fails, or is late. Off: the operation returns the error.
  bool abort_on_error = false;
  /// Ranks of other hosts may join it by reconfigure, though its meeting place is of this host alone, or it
  /// has one rank and needs none. Ranks of this host may always.
  bool enable_reconfigure = false;
  /// Values by name, for the backend; list_comm_hints() has the names for "host".
  std::map<std::string, std::string> hints = {};
  /// Asked about ten times a second by a thread that waits in open, split, finalize or an operation that is
  /// not async. True ends the wait with canceled; an operation that others wait for ends the communicator.
  std::function<bool()> interrupted = {};

  /// Rank, size and meeting as the launcher of this process has set them in the environment. The first pair
  /// that is set counts: HEADRACE_RANK and HEADRACE_SIZE, RANK and WORLD_SIZE (torchrun),
  /// OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, PALS_RANKID and PMI_SIZE, PMI_RANK and PMI_SIZE,
  /// SLURM_PROCID and SLURM_NTASKS.
  ///   errors  not_found (no pair: lists them), invalid_argument (half of a pair: names the other half; not a
  ///           number), and those of meeting_from_environment if there are several ranks
  static HEADRACE_API Result<CommOptions> from_environment();
  /// "tcp://" with MASTER_ADDR and MASTER_PORT. Empty: neither is set, or torchrun itself listens there.
  ///   errors  invalid_argument (one of them alone)
  static HEADRACE_API Result<std::string> meeting_from_environment();
};

/// The variables by which a launcher tells a process its rank, and what the environment has for them.
struct LauncherVariables {
  std::string launcher;  ///< "torchrun"
  std::string rank_name, size_name;
  std::optional<std::string> rank, size;  ///< nullopt: not set
};
/// Lists the pairs that CommOptions::from_environment looks for, in its order.
HEADRACE_API std::vector<LauncherVariables> list_launcher_variables();

/// One hint: what it is for. The value is the default.
struct CommHint {
  std::string name, default_value, unit, sentence;
};
/// Lists the hints of the backend "host".
HEADRACE_API std::vector<CommHint> list_comm_hints();
/// Lists the values of CommOptions::backend.
HEADRACE_API std::vector<std::string> list_comm_backends();

struct OptionInfo;
/// Lists the options `comm.` of environment and configuration file, which hold for every communicator, with
/// their values and the sources of these.
HEADRACE_API Result<std::vector<OptionInfo>> list_comm_options();

/// What goes with one operation.
struct OpOptions {
  bool async = false;    ///< return at once; Work::wait waits. The memory stays in place until then
  Timeout timeout = {};  ///< from the call on; nullopt: the communicator's
  /// "algorithm": "one_shot" or "two_shot" for all_reduce, the same on every rank.
  std::map<std::string, std::string> hints = {};
  /// Released when the operation has ended: an owner of the memory, if the operation is async or on a GPU.
  std::shared_ptr<const void> owner = {};
  /// Of a communicator on a GPU: a CUstream of that GPU; null: its default stream. The operation sees what
  /// was queued on it before the call. Not async: later work of the stream sees the result, and the call does
  /// not wait for it. Async: the operation runs beside later work of the stream; Work::wait_on joins them.
  void* stream = nullptr;
};

/// What goes with a message from rank to rank.
struct MessageOptions {
  bool async = false;
  Timeout timeout = {};
  std::uint32_t tag = 0;                   ///< a receive takes messages of its own tag alone
  std::shared_ptr<const void> owner = {};  ///< as in OpOptions
  void* stream = nullptr;                  ///< as in OpOptions
};

/// What is new in a communicator that split, reconfigure or shrink makes.
struct SplitOptions {
  std::map<std::string, std::string> hints = {};  ///< instead of the parent's; all but `backends`
  Timeout timeout = {};                           ///< of each operation; nullopt: the parent's
  Timeout meeting_timeout = {};                   ///< until all ranks have come; nullopt: the parent's
};

/// As the source of recv: the first message with the tag, from any rank.
inline constexpr int any_source = -1;

enum class WorkStatus : std::int32_t { not_started, in_progress, completed, timed_out, aborted, failed };
/// The name of a status, as written in this header.
HEADRACE_API std::string_view work_status_name(WorkStatus status) noexcept;

/// An operation under way, or done. A handle, cheap to copy. Dropping it does not end the operation.
///   threads  any
class Work {
 public:
  class State;
  /// An operation that is done already.
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  [[nodiscard]] HEADRACE_API WorkStatus status() const;
  /// Whether it has ended, well or not. Makes progress with sends and receives.
  [[nodiscard]] HEADRACE_API bool is_completed() const;
  /// Waits until it has ended. An operation that is late goes on.
  ///   errors  those of the operation; timed_out. They name rank, operation, number and the rank waited for
  HEADRACE_API Result<void> wait(Timeout timeout = forever) const;
  /// Of a communicator on a GPU: makes later work of a stream wait for the operation, and returns at once.
  ///   errors  those of the operation, if it has failed by now; invalid_argument (no GPU, coalesced calls
  ///   that
  ///           have not been issued)
  HEADRACE_API Result<void> wait_on(void* stream) const;
  /// Why it failed; Code::ok and no text if it did not, or has not ended.
  [[nodiscard]] HEADRACE_API Error error() const;
  /// Of a receive that is completed: the rank that sent. Else -1.
  [[nodiscard]] HEADRACE_API int source() const;
  /// Calls it once when the operation has ended, or at once if it has.
  ///   threads  the one that ends the operation, which may hold locks of the communicator
  ///   owns     the callback, until it has been called. It neither blocks nor calls the communicator:
  ///            CompletionQueue::put is made for it
  HEADRACE_API void on_end(std::function<void()> callback) const;

 private:
  std::shared_ptr<State> state_;  // null: done when the call returned
};

class Batch;

/// The output of an all_gather that is prepared once: from Comm::all_gather_p_init. A handle, cheap to copy.
class AllGatherHandle {
 public:
  AllGatherHandle() = default;

 private:
  friend class Comm;
  struct Prepared;
  explicit AllGatherHandle(std::shared_ptr<Prepared> prepared) : prepared_(std::move(prepared)) {}
  std::shared_ptr<Prepared> prepared_;
};
class Window;

/// One rank of a communicator.
///
/// Every rank calls the same operations in the same order. Calls of several threads are ordered as they come,
/// so threads that call operations of one communicator agree on an order with their like on other ranks, or
/// use a communicator each. Sends and receives are apart from that order.
///
/// An operation that fails or is late ends the communicator on all ranks: every later one returns the reason.
/// Wrong arguments end nothing: no rank has been told of the operation, and the caller corrects the call. A
/// send or receive that is late before its first byte has moved ends alone.
///
/// On a GPU (CommOptions::device) every operation is ordered by streams, and calls return once it is queued.
/// Without `async` too the work ends later: Work::wait waits for it on the host.
///   threads  any
///   fork     a forked child opens its own communicators
///   errors   of every operation: invalid_argument (rank, root, counts, types, null memory: the values; or
///            another rank is in another operation: which), timed_out, canceled (aborted: by which rank,
///            why), peer_lost (which rank)
class Comm {
 public:
  class Core;

  /// Meets the other ranks and connects to each, unless they are lazy.
  ///   errors  invalid_argument (rank, size, name, an unknown hint: the nearest; a rank that two callers
  ///           have), not_found (no such backend: which there are), timed_out (which ranks have not come),
  ///           and those of Agent::open and of the store
  static HEADRACE_API Result<Comm> open(const CommOptions& options);
  /// Closes.
  HEADRACE_API ~Comm();
  HEADRACE_API Comm(Comm&&) noexcept;
  HEADRACE_API Comm& operator=(Comm&&) noexcept;

  [[nodiscard]] HEADRACE_API int rank() const;
  [[nodiscard]] HEADRACE_API int size() const;
  /// The ranks of this communicator as those of the one that was opened first: 0 to size - 1, or what split
  /// had.
  [[nodiscard]] HEADRACE_API std::vector<int> ranks() const;
  [[nodiscard]] HEADRACE_API std::string name() const;
  /// Where the elements of its calls lie.
  [[nodiscard]] HEADRACE_API Device device() const;
  /// With the values that were set since.
  [[nodiscard]] HEADRACE_API CommOptions options() const;
  /// CommOptions::backend, and the version that the backend gives. Both end with a zero.
  [[nodiscard]] HEADRACE_API std::string_view backend() const;
  [[nodiscard]] HEADRACE_API std::string_view backend_version() const;

  /// For operations that begin later.
  HEADRACE_API void set_timeout(Timeout timeout);
  /// Changes hints for operations that begin later, on every rank alike.
  ///   errors  invalid_argument (unknown: the nearest; a hint that is fixed when the communicator opens)
  HEADRACE_API Result<void> set_hints(const std::map<std::string, std::string>& hints);

  /// Adds functions that are called beside operations, until CommHook::remove or the communicator's end. A
  /// communicator that split makes has none.
  HEADRACE_API CommHook add_hooks(CommHooks hooks);

  /// Makes a communicator of some ranks, in the given order. All ranks of this one call it. Each gives the
  /// group that it belongs to, or no ranks: then it gets nullopt.
  ///   errors  invalid_argument (this rank is not in `ranks`, a rank twice or out of range; another rank of
  ///   the
  ///           group gave another list or name; hints)
  HEADRACE_API Result<std::optional<Comm>> split(std::span<const int> ranks, const std::string& name,
                                                 const SplitOptions& options = {});

  // --- other ranks, without a meeting place

  /// This rank as reconfigure takes it: bytes, for the caller to bring to all ranks. They stay valid until
  /// the communicator ends; over nccl, and over tables, for one reconfigure.
  [[nodiscard]] HEADRACE_API Result<std::string> init_handle() const;
  /// Makes a communicator of the ranks behind these handles, in this order. Each of them calls it with the
  /// same uuid and handles, on the communicator that its handle is of: one of several ranks, or of itself
  /// alone, as newcomers have. That one stays as it is. After a failure all ranks call it again, with another
  /// uuid.
  ///   errors  invalid_argument (a handle that is none, or is there twice; this rank's is missing), timed_out
  ///           (CommOptions::meeting_timeout: which ranks have not come), peer_lost (which rank)
  [[nodiscard]] HEADRACE_API Result<Comm> reconfigure(const std::string& uuid,
                                                      std::span<const std::string> handles,
                                                      const SplitOptions& options = {}) const;
  /// Makes a communicator of all ranks but some, which died or are to go. All that stay call it with the same
  /// ranks. This communicator is aborted if it has not ended. Its other ranks keep their order, and
  /// Comm::ranks tells what they were.
  ///   errors  invalid_argument (a rank that does not exist, is there twice, or is this one), timed_out and
  ///           peer_lost as reconfigure: call it again without that rank
  [[nodiscard]] HEADRACE_API Result<Comm> shrink(std::span<const int> excluded,
                                                 const SplitOptions& options = {});

  /// Ends every operation on all ranks: they return canceled, with this rank and the reason, within 100 ms.
  HEADRACE_API void abort(std::string_view reason = "abort was called");
  /// Whether the communicator has ended: by abort, or by an operation that failed on some rank.
  [[nodiscard]] HEADRACE_API bool is_aborted() const;
  /// Waits for queued operations and leaves; later operations return invalid_argument.
  ///   errors  those of the operations that were queued
  HEADRACE_API Result<void> finalize();
  /// Leaves at once: operations that are under way are aborted, later ones return invalid_argument.
  HEADRACE_API void close();

  // --- all ranks give, all receive

  /// Every rank gets the reduction of all ranks' elements, bit for bit the same.
  HEADRACE_API Result<Work> all_reduce(const Elements& inout, ReduceOp op, const OpOptions& options = {});
  ///   shapes  input and output of the same count and type; they may be the same memory
  HEADRACE_API Result<Work> all_reduce(const ConstElements& input, const Elements& output, ReduceOp op,
                                       const OpOptions& options = {});
  /// outputs[r] gets the input of rank r.
  ///   shapes  size() outputs, each of the input's count
  HEADRACE_API Result<Work> all_gather(std::span<const Elements> outputs, const ConstElements& input,
                                       const OpOptions& options = {});
  /// The same with counts that differ: outputs[r] has the count of rank r's input.
  HEADRACE_API Result<Work> all_gather_v(std::span<const Elements> outputs, const ConstElements& input,
                                         const OpOptions& options = {});
  /// The inputs of all ranks in a row.
  ///   shapes  output.count == size() * input.count
  HEADRACE_API Result<Work> all_gather_single(const Elements& output, const ConstElements& input,
                                              const OpOptions& options = {});
  /// Checks the output of all_gather_single once, for any number of all_gather_p_exec. No other rank takes
  /// part.
  ///   shapes  output.count is a multiple of size()
  ///   owns    nothing: the output stays in place until all_gather_p_free
  HEADRACE_API Result<AllGatherHandle> all_gather_p_init(const Elements& output);
  /// all_gather_single into the output of the handle.
  ///   errors  invalid_argument (another communicator's handle, or freed; another count or type)
  HEADRACE_API Result<Work> all_gather_p_exec(const AllGatherHandle& handle, const ConstElements& input,
                                              const OpOptions& options = {});
  /// Operations that are under way go on.
  ///   errors  invalid_argument (another communicator's handle, or freed)
  HEADRACE_API Result<void> all_gather_p_free(const AllGatherHandle& handle);
  /// Rank r gets the reduction of all ranks' inputs[r].
  ///   shapes  size() inputs, each of the output's count
  HEADRACE_API Result<Work> reduce_scatter(const Elements& output, std::span<const ConstElements> inputs,
                                           ReduceOp op, const OpOptions& options = {});
  /// The same with counts that differ: inputs[r] has the count of rank r's output.
  HEADRACE_API Result<Work> reduce_scatter_v(const Elements& output, std::span<const ConstElements> inputs,
                                             ReduceOp op, const OpOptions& options = {});
  ///   shapes  input.count == size() * output.count
  HEADRACE_API Result<Work> reduce_scatter_single(const Elements& output, const ConstElements& input,
                                                  ReduceOp op, const OpOptions& options = {});
  /// reduce_scatter_single of float32 that sends half the bytes: as bfloat16, rounded up or down by chance,
  /// so that the mean of the error is 0. Sums are float32; a rank's own part is not rounded.
  ///   shapes  float32; input.count == size() * output.count; sum or avg
  ///   seed    of the chance, on each rank: the same seed gives the same elements
  HEADRACE_API Result<Work> reduce_scatter_quantized(const Elements& output, const ConstElements& input,
                                                     ReduceOp op, std::uint64_t seed,
                                                     const OpOptions& options = {});
  /// outputs[r] gets inputs[this rank] of rank r.
  ///   shapes  size() of each; inputs[r] of this rank has the count of outputs[this rank] of rank r
  HEADRACE_API Result<Work> all_to_all(std::span<const Elements> outputs,
                                       std::span<const ConstElements> inputs, const OpOptions& options = {});
  /// The same with the parts in a row, all of one count.
  ///   shapes  output.count == input.count, a multiple of size()
  HEADRACE_API Result<Work> all_to_all_single(const Elements& output, const ConstElements& input,
                                              const OpOptions& options = {});
  /// The same with counts for each rank, in elements.
  ///   shapes  size() splits each; their sums are output.count and input.count
  HEADRACE_API Result<Work> all_to_all_v_single(const Elements& output, const ConstElements& input,
                                                std::span<const std::size_t> output_splits,
                                                std::span<const std::size_t> input_splits,
                                                const OpOptions& options = {});
  /// all_to_all_v_single with splits that lie in elements and are read when the operation begins on this
  /// rank: an asynchronous one may be called before they are known.
  ///   shapes  splits: size() int64 each, in memory of the communicator's device. Their sums are at most
  ///           output.count and input.count; what lies behind is neither read nor written
  ///   errors  invalid_argument, once it has begun: a split is negative, or the sum is too large (the
  ///           values). Nothing was written; other ranks are in the operation, so the communicator ends.
  ///           not_supported (a backend that does not read splits: nccl)
  HEADRACE_API Result<Work> device_all_to_all_v_single(const Elements& output, const ConstElements& input,
                                                       const ConstElements& output_splits,
                                                       const ConstElements& input_splits,
                                                       const OpOptions& options = {});
  /// Returns once every rank has called it.
  HEADRACE_API Result<Work> barrier(const OpOptions& options = {});
  /// The same, to find out which ranks do not come: rank 0 waits for all and names each that is late or gone;
  /// the others hear it from rank 0.
  ///   timeout         of rank 0 for the others, and of the others for rank 0; nullopt: the communicator's
  ///   wait_all_ranks  true: a rank that is gone does not end the wait for the others, so that all are named
  HEADRACE_API Result<void> monitored_barrier(Timeout timeout = {}, bool wait_all_ranks = false);

  // --- one rank gives, or one receives

  /// Every rank gets the root's elements.
  HEADRACE_API Result<Work> broadcast(const Elements& inout, int root, const OpOptions& options = {});
  /// The root gets the reduction of all ranks' elements; those of other ranks stay as they are.
  HEADRACE_API Result<Work> reduce(const Elements& inout, int root, ReduceOp op,
                                   const OpOptions& options = {});
  /// outputs[r] of the root gets the input of rank r.
  ///   shapes  size() outputs of the input's count on the root, none elsewhere
  HEADRACE_API Result<Work> gather(std::span<const Elements> outputs, const ConstElements& input, int root,
                                   const OpOptions& options = {});
  ///   shapes  output.count == size() * input.count on the root; elsewhere the output is not used
  HEADRACE_API Result<Work> gather_single(const Elements& output, const ConstElements& input, int root,
                                          const OpOptions& options = {});
  /// Rank r gets inputs[r] of the root.
  ///   shapes  size() inputs of the output's count on the root, none elsewhere
  HEADRACE_API Result<Work> scatter(const Elements& output, std::span<const ConstElements> inputs, int root,
                                    const OpOptions& options = {});

  // --- from rank to rank, beside the collectives

  /// Sends a message. Done when the elements may be changed; the receiver may not have them yet.
  HEADRACE_API Result<Work> send(const ConstElements& input, int destination,
                                 const MessageOptions& options = {});
  /// Receives the next message of the tag from a rank, or from any_source: Work::source tells which.
  ///   shapes  the message has as many bytes as `output`
  HEADRACE_API Result<Work> recv(const Elements& output, int source, const MessageOptions& options = {});

  /// Sends and receives that are issued together.
  [[nodiscard]] HEADRACE_API Batch batch() const;

  // --- several calls as one

  /// Keeps the calls of this thread until end_coalescing, which issues them together. Each call is checked,
  /// and returns the work of all of them. split, finalize, abort and close are not kept.
  ///   owns    memory of the calls and `owner` as in an asynchronous operation
  ///   errors  invalid_argument (this thread has begun already)
  HEADRACE_API Result<void> start_coalescing();
  /// Issues the calls of this thread since start_coalescing, in their order. The work ends when all have
  /// ended, with the first error; no call is done at once. Without `async` it waits for that.
  ///   errors  those of the calls; invalid_argument (no start_coalescing on this thread; finalize meanwhile)
  HEADRACE_API Result<Work> end_coalescing(bool async = false);
  /// Forgets the calls of this thread since start_coalescing: their work ends with canceled.
  ///   errors  invalid_argument (no start_coalescing on this thread)
  HEADRACE_API Result<void> cancel_coalescing(std::string_view reason = "cancel_coalescing was called");
  /// Whether calls of this thread are kept.
  [[nodiscard]] HEADRACE_API bool is_coalescing() const;

  // --- memory that calls use again and again

  /// Tells the backend that calls will use this memory again and again. It changes speed alone: calls whose
  /// elements lie in registered memory may go without a copy, calls with other memory work as before. All
  /// ranks call it, as a collective, each with a tensor of its own; counts may differ. It waits for the
  /// collectives of this rank that are under way.
  ///   owns    the memory stays the caller's, in place, until tensor_deregister has returned or the
  ///           communicator has ended (finalize, close, abort). `owner` is released then; after an abort by
  ///           finalize or close
  ///   errors  invalid_argument (memory at this address is registered already; this thread coalesces its
  ///           calls), not_supported (memory that other GPUs cannot map), and those of collectives. An error
  ///           of the backend is one on all ranks, and nothing is registered
  HEADRACE_API Result<void> tensor_register(const Elements& tensor, std::shared_ptr<const void> owner = {});
  /// Takes back what tensor_register has told: afterwards no rank uses the memory. All ranks call it, as a
  /// collective. It waits as tensor_register does. Messages and replays of graphs that use the memory have
  /// ended before, and none of these graphs is replayed later.
  ///   shapes  the address, count and type with which it was registered
  ///   errors  invalid_argument (it is not registered, or with another count or type), and those of
  ///           tensor_register. After an error of the backend it is still registered
  HEADRACE_API Result<void> tensor_deregister(const Elements& tensor);

  // --- a communicator that sleeps

  /// Gives back memory of the GPU that the backend can do without while no call runs: buffers of its
  /// connections, say while a model sleeps. All ranks call it, as a collective. It waits for the collectives
  /// of this rank that are under way. Until resume every call returns invalid_argument, and no graph with
  /// calls is replayed. A rank that does not come ends the communicator.
  ///   errors  invalid_argument (it is suspended; a message of this rank is under way; this thread coalesces
  ///           its calls), not_supported (the backend, or this version of its library, gives nothing back),
  ///           timed_out, and those of collectives
  HEADRACE_API Result<void> suspend();
  /// Takes the memory again. All ranks call it, as a collective.
  ///   errors  invalid_argument (it is not suspended), and those of suspend
  HEADRACE_API Result<void> resume();
  [[nodiscard]] HEADRACE_API bool is_suspended() const;

  // --- elements that other ranks reach by themselves

  /// Makes a window without memory (comm_window.hpp). All ranks make their windows in the same order.
  ///   errors  not_supported (the backend has none)
  HEADRACE_API Result<Window> new_window();

 private:
  friend class Batch;
  explicit Comm(std::shared_ptr<Core> core);
  void let_go();
  std::shared_ptr<Core> core_;
};

/// Sends and receives that are issued together, so that none waits for another. Made by Comm::batch.
///   threads  one at a time
class Batch {
 public:
  HEADRACE_API ~Batch();
  HEADRACE_API Batch(Batch&&) noexcept;
  HEADRACE_API Batch& operator=(Batch&&) noexcept;

  // Add a message; the elements stay in place until the work has ended.
  //   errors  invalid_argument (rank, null memory: the values; the batch has been issued)
  HEADRACE_API Result<void> send(const ConstElements& input, int destination, std::uint32_t tag = 0);
  HEADRACE_API Result<void> recv(const Elements& output, int source, std::uint32_t tag = 0);
  /// Begins all messages in the order in which they were added. The work ends when all have ended, with the
  /// first error. An empty batch is done at once. A batch is issued once.
  ///   errors  those of send and recv; invalid_argument (issued already; hints: there are none)
  HEADRACE_API Result<Work> issue(const OpOptions& options = {});

 private:
  friend class Comm;
  explicit Batch(std::shared_ptr<Comm::Core> core);
  struct Messages;
  std::unique_ptr<Messages> messages_;
};

}  // namespace headrace
