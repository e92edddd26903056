// SPDX-License-Identifier: Apache-2.0
// The fake driver: one member function for each function of the driver. The files of this folder define them,
// each file those of one concept.
#pragma once

#include "support/fake_cuda.hpp"
#include "support/fake_cuda/calls.hpp"
#include "support/fake_cuda/contexts.hpp"
#include "support/fake_cuda/modules.hpp"
#include "support/fake_cuda/objects.hpp"
#include "support/fake_cuda/physical_memory.hpp"
#include "support/fake_cuda/pieces.hpp"
#include "support/fake_cuda/streams.hpp"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::cuda {

struct FakeDriver {
  explicit FakeDriver(std::vector<FakeGpu> machine) : contexts(std::move(machine)) {
    for (int device = 0; device < contexts.gpu_count(); ++device)
      contexts.primary(device).default_stream = streams.add(&contexts.primary(device));
    streams.start();
  }
  ~FakeDriver() { streams.stop(); }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  /// A C table has no room for a context, so one driver at a time serves it.
  static FakeDriver*& current() {
    static FakeDriver* driver = nullptr;
    return driver;
  }

#define HEADRACE_FAKE_FUNCTION(member, symbol, ...) Outcome member(__VA_ARGS__);
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_FAKE_FUNCTION)
#undef HEADRACE_FAKE_FUNCTION

  // What several of these functions need.

  /// The stream of a handle: for the default stream that of the current context, null without one.
  StreamObject* resolve(Stream stream) {
    if (stream != nullptr && stream != legacy_stream) return stream;
    return contexts.top() == nullptr ? nullptr : contexts.top()->default_stream;
  }
  [[nodiscard]] Outcome enqueue(Stream stream, Work work) {
    return streams.enqueue(resolve(stream), std::move(work));
  }
  /// The lock of the call that this thread is in.
  static std::unique_lock<std::mutex>*& call_lock() {
    thread_local std::unique_lock<std::mutex>* lock = nullptr;
    return lock;
  }
  template <class Condition>
  void wait_for(const Condition& condition) {
    streams.wait(*call_lock(), condition);
  }
  /// As in the driver, memory is given back when all work of the process has left.
  void wait_for_kernels() {
    wait_for([this] { return !streams.anything_waits() || streams.is_held(); });
  }
  [[nodiscard]] std::size_t used_bytes(Device device) const {
    return pieces.allocated_bytes(device) + physical.bytes_of(device);
  }

  /// Whether a capture forbids the function.
  [[nodiscard]] static bool is_unsafe_in_captures(const std::string& symbol);
  /// Whether a capture forbids an unsafe call to this thread now. If so, the call invalidates that capture.
  [[nodiscard]] bool disturbs_captures();

  static std::uint64_t next_driver() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
  const std::uint64_t serial = next_driver();
  int version = 13000;
  int process_number = ::getpid();
  std::set<std::string> lacking;
  std::map<std::string, Calls> calls;  // of each function and kernel

  mutable std::mutex mutex;
  FakeContexts contexts;
  BufferIds ids;
  FakePhysicalMemory physical{ids};  // reserved addresses stay longer than what is mapped there
  FakePieces pieces{ids};
  Objects<EventObject> events;
  Objects<GraphObject> graphs;
  Objects<GraphExecObject> graph_execs;
  std::map<std::thread::id, CaptureMode> thread_modes;  // `global` for a thread that has set none
  FakeModules modules;
  FakeStreams streams{mutex};
};

}  // namespace headrace::cuda
