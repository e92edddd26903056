// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine of a mixture of experts: each token's row goes to the ranks of its experts, and their
// weighted sum comes back.
#pragma once

#include <headrace/result.hpp>
#include <headrace/tensor.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

class Agent;

/// How the rows lie that a dispatch gives to a rank.
enum class MoELayout : std::int32_t {
  /// A row for each entry (token, k). The rows of an expert lie side by side, ordered by source rank, token
  /// and k. The first one of each expert is at a multiple of `row_alignment`.
  by_expert = 0,
  /// The same order; each expert has the same number of rows, used or not: [experts, rows, hidden].
  batched = 1,
  /// A row for each token that this rank gets, ordered by source rank and token, with its experts and weights
  /// beside it. The caller makes the weighted sum of a row; combine takes it as it is.
  by_rank = 2,
};
/// The name of a layout, as written in this header.
HEADRACE_API std::string_view moe_layout_name(MoELayout layout) noexcept;

/// How a dispatch makes float8_e4m3fn of rows of bfloat16: in blocks of 128 elements, each with a scale of
/// its own, which is their largest magnitude / 448.
enum class MoECast : std::int32_t {
  none = 0,     ///< not at all: rows are of the configuration's dtype
  float32 = 1,  ///< scales of float32; scale_bytes = 4 a block
  ue8m0 = 2,    ///< the next higher power of two: a byte, in words of four; scale_bytes = blocks, up to 4
};
/// The name of a cast, as written in this header.
HEADRACE_API std::string_view moe_cast_name(MoECast cast) noexcept;

inline constexpr int moe_most_ranks = 64;
inline constexpr int moe_most_experts = 4096;
inline constexpr int moe_most_top_k = 32;
inline constexpr int moe_most_payloads = 8;
inline constexpr std::int64_t moe_most_tokens = std::int64_t{1} << 20;

/// Who takes part, and what travels. The same on all ranks, except `rank`, `nics`, `row_budget`, `device`,
/// `blocks`, `wait_limit` and `interrupted`; but either all have a GPU or none.
struct MoEConfig {
  std::string name = "moe";  ///< of the window among the regions of its agent
  int rank = 0;
  int ranks = 1;       ///< 1 to 64
  int group_size = 1;  ///< so many ranks in a row hold the same tokens; it divides `ranks`
  /// So many ranks in a row are on one host and map one another's windows; ranks of other nodes are reached
  /// by a fabric (fabric.hpp). The last node may have fewer. 0: all are on one host.
  int ranks_per_node = 0;
  /// Several nodes: the network cards of this rank, as in FabricGroupOptions. Empty: those near the CPU of
  /// the thread that opens it.
  std::vector<std::string> nics = {};
  int experts = 0;  ///< 1 to 4096, in the order of the ranks that have them
  /// How many experts each rank has, 0 included. Empty: evenly, the first ranks one more than the last.
  std::vector<int> experts_of_ranks = {};
  int top_k = 0;                  ///< entries of a token: 1 to 32, at most `experts`
  std::int64_t hidden = 0;        ///< elements of a row; its bytes are a multiple of 16
  DType dtype = DType::bfloat16;  ///< of dispatched rows; they are moved, not read
  std::int64_t scale_bytes = 0;   ///< of a token's scales, a multiple of 4; 0: it has none
  /// Of a token's further columns, which are moved and not read: up to 8, each 1 to 2^20.
  std::vector<std::int64_t> payload_bytes = {};
  DType combine_dtype = DType::bfloat16;  ///< float32, float16 or bfloat16
  /// What the ranks of the experts send back travels as float8_e4m3fn, in blocks of 128 elements with a scale
  /// of float32 each. `hidden` is a multiple of 16.
  bool float8_combine = false;
  std::int64_t max_tokens = 0;  ///< of one dispatch of one rank, 1 to 2^20
  MoELayout layout = MoELayout::by_expert;
  std::int64_t row_alignment = 1;  ///< by_expert: 1 to 65536
  bool zero_padding = false;       ///< by_expert: rows between the experts are zeroed
  /// Rows of the output: by_expert, by_rank: in all; batched: of each expert. 0: the most that can come if no
  /// token names an expert twice.
  std::int64_t row_budget = 0;
  bool deterministic = true;  ///< the sums have the same bits either way
  /// The GPU of this rank, by its ordinal in this process: windows and tensors are in its memory, and
  /// operations are queued on streams. -1: host memory. Ranks may share a GPU.
  int device = -1;
  /// GPUs: of a launch, each on a multiprocessor of its own; 0: 32, or as many as there can be.
  int blocks = 0;
  std::chrono::nanoseconds wait_limit = std::chrono::seconds(10);  ///< of each wait for another rank
  /// Asked about ten times a second while a call waits: true ends the wait, and this rank's part.
  std::function<bool()> interrupted = {};

