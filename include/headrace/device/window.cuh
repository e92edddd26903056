// SPDX-License-Identifier: Apache-2.0
// Windows in kernels: put, signals, counters, fences, barriers, and addresses of peers.
//
//   __global__ void send(const headrace_device_window_v1* handle, const float* from) {
//     headrace::device::Window window(handle);
//     window.put<Scope::block>(1, 0, from, 4096);          // to rank 1, by all threads of the block
//     window.signal<Scope::block>(1, 0, 1, Signal::add);   // its signal 0, after these bytes
//   }
//   __global__ void receive(const headrace_device_window_v1* handle) {
//     headrace::device::Window window(handle);
//     if (!window.wait_signal<Scope::block>(0, 0, Comparison::ge, 1)) return;  // late, or aborted
//   }
//
// Every function is called by all threads of its scope (thread, warp: 32 threads of one warp, block), with
// the same arguments. All of them may go on when it returns. No function traps; a wait ends with false after
// the window's time limit, and once the communicator has ended.
//
// Nothing is needed but this header and CUDA. On the CPU it compiles too, with threads as scopes: tests run
// it.
#pragma once

#include <headrace/device/window_v1.h>

#include <headrace/device/words.cuh>

namespace headrace::device {

enum class Signal { add, set };
enum class Comparison { eq, ne, lt, le, gt, ge };

namespace detail {

HEADRACE_DEVICE bool holds(Comparison comparison, uint64_t seen, uint64_t value) {
  switch (comparison) {
    case Comparison::eq:
      return seen == value;
    case Comparison::ne:
      return seen != value;
    case Comparison::lt:
      return seen < value;
    case Comparison::le:
      return seen <= value;
    case Comparison::gt:
      return seen > value;
    default:
      return seen >= value;
  }
}

struct alignas(16) Unit {
  uint64_t words[2];
};

/// By all lanes, each its part; in units of 16 bytes where both addresses allow it.
template <Scope scope>
HEADRACE_DEVICE void copy(uint64_t target, uint64_t source, uint64_t bytes) {
  uint64_t done = 0;
  if ((target | source) % sizeof(Unit) == 0) {
    const auto* const from = reinterpret_cast<const Unit*>(source);
    auto* const to = reinterpret_cast<Unit*>(target);
    for (uint64_t i = lane<scope>(); i < bytes / sizeof(Unit); i += lanes<scope>()) to[i] = from[i];
    done = bytes / sizeof(Unit) * sizeof(Unit);
  }
  const auto* const from = reinterpret_cast<const unsigned char*>(source);
  auto* const to = reinterpret_cast<unsigned char*>(target);
  for (uint64_t i = done + lane<scope>(); i < bytes; i += lanes<scope>()) to[i] = from[i];
}

}  // namespace detail

// ------------------------------------------------------------------ the window

class Window {
 public:
  HEADRACE_DEVICE explicit Window(const headrace_device_window_v1* handle) : handle_(*handle) {}

  [[nodiscard]] HEADRACE_DEVICE unsigned rank() const { return handle_.rank; }
  [[nodiscard]] HEADRACE_DEVICE unsigned size() const { return handle_.size; }
  /// The elements of a rank, which this GPU reads and writes; null: it has none.
  [[nodiscard]] HEADRACE_DEVICE void* peer_address(unsigned rank) const {
    return reinterpret_cast<void*>(handle_.elements[rank]);
  }
  [[nodiscard]] HEADRACE_DEVICE uint64_t peer_bytes(unsigned rank) const { return handle_.bytes[rank]; }

  /// Writes bytes to the elements of a rank, from that byte on. The rank sees them after a later signal or
  /// barrier of the same scope. False: they do not fit, and nothing was written.
  template <Scope scope>
  HEADRACE_DEVICE bool put(unsigned rank, uint64_t at_byte, const void* from, uint64_t bytes) const {
    const uint64_t room = handle_.bytes[rank];
    if (at_byte > room || bytes > room - at_byte) return false;
    detail::copy<scope>(handle_.elements[rank] + at_byte, reinterpret_cast<uint64_t>(from), bytes);
    detail::meet<scope>();
    return true;
  }

  /// Orders what this thread has written before what it writes later, for all GPUs and the CPU.
  HEADRACE_DEVICE void fence() const { detail::fence(); }
  /// What all threads of the scope have put is in the memory of its ranks before anything that they do later.
  template <Scope scope>
  HEADRACE_DEVICE void flush() const {
    detail::fence();
    detail::meet<scope>();
  }

