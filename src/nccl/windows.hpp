// SPDX-License-Identifier: Apache-2.0
// The windows of a communicator of NCCL: elements of all ranks that the library has registered, to which it
// puts, and the words of signals.
//
// A signal is a put of a word, and a wait for it reads this rank's words until they hold what it wants. NCCL
// has signals of its own: it counts each put as one, and nothing ends a wait for them that a stream holds,
// neither a timeout nor an abort. So they serve only to learn that all puts have come, when a window closes.
#pragma once

#include "base/clock.hpp"
#include "base/comm_border.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/shareable_memory.hpp"
#include "gpu/stream.hpp"
#include "gpu/stream_works.hpp"
#include "vendor/nccl/library.hpp"

#include <headrace/plugin/comm_v1.h>
#include <headrace/comm_call.hpp>
#include <headrace/tensor.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::nccl {

/// What windows use of their communicator, which outlives them.
struct WindowParts {
  const Library& library;
  comm_border::Host host;
  int rank, size;
  std::shared_ptr<const gpu::Device> device;
  /// Calls the library beside no other call, and waits while it goes on by itself. One that is late ends the
  /// communicator.
  std::function<Result<void>(std::string_view what, const Deadline& deadline,
                             const std::function<Outcome(Comm)>& begin)>
      call;
  /// Ends the communicator: a collective of the library is late.
  std::function<void()> end_late;
};

/// Refuses what windows over this library cannot do.
///   errors  not_supported (a function that the library lacks, an operation that NCCL has not)
[[nodiscard]] Result<void> check_window_operation(const Library& library, CommOperation operation);

///   threads  open, close and issue: one at a time; progress: one at a time; all else: any
class Windows {
 public:
  using Call = headrace_comm_window_call_v1;

  explicit Windows(WindowParts parts);
  /// The library uses the communicator no more.
  ~Windows() { works_.wait_all(); }
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  /// A collective. What one rank refuses is an error on all.
  ///   errors  not_supported (the library; memory that was not made to be shared), invalid_argument (another
  ///           type than on another rank, an address), those of the driver and the library, timed_out
  [[nodiscard]] Result<void> open(headrace_comm_window_v1& window, const Deadline& deadline);
  /// A collective. Ends waits of this rank.
  ///   errors  invalid_argument; those of the library, timed_out: no operation may follow
  [[nodiscard]] Result<void> close(std::uint64_t number, const Deadline& deadline);
  /// Whether the work has ended already.
  [[nodiscard]] Result<bool> issue(const Call& call, std::uint64_t work);
  [[nodiscard]] Result<void> wait_on(std::uint64_t work, cuda::Stream stream);
  /// Tells the host of works that have ended. Whether there were some.
  bool progress();
  /// Ends waits, and no later operations begin.
  void abort();

 private:
  /// Memory of all ranks that the library knows by one handle.
  struct Registered {
    std::optional<gpu::ShareableMemory> made;  // memory of this object
    cuda::Address address = 0;
    std::uint64_t bytes = 0;  // at least one
    Window handle = nullptr;
  };
  struct OpenWindow {
    DType dtype = DType::float32;
    Registered elements;
    Registered words;  // first one of each rank that signals, then what this rank has signaled to each
    std::vector<std::uint64_t> sent;   // the words at the others
    std::vector<std::uint64_t> taken;  // of this rank's words, by waits
    std::vector<std::uint64_t> places;
    gpu::PinnedMemory seen;  // this rank's words, as they were read last
    bool closing = false;
  };
  /// Of a wait for a signal.
  struct Waiting {
    std::uint64_t work;
    std::shared_ptr<OpenWindow> window;
    Call call;
    Deadline deadline;
    bool is_read = false;  // whether its words are read after it began
  };
  /// What all windows use, from the first one on.
  struct Queues {
    gpu::Stream stream;  // of asynchronous calls and of this class
    gpu::Stream reading;
    gpu::DeviceMemory exchanged;  // what this rank brings to an exchange, and what all have brought
    gpu::PinnedMemory pinned;     // the same on the host
  };
  struct Card;
  using EndedWaits = std::vector<std::pair<std::uint64_t, Result<void>>>;

