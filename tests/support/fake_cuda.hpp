// SPDX-License-Identifier: Apache-2.0
// A CUDA driver for tests. It fills the same table as the real one, and everything runs on the host.
//
// Device memory is host memory in files without a name, so IPC handles and exported descriptors work between
// processes. The fake refuses the calls that the driver refuses; a comment at each refusal says whether it is
// documented or was observed. Streams run their work in order: at once if nothing blocks it, otherwise as
// soon as the work that they wait for has run. Kernels are functions of the test, found by name. A test
// scripts failures in advance.
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

/// One at a time in a process, because a C table has no room for a context. Any thread may call it.
class FakeCuda {
 public:
  /// A machine with these GPUs; without GPUs the driver finds no device. All GPUs can access one another's
  /// memory.
  explicit FakeCuda(std::vector<FakeGpu> gpus = {FakeGpu{}});
  explicit FakeCuda(int gpus) : FakeCuda(std::vector<FakeGpu>(static_cast<std::size_t>(gpus))) {}
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  /// The table, bound and initialized like that of the real driver.
  [[nodiscard]] Result<DriverTable> load();
  /// The symbols of its library.
  [[nodiscard]] static SymbolLookup lookup();

  // ---- scripts

  /// The CUDA version that the driver serves, 13000 at first.
  void set_version(int version);
  /// The library lacks this function ("cuMemCreate").
  void lack(const std::string& symbol);
  /// From now on the `nth` call of the function, and the `times` - 1 calls after it, return this outcome and
  /// do nothing else.
  void fail(const std::string& symbol, Outcome outcome, int nth = 1, int times = 1);
  /// GPU `from` cannot access memory of GPU `to`.
  void forbid_peer_access(int from, int to);
  void allow_peer_access(int from, int to);  ///< again
  /// The process id that this process's IPC handles have, and that it takes for its own, as if it ran in a
  /// PID namespace of its own. The files behind handles are found by the real process id.
  void set_process_number(int number);
  /// Work of streams stays queued until `release`.
  void hold();
  void release();
  /// The next `count` pieces of work run, those of the oldest stream first.
  void step(int count);
  /// Queues work of the test on a stream. It runs inside the driver, again and again until it returns true.
  void queue(Stream stream, std::function<bool()> work);
  /// The function that a launch of the kernel `name` runs, with the kernel's argument of `bytes` bytes. An
  /// outcome other than success breaks the context, as a kernel's fault does.
  void add_kernel(const std::string& name, std::size_t bytes,
                  std::function<Outcome(const void* argument)> run);
  /// The same for a kernel that stays. `launch` returns a function that is called again and again; it returns
  /// none while the kernel stays.
  using Staying = std::function<std::optional<Outcome>()>;
  void add_staying_kernel(const std::string& name, std::size_t bytes,
                          std::function<Staying(const void* argument)> launch);

  // ---- questions

  /// The number of calls of a function of the driver, or of launches of a kernel.
  [[nodiscard]] int calls(const std::string& symbol) const;
  /// Whether a kernel may access these bytes: all lie in memory that has not been freed.
  [[nodiscard]] bool reachable(std::uint64_t address, std::size_t bytes) const;
  /// Objects that were made and not freed.
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
  struct FakeDriver* before_ = nullptr;  // the one that was current when this was made
};

}  // namespace headrace::cuda
