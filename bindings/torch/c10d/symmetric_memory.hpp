// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group make of a symmetric tensor: the memory of each, mapped by all, and signals.
#pragma once

#include <headrace/agent.hpp>
#include <headrace/comm.hpp>
#include <headrace/comm_window.hpp>

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace::torch_group {

/// Releases the GIL, if this thread has it: torch calls symmetric memory with it.
class WithoutGil {
 public:
  WithoutGil() {
    if (PyGILState_Check() != 0) released_.emplace();
  }

 private:
  std::optional<py::gil_scoped_release> released_;
};

/// The buffers and signal pads of all ranks, from one rendezvous. The pads are the memory of a window: at
/// each rank a channel has a 32-bit word for every rank, as on GPUs. put_signal turns the word of this rank
/// at another one from 0 to 1, wait_signal turns it back. A signal of the window tells the rank on the other
/// side of every change.
///
/// torch's names. timeout_ms: 0 is the communicator's.
///   errors   CommError: not_supported (a rank on another host), invalid_argument (no such rank or channel,
///            ranks with other sizes: the values), timed_out and those of windows
///   threads  any
class SymmetricMemory final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  /// A collective.
  ///   own  a region of the agent, from Agent::allocate
  static c10::intrusive_ptr<SymmetricMemory> meet(std::shared_ptr<Comm> comm, Agent& agent,
                                                  const Region& own);

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override { return pads_; }
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return pads_.data(); }
  size_t get_buffer_size() override { return buffer_bytes_; }
  size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }

  void barrier(int channel, size_t timeout_ms) override;
  void put_signal(int dst_rank, int channel, size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, size_t timeout_ms) override;

  int get_rank() override { return rank_; }
  int get_world_size() override { return size_; }
  c10::Device get_device() override { return c10::Device(c10::DeviceType::CPU); }
  const std::vector<int>& get_rank_to_global_rank() override { return ranks_; }
  int* get_rank_to_global_rank_dev() override { return ranks_.data(); }
  bool world_within_direct_access() override { return true; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Wait {
    const char* operation;
    int peer, channel;
    std::optional<std::chrono::milliseconds> timeout;
    Clock::time_point since;
  };

  SymmetricMemory(std::shared_ptr<Comm> comm, Window window, const Region& own);
  void map(Agent& agent, const std::vector<std::string>& metadata, const std::vector<RegionId>& regions);
  void map_buffer(Agent& agent, int rank, const std::string& metadata, RegionId region);

  void check(const Wait& wait) const;
  void put(const Wait& wait);
  void take_signal(const Wait& wait);
  void turn(std::uint32_t& word, std::uint32_t from, std::uint32_t to, const Wait& wait, const char* late);
  [[nodiscard]] Timeout time_left(const Wait& wait) const;
  [[nodiscard]] Error late_error(const Wait& wait, const char* late) const;
  [[nodiscard]] Error described(const Wait& wait, Code code, const std::string& text) const;
  /// The word that a rank has at `owner`.
  [[nodiscard]] std::uint32_t& word(int owner, int channel, int rank) const;

  const std::shared_ptr<Comm> comm_;
  const int rank_, size_;
  std::vector<int> ranks_;
  const std::size_t buffer_bytes_, pad_bytes_;
  Window window_;
  std::vector<Mapping> mappings_;
  std::vector<RemoteTensor> mapped_pads_;
  std::vector<void*> buffers_, pads_;
};

}  // namespace headrace::torch_group