  [[nodiscard]] Result<void> prepare();
  [[nodiscard]] Result<void> share(const Result<Card>& mine, headrace_comm_window_v1& window,
                                   OpenWindow& made, const Deadline& deadline);
  /// Takes the window from the library and frees what it has made. All ranks call it.
  [[nodiscard]] Result<void> let_go(std::shared_ptr<OpenWindow> window, const Deadline& deadline);
  [[nodiscard]] Result<void> make_local(headrace_comm_window_v1& window, OpenWindow& made);
  [[nodiscard]] Result<void> check_memory(const headrace_comm_elements_v1& elements,
                                          std::uint64_t bytes) const;
  [[nodiscard]] Result<void> allocate(Registered& memory, std::uint64_t bytes) const;
  /// What all ranks bring; the first error of a rank on all.
  [[nodiscard]] Result<std::vector<Card>> meet(const Result<Card>& mine, const Deadline& deadline);
  [[nodiscard]] Result<void> read_cards(const std::vector<Card>& cards,
                                        headrace_comm_window_v1& window) const;
  [[nodiscard]] Result<void> register_all(OpenWindow& made, const Deadline& deadline);
  [[nodiscard]] Result<void> register_one(Registered& memory, const Deadline& deadline);
  void take_back(Registered& memory);
  /// The first put, which makes the library connect the ranks for puts: a collective.
  [[nodiscard]] Result<void> first_put(OpenWindow& made, const Deadline& deadline);
  void find_places(headrace_comm_window_v1& window, OpenWindow& made) const;
  /// Gives `mine` to all ranks, or a part of it to each; returns the parts of all for this one.
  [[nodiscard]] Result<std::vector<std::byte>> exchange(std::span<const std::byte> mine, bool a_part_to_each,
                                                        const Deadline& deadline);
  [[nodiscard]] Result<void> wait_idle(const Deadline& deadline);

  [[nodiscard]] Result<std::shared_ptr<OpenWindow>> find(std::uint64_t number);
  [[nodiscard]] Result<cuda::Stream> stream_of(const Call& call);
  [[nodiscard]] Result<bool> queue(const Call& call, OpenWindow& window, std::uint64_t work);
  [[nodiscard]] Result<void> run(const Call& call, OpenWindow& window, cuda::Stream stream);
  [[nodiscard]] Result<void> get(const Call& call, const OpenWindow& window, cuda::Stream stream) const;
  [[nodiscard]] Result<void> put(const Call& call, const OpenWindow& window, cuda::Stream stream);
  [[nodiscard]] Result<void> signal(const Call& call, OpenWindow& window, cuda::Stream stream);
  /// Puts bytes that the library knows.
  [[nodiscard]] Result<void> put_known(cuda::Address from, std::uint64_t bytes, int peer, Window window,
                                       std::uint64_t at, cuda::Stream stream, const Deadline& deadline);
  [[nodiscard]] bool is_known(cuda::Address from, std::uint64_t bytes) const;
  [[nodiscard]] Result<void> copy(cuda::Address to, cuda::Address from, std::uint64_t bytes,
                                  cuda::Stream stream) const;
  [[nodiscard]] Result<bool> wait_for_signal(const Call& call, std::shared_ptr<OpenWindow> window,
                                             std::uint64_t work);
  [[nodiscard]] Result<void> wait_for_works(const OpenWindow& window, std::uint64_t number,
                                            const Deadline& deadline);
  /// Waits until all that the other ranks have put is here.
  [[nodiscard]] Result<void> wait_for_puts(const Deadline& deadline);

  bool end_queued();
  bool end_waits();
  [[nodiscard]] EndedWaits take_satisfied();
  [[nodiscard]] EndedWaits take_all(const Error& why);
  /// Of a wait, by the words that were read last; nothing: it goes on.
  [[nodiscard]] std::optional<Result<void>> outcome(const Waiting& waiting);
  [[nodiscard]] Result<void> begin_read();
  void end_waits_of(const OpenWindow* window, const Error& why);

  const WindowParts parts_;
  std::optional<Queues> queues_;
  Registered staging_;                              // through which bytes go that the library does not know
  std::vector<std::uint64_t> puts_, puts_awaited_;  // to each rank, of each rank
  gpu::StreamWorks works_;                          // put, get and signal: each after the one before
  std::map<std::uint64_t, std::shared_ptr<OpenWindow>> windows_;  // by number
  std::uint64_t last_ = 0;
  Comm no_part_ = nullptr;  // where the library writes when it splits into no group
  bool connected_ = false;  // staging_ is registered and all ranks have put once
  std::atomic<bool> aborted_{false};

  mutable std::mutex mutex_;  // for what follows
  std::list<Waiting> waiting_;
  std::map<std::uint64_t, std::uint64_t> running_;    // the window of each work that is queued
  std::vector<std::shared_ptr<OpenWindow>> reading_;  // whose words are being read
};

}  // namespace headrace::nccl