  /// errors: invalid_argument (the first field that is wrong: what was expected, what is given)
  [[nodiscard]] HEADRACE_API Result<void> check() const;
  /// Bytes of a rank's window. Takes nothing.
  ///   errors  as check
  [[nodiscard]] HEADRACE_API Result<std::size_t> window_bytes() const;

  // The rest is for configurations that `check` allows.

  /// The first expert of a rank; of `ranks`: the number of experts.
  [[nodiscard]] HEADRACE_API int first_expert(int of_rank) const;
  [[nodiscard]] int local_experts(int of_rank) const {
    return first_expert(of_rank + 1) - first_expert(of_rank);
  }
  [[nodiscard]] int local_experts() const { return local_experts(rank); }
  /// Groups of ranks that hold the same tokens.
  [[nodiscard]] int groups() const { return ranks / group_size; }
  /// Rows of the output of this rank; batched: of all its experts.
  [[nodiscard]] HEADRACE_API std::int64_t output_rows() const;
  /// batched: rows of each expert.
  [[nodiscard]] HEADRACE_API std::int64_t rows_of_expert() const;
  [[nodiscard]] std::int64_t row_bytes() const {
    return hidden * static_cast<std::int64_t>(element_bytes(dtype));
  }
  [[nodiscard]] std::int64_t combine_row_bytes() const {
    return hidden * static_cast<std::int64_t>(element_bytes(combine_dtype));
  }
};

/// How a dispatch chooses among the replicas of an expert. Those of ranks that do not take part are passed
/// over.
enum class MoEChoice : std::int32_t {
  in_turn = 0,  ///< one after another, in the order of the tokens
  least_loaded =
      1,         ///< that of the rank with the fewest entries: `loads`, and those of these tokens before it
  by_share = 2,  ///< so many for each as `until` says (moe_plan.hpp)
};
/// The name of a choice, as written in this header.
HEADRACE_API std::string_view moe_choice_name(MoEChoice choice) noexcept;

/// Which experts of the configuration, called places here, hold the expert that a token names. Of one
/// dispatch; another one may have another table. Ranks of one group give the same.
struct MoEReplicas {
  int experts = 0;                       ///< that tokens name: 0 to this less one
  const std::int32_t* first = nullptr;   ///< [experts + 1]: where the places of each begin, at 0
  const std::int32_t* places = nullptr;  ///< [first[experts]]; each expert has one at least
  MoEChoice choice = MoEChoice::in_turn;
  const std::int64_t* loads = nullptr;   ///< least_loaded: [ranks]; null: zeros
  const std::int64_t* until = nullptr;   ///< by_share: [first[experts]]: entries for the places of an expert
                                         ///< up to this one
  const std::int64_t* before = nullptr;  ///< by_share: [experts]: entries of earlier groups; null: zeros
};

/// What a rank gives to a dispatch. Ranks of one group give the same.
struct MoETokens {
  std::int64_t count = 0;         ///< 0 to max_tokens
  const void* rows = nullptr;     ///< [count, hidden] of dtype
  std::int64_t row_stride = 0;    ///< bytes from one row to the next; 0: rows lie side by side
  const void* scales = nullptr;   ///< [count, scale_bytes]
  std::int64_t scale_stride = 0;  ///< as row_stride; any, if scale_unit_stride is given
  /// [count, top_k]: the number of an expert, or -1 (in uint32 its bits): none. Null: go where the tokens of
  /// the routing's last dispatch went, as many.
  const void* experts = nullptr;
  DType experts_dtype = DType::int64;  ///< int64, int32 or uint32
  const float* weights = nullptr;      ///< [count, top_k]; null: 1 each; without experts: as before
  /// The scales of a row lie in units of so many bytes, 1, 2, 4 or 8, this far from one to the next; 0: side
  /// by side. Scales by column: a row's stride is the unit.
  std::int64_t scale_unit_bytes = 4, scale_unit_stride = 0;
  /// Rows are bfloat16, dtype is float8_e4m3fn. Scales are made, not given.
  MoECast cast = MoECast::none;
  struct Payload {
    const void* rows = nullptr;  ///< [count, payload_bytes of it]
    std::int64_t stride = 0;     ///< as row_stride
  };
  Payload payloads[moe_most_payloads] = {};
  /// Not null: the tokens are fewer, so many as this says when the dispatch begins, 0 to `count`.
  const std::int32_t* count_at = nullptr;
  const MoEReplicas* replicas = nullptr;  ///< null: tokens name experts of the configuration
};

