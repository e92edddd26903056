// SPDX-License-Identifier: Apache-2.0
// Windows: elements of every rank that the other ranks read and write by themselves.
#pragma once

#include <headrace/comm.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

struct headrace_device_window_v1;  // headrace/device/window_v1.h

namespace headrace {

/// How a rank reaches the elements of another one.
enum class WindowAccess : std::int32_t {
  unified = 0,   ///< its memory is mapped here: map_remote_tensor gives its address
  separate = 1,  ///< by requests: it is on another host, or has registered memory of its own
};
/// The name of a way, as written in this header.
HEADRACE_API std::string_view window_access_name(WindowAccess access) noexcept;

/// What a rank knows of the window of another one.
struct WindowAttr {
  WindowAccess access = WindowAccess::unified;
  std::size_t count = 0;  ///< elements of that rank
};

/// What goes with one operation of a window.
struct WindowOptions {
  /// Return at once. Asynchronous operations of a window run one after another, in order of call.
  bool async = false;
  Timeout timeout = {};                    ///< from the call on; nullopt: the communicator's
  std::shared_ptr<const void> owner = {};  ///< as in OpOptions
  void* stream = nullptr;                  ///< as in OpOptions: put, get and signal on a GPU
};

/// What a signal does to the word that its sender has at the receiver.
struct Signal {
  enum class Kind : std::int32_t { add = 0, set = 1 } kind = Kind::add;
  std::uint64_t value = 1;
};

enum class Comparison : std::int32_t { eq = 0, ne = 1, lt = 2, le = 3, gt = 4, ge = 5 };

/// Holds if the word, unsigned, compares so with the value: {Comparison::ge, 3}.
struct SignalCondition {
  Comparison comparison = Comparison::ge;
  std::uint64_t value = 1;
};

/// The elements of a rank as memory of this process.
struct RemoteTensor {
  Elements elements;
  /// Keeps them mapped. Once the window is deregistered, other ranks no longer see what is written there.
  std::shared_ptr<const void> owner = {};
};

/// Elements of every rank, which the others put, get and add to without its help, and words by which ranks
/// wait for each other. Comm::new_window makes one; it holds its communicator.
///
/// **Order.** When put returns, or its work has ended, the bytes are in the target's memory. A signal after a
/// put to the same rank, by the same thread or later, comes after these bytes: the rank that has waited for
/// it reads them. Operations of one rank that are not async begin after its asynchronous ones have ended;
/// wait_signal alone waits for none of them. Comm::finalize does not wait for them: flush before.
///
/// **On a GPU** elements are memory of the communicator's GPU. put, get and signal are queued on a stream and
/// return, as collectives do. Those of a window run in the order of call, also on several streams.
/// wait_signal and atomic_add return when they are done. What was put to this rank before a signal is seen by
/// all that is queued after wait_signal. A window that is dropped without tensor_deregister keeps its memory
/// registered, and its owner, until the communicator ends.
///
/// **Errors.** An operation of a window that fails or is late ends alone: the communicator goes on. What put
/// or get were to write is undefined then, and a signal or atomic_add that is late may still be applied.
///
///   threads  any. At one time one thread registers or deregisters, in the order of the other ranks'
///            collectives
///   fork     as of the communicator
///   errors   of every operation: invalid_argument (no such rank; beyond the elements, another type, no
///            integers, no memory: the values; nothing is sent), peer_lost (which rank), not_found (a rank
///            has dropped its window), timed_out (which rank, and for how long), canceled (the communicator
///            was aborted, or its caller interrupted the wait)
class Window {
 public:
  class State;
  explicit Window(std::unique_ptr<State> state);
  /// Withdraws the memory, as tensor_deregister but without the other ranks: those that still use it get
  /// not_found. Ends what is asynchronous, with canceled.
  HEADRACE_API ~Window();
  HEADRACE_API Window(Window&&) noexcept;
  HEADRACE_API Window& operator=(Window&&) noexcept;