  /// Changes signal `number` that this rank has at another one, after all that the scope has put.
  template <Scope scope>
  HEADRACE_DEVICE void signal(unsigned rank, unsigned number, uint64_t value,
                              Signal kind = Signal::add) const {
    flush<scope>();
    if (detail::lane<scope>() == 0) {
      uint64_t* const word = &words(rank).signals[number][handle_.rank];
      kind == Signal::set ? detail::release(word, value) : void(detail::add(word, value));
    }
    detail::meet<scope>();
  }
  /// Waits until signal `number` of a rank compares so with a value. False: it is late, or the communicator
  /// has ended.
  template <Scope scope>
  [[nodiscard]] HEADRACE_DEVICE bool wait_signal(unsigned rank, unsigned number, Comparison comparison,
                                                 uint64_t value) const {
    return wait<scope>(own().signals[number] + rank, comparison, value);
  }
  [[nodiscard]] HEADRACE_DEVICE uint64_t read_signal(unsigned rank, unsigned number) const {
    return detail::acquire(own().signals[number] + rank);
  }
  /// By the rank that waits, while no signal is on its way.
  HEADRACE_DEVICE void reset_signal(unsigned rank, unsigned number) const {
    detail::release(own().signals[number] + rank, 0);
  }

  // Counters of this rank, between its own kernels and blocks.

  /// Adds to a counter, after all that the scope has done.
  template <Scope scope>
  HEADRACE_DEVICE void add_counter(unsigned number, uint64_t value) const {
    flush<scope>();
    if (detail::lane<scope>() == 0) detail::add(own().counters + number, value);
    detail::meet<scope>();
  }
  template <Scope scope>
  [[nodiscard]] HEADRACE_DEVICE bool wait_counter(unsigned number, Comparison comparison,
                                                  uint64_t value) const {
    return wait<scope>(own().counters + number, comparison, value);
  }
  [[nodiscard]] HEADRACE_DEVICE uint64_t read_counter(unsigned number) const {
    return detail::acquire(own().counters + number);
  }
  HEADRACE_DEVICE void reset_counter(unsigned number) const { detail::release(own().counters + number, 0); }

  /// Waits until all ranks have called it as often with this number, one scope of each rank at a time. What
  /// their scopes have put before is seen then. False: a rank is late, or the communicator has ended; then
  /// the barrier of this number can be used no more.
  template <Scope scope>
  [[nodiscard]] HEADRACE_DEVICE bool barrier(unsigned number) const {
    return meet_all<scope>([this, number](unsigned rank) { return words(rank).barriers[number]; });
  }
  /// The same with words among the elements, so that there are as many barriers as are needed: size() words
  /// of 8 bytes from a byte on that is a multiple of 8, at the same place on all ranks, 0 at first. That of
  /// this rank counts its calls.
  template <Scope scope>
  [[nodiscard]] HEADRACE_DEVICE bool barrier_at(uint64_t at_byte) const {
    return meet_all<scope>([this, at_byte](unsigned rank) {
      return reinterpret_cast<uint64_t*>(handle_.elements[rank] + at_byte);
    });
  }

 private:
  [[nodiscard]] HEADRACE_DEVICE headrace_device_words_v1& words(unsigned rank) const {
    return *reinterpret_cast<headrace_device_words_v1*>(handle_.words[rank]);
  }
  [[nodiscard]] HEADRACE_DEVICE headrace_device_words_v1& own() const { return words(handle_.rank); }

  /// came_at(rank): the words of a barrier at a rank, one for each rank that comes there.
  template <Scope scope, class CameAt>
  [[nodiscard]] HEADRACE_DEVICE bool meet_all(const CameAt& came_at) const {
    flush<scope>();
    uint64_t* const came = came_at(handle_.rank);
    // Its own word counts the calls of this rank, which alone changes it.
    const uint64_t turn = detail::acquire(came + handle_.rank) + 1;
    detail::meet<scope>();
    bool good = true;
    for (unsigned rank = detail::lane<scope>(); rank < handle_.size; rank += detail::lanes<scope>())
      if (rank != handle_.rank) detail::release(came_at(rank) + handle_.rank, turn);
    for (unsigned rank = detail::lane<scope>(); rank < handle_.size; rank += detail::lanes<scope>())
      if (rank != handle_.rank) good = wait<Scope::thread>(came + rank, Comparison::ge, turn) && good;
    good = detail::all_of<scope>(good);
    if (detail::lane<scope>() == 0) detail::release(came + handle_.rank, turn);
    detail::meet<scope>();
    return good;
  }

  /// One thread looks, and all are told.
  template <Scope scope>
  [[nodiscard]] HEADRACE_DEVICE bool wait(const uint64_t* word, Comparison comparison, uint64_t value) const {
    const bool good = detail::lane<scope>() != 0 || wait_alone(word, comparison, value);
    return detail::all_of<scope>(good);
  }
  [[nodiscard]] HEADRACE_DEVICE bool wait_alone(const uint64_t* word, Comparison comparison,
                                                uint64_t value) const {
    constexpr unsigned looks_between = 256;  // a look at host memory costs a read over PCIe
    const uint64_t began = detail::clock_ns();
    for (unsigned looks = 0; !detail::holds(comparison, detail::acquire(word), value); ++looks) {
      detail::pause();
      if (looks % looks_between != 0) continue;
      if (detail::acquire(reinterpret_cast<const uint64_t*>(handle_.abort)) != 0) return false;
      if (handle_.timeout_ns < 0) continue;
      if (detail::clock_ns() - began >= static_cast<uint64_t>(handle_.timeout_ns)) return false;
    }
    return true;
  }

  const headrace_device_window_v1& handle_;
};

}  // namespace headrace::device