/// Where a dispatch puts what comes. What is null is not written, but rows and scales must be there.
struct MoERows {
  void* rows = nullptr;            ///< [output_rows, hidden] of dtype
  void* scales = nullptr;          ///< [output_rows, scale_bytes]
  std::int32_t* counts = nullptr;  ///< [local_experts]: entries that came for each, beyond the budget too
  /// [local_experts + 1]: the first row of each expert and the end of the last; by_rank: [ranks + 1], of each
  /// source rank.
  std::int64_t* first_rows = nullptr;
  std::int32_t* experts = nullptr;  ///< by_rank: [output_rows, top_k] among those of this rank; -1: no more
  float* weights = nullptr;         ///< by_rank: [output_rows, top_k]
  /// The rows for which there is memory: fewer than output_rows are refused. 0: output_rows.
  std::int64_t row_count = 0;
  /// Where the scales of a row lie: as in MoETokens.
  std::int64_t scale_stride = 0, scale_unit_bytes = 4, scale_unit_stride = 0;
  /// batched: bytes from the scales of an expert to those of the next; 0: rows_of_expert * scale_stride.
  std::int64_t scale_expert_stride = 0;
  void* payloads[moe_most_payloads] = {};  ///< [output_rows, payload_bytes of it]
  /// GPUs: pinned host memory, to which `counts` are copied behind the dispatch, in the order of the stream.
  std::int32_t* host_counts = nullptr;
};

/// What the experts of this rank have made of the rows.
struct MoEResults {
  const void* rows = nullptr;   ///< [output_rows, hidden] of combine_dtype, in the order of the dispatch
  std::int64_t row_stride = 0;  ///< as in MoETokens
  bool weighted = true;         ///< false: the rows are weighted already
  bool in_window = false;       ///< the rows are where combine_memory said, and `rows` is not read
};

/// Memory in the window of another rank, into which an expert writes its results.
struct MoEWindowRows {
  void* rows = nullptr;    ///< [count, hidden] of combine_dtype
  std::int64_t count = 0;  ///< rows that came from one source rank
};

/// Where a combine puts the sums.
struct MoESums {
  void* rows = nullptr;         ///< [tokens, hidden] of combine_dtype, as many as were dispatched
  std::int64_t row_stride = 0;  ///< as in MoETokens
  /// Added after the sum, in this order: [tokens, hidden] of combine_dtype, side by side. Null: none.
  const void* biases[2] = {};
  bool accumulate = false;  ///< what `rows` holds is added last
  /// The rows for which there is memory, which must be as many as were given to the dispatch. Negative: the
  /// caller knows that they are.
  std::int64_t row_count = -1;
};

/// A wait that ended in vain, or a peer that sent what cannot be.
struct MoEFailure {
  Code code = Code::ok;  ///< timed_out, peer_lost, canceled (this rank was left out, or interrupted), corrupt
  int waiter = -1, peer = -1;            ///< ranks; canceled: by the peer, -1: interrupted
  std::string_view operation;            ///< "dispatch" or "combine"
  std::uint64_t number = 0;              ///< of the dispatch or the combine, from 1
  std::string_view awaited;              ///< "counts", "rows", "sums", "room"
  std::uint64_t expected = 0, seen = 0;  ///< numbers of operations, as the word that was awaited holds them;
                                         ///< corrupt: the first number that cannot be, and what came
  bool voted = false;                    ///< another rank has found that the peer is lost
  std::string reason = {};               ///< why the peer could not join, as it says
  /// Several nodes: no rank of the node of the lowest rank has answered the vote against the peer. This rank
  /// goes no further, until ranks regroup.
  bool undecided = false;