  /// Makes elements of the caller those of this rank. All ranks call this or allocate, as a collective.
  ///   shapes  the same type on all ranks; counts may differ, and be 0
  ///   owns    the memory stays the caller's, in place, until tensor_deregister has returned. `owner` is
  ///           released then
  ///   errors  invalid_argument (registered already; another type than on another rank), and those of
  ///           collectives
  HEADRACE_API Result<void> tensor_register(const Elements& tensor, std::shared_ptr<const void> owner = {});
  /// The same with new memory, which holds zeros: ranks of this host map it, so that an operation is a copy
  /// or one instruction.
  ///   owns    the window; tensor() has the address
  HEADRACE_API Result<Elements> allocate(std::size_t count, DType dtype);
  /// Takes the elements back. All ranks call it, as a collective. Ends waits for signals, and returns when no
  /// rank uses the memory any more. The words of signals begin at 0 with the next registration.
  ///   errors  timed_out (a rank that stands still may use the memory yet: keep it in place). After any error
  ///           but that of a wait for this rank's own operations the window is deregistered, too
  HEADRACE_API Result<void> tensor_deregister();
  /// The elements of this rank. Those that allocate made stay in place while `owner` of map_remote_tensor, or
  /// the window with its registration, lives.
  ///   errors  invalid_argument (none are registered)
  [[nodiscard]] HEADRACE_API Result<Elements> tensor() const;

  /// Writes elements to those of a rank, from its element `target_offset_nelems` on.
  ///   shapes  the window's type
  HEADRACE_API Result<Work> put(const ConstElements& tensor, int dst_rank, std::size_t target_offset_nelems,
                                const WindowOptions& options = {});
  /// Reads elements of a rank, from its element `source_offset_nelems` on.
  HEADRACE_API Result<Work> get(const Elements& tensor, int src_rank, std::size_t source_offset_nelems,
                                const WindowOptions& options = {});
  /// Changes the word that this rank has at `peer_rank`, where wait_signal waits for it. Every registration
  /// has a word for each pair of ranks; it begins at 0.
  HEADRACE_API Result<Work> signal(int peer_rank, const Signal& signal = {},
                                   const WindowOptions& options = {});
  /// Waits until the word that `peer_rank` has here is above 0, and takes 1 from it: one wait for each
  /// signal. Returns the value before.
  HEADRACE_API Result<std::uint64_t> wait_signal(int peer_rank, Timeout timeout = {});
  /// Waits until a condition holds for that word, and leaves it as it is. Returns the value.
  HEADRACE_API Result<std::uint64_t> wait_signal(int peer_rank, const SignalCondition& condition,
                                                 Timeout timeout = {});
  /// Adds to one element of a rank, in one step for all ranks, and returns the value before. Sums wrap
  /// around.
  ///   shapes  int32, uint32, int64, uint64. A uint64 has the same bits as the result
  HEADRACE_API Result<std::int64_t> atomic_add(int dst_rank, std::size_t target_offset_nelems,
                                               std::int64_t value, Timeout timeout = {});
  /// Waits until all asynchronous operations that have begun on this rank have ended. Each work has its own
  /// error.
  HEADRACE_API Result<void> flush(Timeout timeout = {});

  /// The elements of a rank as memory of this process.
  ///   errors  not_supported (its access is `separate`: why)
  HEADRACE_API Result<RemoteTensor> map_remote_tensor(int rank);
  HEADRACE_API Result<WindowAttr> get_attr(int peer_rank) const;
  /// The window as kernels of this GPU take it (headrace/device/window.cuh): an address in memory of the GPU,
  /// until tensor_deregister, which kernels that use it have left before on all ranks.
  ///   errors  not_supported (host memory, or a backend without them)
  HEADRACE_API Result<const headrace_device_window_v1*> get_device_window() const;

 private:
  void let_go();
  std::unique_ptr<State> state_;
};

}  // namespace headrace
