// SPDX-License-Identifier: Apache-2.0
// What windows of every backend of GPUs must do: on real GPUs, and over the fake driver.
#pragma once

#include "gpu_ranks.hpp"

#include <headrace/comm_window.hpp>

#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::test {

inline WindowOptions window_options(const RankGpu& gpu, bool async = false) {
  WindowOptions options;
  options.stream = gpu.stream();
  options.async = async;
  return options;
}

/// Elements anywhere in GPU memory, once what the rank's stream holds is done.
template <class T>
std::vector<T> read_from(const RankGpu& gpu, const Elements& elements) {
  std::vector<T> values(elements.count);
  gpu.wait();
  gpu.copy(reinterpret_cast<cuda::Address>(values.data()), reinterpret_cast<cuda::Address>(elements.data),
           elements.bytes());
  gpu.wait();
  return values;
}

template <class T>
Elements part_of(const Elements& all, std::size_t first, std::size_t count) {
  return {static_cast<T*>(all.data) + first, count, all.dtype};
}

/// Each rank puts to the next one, tells it, and reads what the one before has put; odd sizes and places.
inline void put_around(Comm& comm, const RankGpu& gpu, Window& window) {
  const int rank = comm.rank(), next = (rank + 1) % comm.size(),
            previous = (rank + comm.size() - 1) % comm.size();
  const Elements mine = must(window.tensor());
  int turn = 0;
  for (const std::size_t count : {1UL, 333UL, 1000UL}) {
    OnGpu<int> sent(gpu, filled(count, 100 * ++turn + rank)), got(gpu, filled(count, -1));
    const bool async = count == 333;
    const Work put = must(window.put(sent.elements(), next, 3, window_options(gpu, async)));
    const Work told = must(window.signal(next, {}, window_options(gpu, async)));
    EXPECT_EQ(must(window.wait_signal(previous)), 1U);
    EXPECT_THAT(read_from<int>(gpu, part_of<int>(mine, 3, count)), testing::Each(100 * turn + previous));
    must(put.wait());
    must(told.wait());
    gpu.meet();  // the next one has what it reads from here
    ok(window.get(got.elements(), next, 3, window_options(gpu)));
    EXPECT_THAT(got.values(), testing::Each(100 * turn + rank));
    EXPECT_THAT(read_from<int>(gpu, part_of<int>(mine, 0, 3)), testing::Each(0));
    gpu.meet();
  }
}

/// Values are set, added and compared; a wait that compares leaves the word as it is.
inline void compare_signals(Comm& comm, const RankGpu& gpu, Window& window) {
  const int rank = comm.rank(), next = (rank + 1) % comm.size(),
            previous = (rank + comm.size() - 1) % comm.size();
  ok(window.signal(next, {Signal::Kind::set, 40}, window_options(gpu)));
  EXPECT_EQ(must(window.wait_signal(previous, {Comparison::eq, 40})), 40U);
  gpu.meet();
  ok(window.signal(next, {Signal::Kind::add, 2}, window_options(gpu)));
  EXPECT_EQ(must(window.wait_signal(previous, {Comparison::gt, 41})), 42U);
  EXPECT_EQ(must(window.wait_signal(previous, {Comparison::ne, 40})), 42U);
  EXPECT_EQ(must(window.wait_signal(previous)), 42U);
  EXPECT_EQ(must(window.wait_signal(previous, {Comparison::le, 41})), 41U);
  gpu.meet();
  ok(window.signal(next, {Signal::Kind::set, 0}, window_options(gpu)));
  must(window.wait_signal(previous, {Comparison::lt, 1}));
  gpu.meet();
}

/// Additions of all ranks to one element are all counted, and return the value before.
inline void add_together(Comm& comm, const RankGpu& gpu, Window& window) {
  constexpr int times = 10;
  const Elements mine = must(window.tensor());
  std::int64_t last = -1;
  for (int i = 0; i < times; ++i) {
    const std::int64_t before = must(window.atomic_add(0, 1, -1));
    if (i != 0) EXPECT_LT(before, last);
    last = before;
  }
  gpu.meet();
  if (comm.rank() == 0)
    EXPECT_EQ(read_from<int>(gpu, part_of<int>(mine, 0, 3)), (Numbers{0, -times * comm.size(), 0}));
  gpu.meet();
  if (comm.rank() == 0) EXPECT_EQ(must(window.atomic_add(0, 1, times * comm.size())), -times * comm.size());
  gpu.meet();
}

inline void map_others(Comm& comm, const RankGpu& gpu, Window& window) {
  const int next = (comm.rank() + 1) % comm.size();
  const RemoteTensor mapped = must(window.map_remote_tensor(next));
  EXPECT_EQ(mapped.elements.count, 1003U);
  EXPECT_EQ(must(window.get_attr(next)).access, WindowAccess::unified);
  OnGpu<int> got(gpu, filled(1000, -1));
  ok(window.get(got.elements(), next, 3, window_options(gpu)));
  EXPECT_EQ(read_from<int>(gpu, part_of<int>(mapped.elements, 3, 1000)), got.values());
  gpu.meet();
}