  /// "rank 0 waited for counts of rank 2 in dispatch 7: expected 7, seen 6".
  [[nodiscard]] HEADRACE_API std::string text() const;
};

/// What a dispatch has learnt: a combine needs it, and a later dispatch or combine may use it again.
///   threads  one at a time
class MoERouting {
 public:
  struct State;
  explicit MoERouting(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// Tokens of the last dispatch. On a GPU, which alone knows what it read: as given().
  [[nodiscard]] HEADRACE_API std::int64_t tokens() const;
  /// Rows that were given to it: more, if it read the number of tokens from memory.
  [[nodiscard]] HEADRACE_API std::int64_t given() const;

 private:
  friend class MoE;
  std::shared_ptr<State> state_;
};

/// One rank. All ranks call the same operations in the same order. Two dispatches and two combines may be
/// under way: sent, and not received.
///
/// **Failure.** A wait for a rank that is dead or late ends that rank's part: it is left out from then on, by
/// all. The operation does all of the rest and returns the error, and later operations go on without that
/// rank: entries for its experts are skipped, and its rows are missing in the sums. Each of the others gets
/// an error once, in the operation in which it misses that rank.
/// A rank that another has left out gets canceled, from then on in every operation, which does nothing more.
/// Of two ranks that miss each other one goes on. `regroup` takes ranks back.
///
/// **GPUs.** If the configuration has a device, all addresses are of its memory, and operations are queued on
/// `stream`: a CUstream or cudaStream_t; null: the default stream. They return when they are queued, and may
/// be captured in a graph, which may be replayed with other tokens, experts and counts in the same memory.
/// Operations of a rank are in order on the GPU: on one stream, or on streams that wait for one another. What
/// launches find is told once, by the next operation, which is queued all the same, or by `check`. Threads of
/// a process whose ranks share a GPU make routings and tensors before the first operation: the driver may
/// make an allocation wait for a launch, and that waits for the other rank.
///
///   threads  one call at a time; others wait
///   fork     in a forked child every method returns invalid_argument; active: 0, failure: none
class MoE {
 public:
  struct State;
  explicit MoE(std::unique_ptr<State> state);

  /// Allocates the window of this rank from the agent, as a region with the configuration's name. On a GPU:
  /// the head of the window, and the rest as a region "<name>/gpu". The agent has the backend cuda_ipc.
  ///   owns    the agent stays the caller's, open until this object is gone
  ///   errors  as MoEConfig::check and Agent::allocate
  static HEADRACE_API Result<MoE> open(Agent& agent, const MoEConfig& config);
  /// Withdraws the window. Other ranks that still use it are not disturbed. On a GPU it ends the waits of
  /// operations that are queued: wait for the stream before.
  HEADRACE_API ~MoE();
  HEADRACE_API MoE(MoE&&) noexcept;
  HEADRACE_API MoE& operator=(MoE&&) noexcept;

  /// Maps the windows of all ranks, and compares the configurations. The agent must have their metadata, made
  /// after they opened; or it has a store, where it looks for those that it does not know until they are
  /// there. On GPUs it waits for all ranks to come.
  ///   agents  the names of the agents of all ranks in their order, this one's too; the same on all ranks.
  ///           Of two ranks with different lists one is refused here, the other one in its next operation
  ///   errors  invalid_argument (another configuration: the field, both values; another list or order of
  ///           agents), timed_out, canceled (interrupted), not_supported
  ///           (a rank is on another host; its GPU does not reach this one), and those of Agent::find and
  ///           Agent::map
  HEADRACE_API Result<void> join(std::span<const std::string> agents, std::chrono::nanoseconds timeout);

  /// Goes on with other ranks: without some, with new ones, with those that come back. All ranks of `ranks`
  /// call it at the same place in the order of operations, none of which is under way; one that is new calls
  /// it instead of join. Routings need a new dispatch. Ranks that are not in `ranks` get canceled.
  /// A rank that comes back as another process needs the end of the first one, and its new metadata here.
  ///   agents  as join; of ranks that are not in `ranks` any text
  ///   ranks   a bit for each rank that takes part, this one's too
  ///   errors  invalid_argument, timed_out (which ranks have not come), peer_lost, and those of join. After
  ///           an error operations are canceled: call it again. not_supported (on GPUs)
  HEADRACE_API Result<void> regroup(std::span<const std::string> agents, std::uint64_t ranks,
                                    std::chrono::nanoseconds timeout);

