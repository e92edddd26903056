// SPDX-License-Identifier: Apache-2.0
// A CUDA graph of the work that a function queues on a stream, captured as torch captures: calls of other
// threads count.
#pragma once

#include "gpu/stream.hpp"

#include <gtest/gtest.h>

#include <functional>

namespace headrace::test {

class GpuGraph {
 public:
  /// Captures what `record` queues on the stream.
  GpuGraph(const gpu::Stream& stream, const std::function<void()>& record) : stream_(stream) {
    const gpu::ContextGuard current(stream_.device());
    const cuda::DriverTable& driver = stream_.device().driver();
    EXPECT_EQ(driver.stream_begin_capture(stream_.handle(), cuda::CaptureMode::global),
              cuda::Outcome::success);
    {
      // The mode of an ordinary caller's thread.
      cuda::CaptureMode mode = cuda::CaptureMode::global;
      (void)driver.thread_exchange_stream_capture_mode(&mode);
      record();
      (void)driver.thread_exchange_stream_capture_mode(&mode);
    }
    EXPECT_EQ(driver.stream_end_capture(stream_.handle(), &graph_), cuda::Outcome::success)
        << "the capture was invalidated";
    if (graph_ != nullptr) {
      EXPECT_EQ(driver.graph_instantiate(&exec_, graph_, 0), cuda::Outcome::success);
    }
  }
  ~GpuGraph() {
    if (graph_ == nullptr) return;
    EXPECT_EQ(stream_.device().driver().graph_exec_destroy(exec_), cuda::Outcome::success);
    EXPECT_EQ(stream_.device().driver().graph_destroy(graph_), cuda::Outcome::success);
  }
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  /// Queues a replay on the stream.
  void launch() const {
    const gpu::ContextGuard current(stream_.device());
    ASSERT_EQ(stream_.device().driver().graph_launch(exec_, stream_.handle()), cuda::Outcome::success);
  }
  /// Queues a replay and waits for its end.
  void replay() const {
    launch();
    ASSERT_TRUE(stream_.wait_idle());
  }

 private:
  const gpu::Stream& stream_;
  cuda::Graph graph_ = nullptr;
  cuda::GraphExec exec_ = nullptr;
};

}  // namespace headrace::test
