// SPDX-License-Identifier: Apache-2.0
// Device code on a CPU: a block is a thread of the host, and each of its threads a context of its own, which
// gives way at barriers, at exchanges of a warp and where it looks at memory that others change. Include it
// before device code. A lane that misses an exchange of its warp shows as a block that never ends.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define HEADRACE_CPU_GRID_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEADRACE_CPU_GRID_ASAN 1
#endif
#endif
#ifdef HEADRACE_CPU_GRID_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the names that CUDA has
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static thread_local

namespace headrace::cpu_grid {

struct Index {
  unsigned x = 0;
};
inline thread_local Index thread_index, block_index, grid_size;

/// One block, on the thread of the host that runs it.
class Block {
 public:
  Block(unsigned threads, const std::function<void()>& body) : body_(body), warps_((threads + 31) / 32) {
    for (unsigned i = 0; i < threads; ++i) fibers_.push_back(std::make_unique<Fiber>());
    for (auto& fiber : fibers_) {
      getcontext(&fiber->context);
      fiber->context.uc_stack = {fiber->stack.get(), 0, stack_bytes};
      fiber->context.uc_link = &home_;
      makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Block::enter), 0);
    }
  }
  void run() {
    current() = this;
    for (std::size_t left = fibers_.size(); left != 0;) {
      for (unsigned i = 0; i < fibers_.size(); ++i) {
        if (fibers_[i]->has_ended) continue;
        running_ = i;
        thread_index.x = i;
        switch_to(fibers_[i].get());
        if (fibers_[i]->has_ended) has_moved_ = true, --left;
      }
      // All threads look at memory that another block is to write.
      if (!std::exchange(has_moved_, false)) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    current() = nullptr;
  }
  static Block*& current() {
    static thread_local Block* block = nullptr;
    return block;
  }

  void give_way() { switch_home(fibers_[running_].get(), false); }
  void meet_block() { meet(block_barrier_, static_cast<unsigned>(fibers_.size())); }
  void meet_warp() { meet(warps_[running_ / 32].barrier, 32); }

  /// Calls use(values of all lanes).
  template <class T, class Use>
  auto exchange(T value, const Use& use) {
    Warp& warp = warps_[running_ / 32];
    static_assert(sizeof(T) <= 8);
    std::memcpy(&warp.values[running_ % 32], &value, sizeof value);
    meet_warp();
    T values[32];
    for (unsigned i = 0; i < 32; ++i) std::memcpy(&values[i], &warp.values[i], sizeof(T));
    const auto result = use(values, running_ % 32);
    meet_warp();
    return result;
  }

 private:
  static constexpr std::size_t stack_bytes = std::size_t{256} << 10;
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<char[]> stack{new char[stack_bytes]};
    bool has_ended = false;
    void* fake_stack = nullptr;  // of the address sanitizer, which must know of each switch
  };
  struct Barrier {
    unsigned arrived = 0, generation = 0;
  };
  struct Warp {
    Barrier barrier;
    std::uint64_t values[32];
  };

  static void enter() {
    Block* const block = current();
    Fiber* const self = block->fibers_[block->running_].get();
    block->arrived(nullptr);
    block->body_();
    self->has_ended = true;
    block->switch_home(self, true);
  }
#ifdef HEADRACE_CPU_GRID_ASAN
  void leave(void** fake_stack, const void* bottom, std::size_t bytes) {
    __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
  }
  void arrived(void* fake_stack) {
    const void* bottom = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
    if (fake_stack == nullptr && home_bottom_ == nullptr) home_bottom_ = bottom, home_bytes_ = bytes;
  }
#else
  void leave(void**, const void*, std::size_t) {}
  void arrived(void*) {}
#endif
  void switch_to(Fiber* fiber) {
    void* fake_stack = nullptr;
    leave(&fake_stack, fiber->stack.get(), stack_bytes);
    swapcontext(&home_, &fiber->context);
    arrived(fake_stack);
  }
  void switch_home(Fiber* fiber, bool for_good) {
    leave(for_good ? nullptr : &fiber->fake_stack, home_bottom_, home_bytes_);
    swapcontext(&fiber->context, &home_);
    arrived(fiber->fake_stack);
  }
  void meet(Barrier& barrier, unsigned all) {
    const unsigned generation = barrier.generation;
    if (++barrier.arrived == all) {
      barrier.arrived = 0;
      ++barrier.generation;
      has_moved_ = true;
      return;
    }
    while (barrier.generation == generation) give_way();
  }

  const std::function<void()>& body_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Warp> warps_;
  Barrier block_barrier_;
  ucontext_t home_{};
  unsigned running_ = 0;
  bool has_moved_ = false;
  const void* home_bottom_ = nullptr;
  std::size_t home_bytes_ = 0;
};

/// Runs a launch to its end.
inline void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& body) {
  std::vector<std::jthread> running;
  for (unsigned block = 0; block < blocks; ++block)
    running.emplace_back([=, &body] {
      block_index.x = block;
      grid_size.x = blocks;
      Block(threads, body).run();
    });
}

inline Block& block() { return *Block::current(); }

}  // namespace headrace::cpu_grid

#define threadIdx (::headrace::cpu_grid::thread_index)
#define blockIdx (::headrace::cpu_grid::block_index)
#define gridDim (::headrace::cpu_grid::grid_size)

inline void __syncthreads() { headrace::cpu_grid::block().meet_block(); }
inline void __syncwarp() { headrace::cpu_grid::block().meet_warp(); }
template <class T>
T __shfl_sync(unsigned, T value, unsigned from) {
  return headrace::cpu_grid::block().exchange(value, [=](const T* v, unsigned) { return v[from % 32]; });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned by) {
  return headrace::cpu_grid::block().exchange(value, [=](const T* v, unsigned lane) { return v[lane ^ by]; });
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by) {
  return headrace::cpu_grid::block().exchange(
      value, [=](const T* v, unsigned lane) { return v[lane >= by ? lane - by : lane]; });
}
inline unsigned __ballot_sync(unsigned, bool value) {
  return headrace::cpu_grid::block().exchange(value, [](const bool* v, unsigned) {
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i) bits |= v[i] ? 1u << i : 0;
    return bits;
  });
}
inline bool __all_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) == ~0u; }
template <class T>
unsigned __match_any_sync(unsigned, T value) {
  return headrace::cpu_grid::block().exchange(value, [](const T* v, unsigned lane) {
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i) bits |= v[i] == v[lane] ? 1u << i : 0;
    return bits;
  });
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  return headrace::cpu_grid::block().exchange(value, [](const unsigned* v, unsigned) {
    unsigned all = 0;
    for (unsigned i = 0; i < 32; ++i) all += v[i];
    return all;
  });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return headrace::cpu_grid::block().exchange(
      value, [](const unsigned* v, unsigned) { return *std::max_element(v, v + 32); });
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __popcll(unsigned long long bits) { return std::popcount(bits); }
inline int __ffsll(long long bits) { return __builtin_ffsll(bits); }
/// Of shared memory: the threads of a block take turns.
inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at = std::max(before, value);
  return before;
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