  [[nodiscard]] HEADRACE_API const MoEConfig& config() const;
  /// The names of the agents of all ranks, as the last join or regroup that succeeded has them; empty before.
  [[nodiscard]] HEADRACE_API std::vector<std::string> agents() const;
  /// Memory for what dispatches learn. For any number of dispatches, one after another.
  HEADRACE_API Result<MoERouting> new_routing() const;
  /// A tensor of zeros in the memory that operations use: that of the device, or host memory.
  HEADRACE_API Result<Tensor> new_tensor(DType dtype, const Shape& shape) const;
  /// A tensor of zeros in host memory; with a device it is pinned, as MoERows::host_counts has to be.
  HEADRACE_API Result<Tensor> new_host_tensor(DType dtype, const Shape& shape) const;

  /// Sends the rows of the tokens to the ranks of their experts, and takes those for the experts of this
  /// rank.
  ///   errors  exhausted (more rows than the budget: both numbers. The others are there), timed_out,
  ///           peer_lost, canceled, corrupt (see failure()), invalid_argument (nothing was sent)
  HEADRACE_API Result<void> dispatch(const MoETokens& tokens, const MoERows& rows, MoERouting& routing,
                                     void* stream = nullptr);
  /// The first half: returns when the rows have left. The tokens may then be changed.
  HEADRACE_API Result<void> dispatch_send(const MoETokens& tokens, MoERouting& routing,
                                          void* stream = nullptr);
  /// The second half.
  HEADRACE_API Result<void> dispatch_receive(const MoERows& rows, MoERouting& routing,
                                             void* stream = nullptr);

  /// Sends each token's weighted sum back, and makes the sum of what the ranks of its experts send.
  ///   errors  as dispatch
  HEADRACE_API Result<void> combine(const MoEResults& results, const MoESums& sums, MoERouting& routing,
                                    void* stream = nullptr);
  HEADRACE_API Result<void> combine_send(const MoEResults& results, MoERouting& routing,
                                         void* stream = nullptr);
  HEADRACE_API Result<void> combine_receive(const MoESums& sums, MoERouting& routing, void* stream = nullptr);
  /// by_rank: where the next combine wants the results of the rows that came from each source rank, in their
  /// order, so that it need not move them. Then call it with `in_window`. Nothing is sent before.
  ///   of_ranks  one for each rank; of one that is left out: none
  ///   errors    as combine. After one that leaves out a rank, call it again. not_supported (another layout,
  ///             float8_combine)
  ///   of_ranks  on a GPU: in its memory, which the GPU writes in the order of the stream; they alternate,
  ///   also
  ///             between replays
  HEADRACE_API Result<void> combine_memory(MoERouting& routing, std::span<MoEWindowRows> of_ranks,
                                           void* stream = nullptr);

  /// The ranks that take part: a bit for each. The same on all of them.
  [[nodiscard]] HEADRACE_API std::uint64_t active() const;
  /// Leaves ranks out, for all: those whose bit is not set. errors: invalid_argument (this rank's; bits
  /// of no rank), not_supported (a rank that was left out before: regroup), canceled (this rank is out)
  ///   stream  GPUs: operations behind it on this stream have the mask, and replays of graphs; not captured
  HEADRACE_API Result<void> set_active(std::uint64_t ranks, void* stream = nullptr);
  /// Why a rank was left out last.
  [[nodiscard]] HEADRACE_API std::optional<MoEFailure> failure() const;
  /// GPUs: what launches that have ended report, once; for programs that replay graphs. Waits for nothing.
  ///   errors  those of dispatch and combine
  HEADRACE_API Result<void> check();
  /// Ends this rank's part: waits of its calls, and of its launches on a GPU. Its operations are canceled,
  /// and the others go on without it. In host memory `regroup` takes it back.
  ///   threads  any, also beside a call
  HEADRACE_API void abort();

 private:
  std::unique_ptr<State> state_;
};

}  // namespace headrace