/// A wait that is late names rank and values, and ends nothing else.
inline void wait_for_no_signal(Comm& comm, const RankGpu& gpu, Window& window) {
  const int rank = comm.rank(), next = (rank + 1) % comm.size();
  ok(window.signal(next, {Signal::Kind::set, 2}, window_options(gpu)));
  const int previous = (rank + comm.size() - 1) % comm.size();
  must(window.wait_signal(previous, {Comparison::eq, 2}));
  const auto late = window.wait_signal(previous, {Comparison::ge, 3}, std::chrono::milliseconds(50));
  EXPECT_EQ(late.code(), Code::timed_out);
  EXPECT_THAT(late.error().message,
              testing::AllOf(testing::HasSubstr("wait_signal"), testing::HasSubstr("window 1: "),
                             testing::HasSubstr("the signal of rank " + std::to_string(previous) +
                                                " is 2, and >= 3 was awaited for 50 ms")));
  EXPECT_EQ(must(window.wait_signal(previous)), 2U);
  EXPECT_EQ(must(window.wait_signal(previous)), 1U);
  gpu.meet();
}

inline void refuse_wrong_operations(Comm& comm, const RankGpu& gpu, Window& window) {
  OnGpu<int> numbers(gpu, filled(10, 1));
  OnGpu<float> floats(gpu, {1});
  const auto message_of = [](const auto& result) {
    EXPECT_EQ(result.code(), Code::invalid_argument);
    return result.ok() ? std::string() : result.error().message;
  };
  EXPECT_THAT(message_of(window.put(numbers.elements(), 0, 994, window_options(gpu))),
              testing::HasSubstr("10 elements from element 994 on: rank 0 has 1003"));
  EXPECT_THAT(message_of(window.get(floats.elements(), 0, 0, window_options(gpu))),
              testing::HasSubstr("the elements are float32, those of the window are int32"));
  EXPECT_THAT(message_of(window.signal(comm.size(), {}, window_options(gpu))),
              testing::HasSubstr("there is no rank " + std::to_string(comm.size())));
  EXPECT_THAT(message_of(window.atomic_add(0, 1003, 1)), testing::HasSubstr("element 1003: rank 0 has 1003"));
}

/// A second window, of memory of the caller, has elements and signals of its own.
inline void register_another(Comm& comm, const RankGpu& gpu, Window& first) {
  const int rank = comm.rank(), next = (rank + 1) % comm.size(),
            previous = (rank + comm.size() - 1) % comm.size();
  Window second = must(comm.new_window());
  OnGpu<std::int64_t> mine(gpu, std::vector<std::int64_t>(rank == 0 ? 5 : 7, -1));
  must(second.tensor_register(mine.elements()));
  EXPECT_EQ(must(second.get_attr(0)).count, 5U);
  OnGpu<std::int64_t> sent(gpu, {rank + 1});
  ok(second.put(sent.elements(), next, 4, window_options(gpu)));
  ok(second.signal(next, {}, window_options(gpu)));
  EXPECT_EQ(must(second.wait_signal(previous)), 1U);
  const auto none = first.wait_signal(previous, std::chrono::milliseconds(1));
  EXPECT_EQ(none.code(), Code::timed_out);
  EXPECT_THAT(mine.values(), testing::Contains(previous + 1));
  must(second.flush());
  must(second.tensor_deregister());
  EXPECT_EQ(second.tensor().code(), Code::invalid_argument);
}

inline void use_windows(Comm& comm, const RankGpu& gpu) {
  Window window = must(comm.new_window());
  must(window.allocate(1003, DType::int32));
  put_around(comm, gpu, window);
  compare_signals(comm, gpu, window);
  add_together(comm, gpu, window);
  map_others(comm, gpu, window);
  wait_for_no_signal(comm, gpu, window);
  refuse_wrong_operations(comm, gpu, window);
  register_another(comm, gpu, window);
  must(window.flush());
  must(window.tensor_deregister());
  must(window.allocate(3, DType::float32));  // the words of signals begin anew
  EXPECT_EQ(window.wait_signal(0, std::chrono::milliseconds(1)).code(), Code::timed_out);
  EXPECT_EQ(window.atomic_add(0, 0, 1).code(), Code::invalid_argument);
  must(window.tensor_deregister());
}

/// What windows do that have neither atomic_add nor values that are set.
inline void put_signal_and_map(Comm& comm, const RankGpu& gpu) {
  Window window = must(comm.new_window());
  must(window.allocate(1003, DType::int32));
  put_around(comm, gpu, window);
  map_others(comm, gpu, window);
  refuse_wrong_operations(comm, gpu, window);
  must(window.flush());
  must(window.tensor_deregister());
  must(window.allocate(3, DType::float32));  // the words of signals begin anew
  EXPECT_EQ(window.wait_signal(0, std::chrono::milliseconds(1)).code(), Code::timed_out);
  must(window.tensor_deregister());
  OnGpu<int> numbers(gpu, filled(100, 1));
  ok(comm.all_reduce(numbers.elements(), ReduceOp::sum, gpu.on_stream()));
  EXPECT_THAT(numbers.values(), testing::Each(comm.size()));
}

/// The last rank aborts the communicator while the others wait for its signal.
inline void abort_while_others_wait(Comm& comm, const RankGpu& gpu) {
  Window window = must(comm.new_window());
  must(window.allocate(8, DType::int32));
  const int last = comm.size() - 1;
  gpu.meet();
  if (comm.rank() == last) return comm.abort("it dies");
  const auto waited = window.wait_signal(last);
  EXPECT_EQ(waited.code(), Code::canceled);
  EXPECT_THAT(waited.error().message, testing::HasSubstr("it dies"));
  OnGpu<int> numbers(gpu, filled(8, 1));
  EXPECT_EQ(window.put(numbers.elements(), last, 0, window_options(gpu)).code(), Code::canceled);
}

}  // namespace headrace::test
