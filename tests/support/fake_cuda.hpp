// SPDX-License-Identifier: Apache-2.0
// A CUDA driver for tests: it fills the same table, and everything happens on the host.
//
// Device memory is host memory in files without a name, so that IPC handles and exported descriptors work
// between processes. What the driver refuses is refused; where each refusal is documented or was seen stands
// beside it. Streams run their work in order, at once when nothing is in the way, else as soon as what they
// wait for has come. Kernels are functions of the test's, looked up by name. What is to go wrong is said
// beforehand.
#pragma once

#include "vendor/cuda/driver.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace::cuda {

struct FakeGpu {
  std::string name = "Fake H200";
  int major = 9;
  int minor = 0;
  int multiprocessors = 4;
  std::size_t memory_bytes = std::size_t{256} << 20;
  bool virtual_memory = true;  ///< the virtual memory API with descriptors
};

/// One at a time in a process: a C table has no room for a second. Any thread.
class FakeCuda {
 public:
  /// A machine with these GPUs; with none the driver finds no device. All reach one another's memory.
  explicit FakeCuda(std::vector<FakeGpu> gpus = {FakeGpu{}});
  explicit FakeCuda(int gpus) : FakeCuda(std::vector<FakeGpu>(static_cast<std::size_t>(gpus))) {}
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  /// The table, bound and started as the real one is.
  [[nodiscard]] Result<DriverTable> load();
  /// The symbols of its library.
  [[nodiscard]] static SymbolLookup lookup();

  // ---- scripts

  /// The CUDA version that the driver serves, 13000 at first.
  void set_version(int version);
  /// The library lacks this function ("cuMemCreate").
  void lack(const std::string& symbol);
  /// The `nth` call of the function from now on, and `times` - 1 more, end with this outcome and do nothing
  /// else.
  void fail(const std::string& symbol, Outcome outcome, int nth = 1, int times = 1);
  /// GPU `from` does not reach memory of GPU `to`.
  void forbid_peer_access(int from, int to);
  void allow_peer_access(int from, int to);  ///< again
  /// The number that this process's IPC handles bear and that it takes for its own, as if it ran in a PID
  /// namespace of its own. The files behind handles are found by the real one.
  void set_process_number(int number);
  /// Work of streams stays queued until `release`.
  void hold();
  void release();
  /// The next `count` pieces of work run, those of the stream that was made first first.
  void step(int count);
  /// What a launch of the kernel `name` does with its one argument of `bytes` bytes. Outcomes other than
  /// success are the context's end, as a kernel's fault is.
  void add_kernel(const std::string& name, std::size_t bytes,
                  std::function<Outcome(const void* argument)> run);
  /// Likewise of one that stays: `launch` answers what it does until it ends, called again and again. None:
  /// it stays.
  using Staying = std::function<std::optional<Outcome>()>;
  void add_staying_kernel(const std::string& name, std::size_t bytes,
                          std::function<Staying(const void* argument)> launch);

  // ---- questions

  /// Of a function of the driver, or of a kernel: how often it was launched.
  [[nodiscard]] int calls(const std::string& symbol) const;
  /// Whether a kernel may touch these bytes: all in one piece of memory that has not been freed.
  [[nodiscard]] bool reachable(std::uint64_t address, std::size_t bytes) const;
  /// What has been made and not been given back.
  struct Live {
    int contexts = 0;  ///< retained
    int streams = 0;
    int events = 0;
    int modules = 0;
    int graphs = 0;
    int allocations = 0;  ///< device memory
    int pinned = 0;       ///< host memory, allocated or registered
    int imports = 0;      ///< opened IPC handles
    int physical = 0;     ///< memory of the virtual memory API
    int reservations = 0;
    int mappings = 0;
    friend bool operator==(const Live&, const Live&) = default;
  };
  [[nodiscard]] Live live() const;

 private:
  friend struct FakeDriver;
  std::unique_ptr<struct FakeDriver> driver_;
};

}  // namespace headrace::cuda
