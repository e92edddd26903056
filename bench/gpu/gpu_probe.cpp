// SPDX-License-Identifier: Apache-2.0
// What a machine's GPUs give: are the page kernels right, and how fast do pages travel by kernel, by copy
// engine, to host memory, and one at a time. One JSON line a result; the last line says how many checks
// failed.
//
//   bench_gpu_probe [--quick] [--shapes] [--correct] [--pid-namespace] [--long-pages] [--resident]
//
// A child process owns the far memory, on the last GPU: by cudaMalloc (opened by IPC handle), and by the
// virtual memory API (a descriptor). With one GPU both are on it, and "remote" is another process's memory on
// the same GPU.
#include "base/clock.hpp"
#include "bench/gpu/shuffled.hpp"
#include "gpu/courier.hpp"
#include "gpu/device.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/event.hpp"
#include "gpu/kernel_family.hpp"
#include "gpu/peer_memory.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/prepared_move.hpp"
#include "gpu/stream.hpp"
#include "kernels/common/reference.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

// Written by cmake/kernels.cmake from probe_kernels.cu.
extern "C" const headrace_kernel_image_v1 headrace_probe_images[];
extern "C" const uint64_t headrace_probe_image_count;

namespace {

using namespace headrace;
using gpu::Device;
using std::chrono::duration;
using Clock = std::chrono::steady_clock;

constexpr std::size_t pool_bytes = std::size_t{256} << 20;

template <class T>
T must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}
void must(Result<void> result) {
  if (result.ok()) return;
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}
void must(const cuda::DriverTable& driver, cuda::Outcome outcome, std::string_view what) {
  if (outcome == cuda::Outcome::success) return;
  fmt::print(stderr, "{}: {}\n", what, cuda::outcome_text(driver, outcome));
  std::exit(1);
}

/// Bytes that differ from place to place and from seed to seed.
void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  auto* const words = reinterpret_cast<std::uint64_t*>(bytes.data());
  std::uint64_t state = seed * 0x9e3779b97f4a7c15;
  for (std::size_t i = 0; i < bytes.size() / 8; ++i) {
    state += 0x9e3779b97f4a7c15;
    std::uint64_t mixed = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    words[i] = mixed ^ (mixed >> 31);
  }
}

// ------------------------------------------------------------------ the owner of the far memory, a process
// of its own

struct OwnerSays {
  int device = 0;
  cuda::IpcMemoryHandle handle{};
  std::size_t ipc_offset = 0;
  std::size_t piece_bytes = 0;  // 0: no memory by descriptor
};

void send_fd(int socket, const OwnerSays& says, int fd) {
  iovec data{const_cast<OwnerSays*>(&says), sizeof says};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (::sendmsg(socket, &message, 0) != static_cast<ssize_t>(sizeof says)) std::exit(1);
}

std::pair<OwnerSays, UniqueFd> receive_fd(int socket) {
  OwnerSays says;
  iovec data{&says, sizeof says};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_WAITALL) != static_cast<ssize_t>(sizeof says)) {
    fmt::print(stderr, "the owner's process has ended\n");
    std::exit(1);
  }
  UniqueFd fd;
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof number);
    fd = UniqueFd(number);
  }
  return {says, std::move(fd)};
}

/// Physical memory mapped on its own GPU, exportable.
struct VirtualMemory {
  cuda::Address address = 0;
  std::size_t bytes = 0;
};
VirtualMemory make_virtual(const Device& device, std::size_t wanted) {
  const cuda::DriverTable& driver = device.driver();
  const gpu::ContextGuard guard(device);
  cuda::AllocationProperties properties;
  properties.handle_types = cuda::HandleType::file_descriptor;
  properties.location = {cuda::LocationType::device, device.ordinal()};
  std::size_t unit = 0;
  must(driver, driver.mem_get_allocation_granularity(&unit, &properties, cuda::Granularity::recommended),
       "granularity");
  VirtualMemory memory{0, (wanted + unit - 1) / unit * unit};
  cuda::PhysicalMemory physical = 0;
  must(driver, driver.mem_create(&physical, memory.bytes, &properties, 0), "cuMemCreate");
  must(driver, driver.mem_address_reserve(&memory.address, memory.bytes, 0, 0, 0), "cuMemAddressReserve");
  must(driver, driver.mem_map(memory.address, memory.bytes, 0, physical, 0), "cuMemMap");
  must(driver, driver.mem_release(physical), "cuMemRelease");
  const cuda::AccessDescription access{properties.location, cuda::AccessFlags::read_write};
  must(driver, driver.mem_set_access(memory.address, memory.bytes, &access, 1), "cuMemSetAccess");
  return memory;
}

[[noreturn]] void own(int socket) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto driver = must(cuda::load_driver());
  const int last = static_cast<int>(must(gpu::list_devices(driver)).size()) - 1;
  const auto device = must(Device::open(driver, last));
  const auto memory = must(gpu::DeviceMemory::allocate(device, pool_bytes));
  auto shared = must(gpu::share_memory(*device, memory.address(), pool_bytes));
  OwnerSays says{last, shared.handle, shared.offset, 0};
  UniqueFd fd;
  if (device->info().shares_descriptors) {
    const VirtualMemory other = make_virtual(*device, pool_bytes);
    auto pieces = must(gpu::share_memory(*device, other.address, pool_bytes));
    if (pieces.pieces.size() == 1) {
      fd = std::move(pieces.pieces[0].descriptor);
      says.piece_bytes = pieces.pieces[0].bytes;
    }
  }
  send_fd(socket, says, fd.get());
  char end = 0;
  while (::read(socket, &end, 1) < 0 && errno == EINTR) {
  }
  ::_exit(0);
}

gpu::SharedMemory shared_by_handle(const OwnerSays& says) {
  gpu::SharedMemory shared;
  shared.sharing = gpu::Sharing::ipc;
  shared.offset = says.ipc_offset;
  shared.bytes = pool_bytes;
  shared.handle = says.handle;
  return shared;
}

// ------------------------------------------------------------------ this process

struct Times {
  double median = 0, best = 0, p99 = 0;  // seconds
};
Times summary(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return {seconds[seconds.size() / 2], seconds.front(), seconds[seconds.size() * 99 / 100]};
}

using GatherScatter = headrace_gather_scatter_v1;

struct Probe {
  cuda::DriverTable driver;
  std::shared_ptr<const Device> device;
  std::shared_ptr<const gpu::Kernels> kernels;
  gpu::KernelFamily<GatherScatter> gather_scatter;
  gpu::Stream stream;
  gpu::DeviceMemory local;
  std::optional<gpu::PeerMemory> remote_ipc, remote_vmm;
  gpu::PinnedMemory host_local, host_remote, seen;  // what should lie there, and room to look
  gpu::PinnedMemory word_memory;
  gpu::DeviceMemory state, indices;
  gpu::PinnedMemory index_staging;
  cuda::Module module = nullptr;
  std::uint64_t told = 0;
  int failures = 0;
  int checks = 0;
  int rounds = 9;
  OwnerSays owner = {};

  [[nodiscard]] std::uint64_t* word() const {
    return reinterpret_cast<std::uint64_t*>(word_memory.bytes().data());
  }
  [[nodiscard]] headrace_move_done_v1 done() const { return {word_memory.address(), 0, state.address()}; }

  [[nodiscard]] cuda::Outcome launch(const headrace_move_pages_v1& args, cuda::Stream on) const {
    return gather_scatter.launch<&GatherScatter::move_pages>(args, on);
  }
  [[nodiscard]] cuda::Outcome launch(const headrace_move_runs_v1& args, cuda::Stream on) const {
    return gather_scatter.launch<&GatherScatter::move_runs>(args, on);
  }
  [[nodiscard]] cuda::Outcome launch(const headrace_move_few_v1& args, cuda::Stream on) const {
    return gather_scatter.launch<&GatherScatter::move_few>(args, on);
  }

  void wait_for(std::uint64_t value) const {
    const auto limit = Clock::now() + std::chrono::seconds(20);
    std::atomic_ref<std::uint64_t> at(*word());
    for (std::uint64_t spins = 1; at.load(std::memory_order_acquire) != value; ++spins) {
      if (spins % (1 << 20) != 0)
        continue;  // rarely: the driver is not to be disturbed while times are taken
      must(stream.poll_idle().ok() ? Result<void>()
                                   : Result<void>(make_error(Code::backend_failed, "a kernel failed")));
      if (Clock::now() > limit) {
        fmt::print(stderr, "the end was not told in 20 s: {} instead of {}\n", at.load(), value);
        std::exit(1);
      }
    }
  }

  void copy(cuda::Address to, cuda::Address from, std::size_t bytes) const {
    must(driver, driver.memcpy_async(to, from, bytes, stream.handle()), "cuMemcpyAsync");
    must(stream.wait_idle());
  }

  /// Puts the same pattern into a memory and into its host copy.
  void set(cuda::Address memory, gpu::PinnedMemory& host, std::size_t bytes, std::uint64_t seed) const {
    fill(host.bytes().first(bytes), seed);
    copy(memory, host.address(), bytes);
  }

  void expect(bool good, const std::string& what) {
    ++checks;
    if (good) return;
    ++failures;
    fmt::print("{{\"check\": \"{}\", \"failed\": true}}\n", what);
    std::fflush(stdout);
  }

  /// Runs `post`, which ends with the word being told, some times; seconds from before the post to the word.
  Times time(const std::function<void()>& post, int times = 0) {
    std::vector<double> seconds;
    for (int i = 0; i < (times == 0 ? rounds : times) + 2; ++i) {
      const auto begin = Clock::now();
      post();
      wait_for(++told);
      if (i >= 2) seconds.push_back(duration<double>(Clock::now() - begin).count());
    }
    return summary(std::move(seconds));
  }
};

/// Pages of one length whose indices are at an address of the device's.
headrace_move_side_v1 side_of(cuda::Address base, std::size_t stride, std::size_t page,
                              cuda::Address indices) {
  headrace_move_side_v1 side{};
  side.columns.indices = reinterpret_cast<const std::uint32_t*>(indices);
  side.columns.base_offset = base;
  side.columns.stride_bytes = stride;
  side.columns.page_bytes = page;
  return side;
}

/// A list of pages scattered on both sides, its tables on the device.
struct Scattered {
  std::vector<std::uint32_t> from, to;
  headrace_move_pages_v1 args{};
};
Scattered scatter(Probe& probe, cuda::Address source, cuda::Address target, std::size_t page,
                  std::size_t most = 16384) {
  std::mt19937 random(static_cast<unsigned>(page));
  const std::size_t slots = pool_bytes / page, count = std::min(slots, most);
  Scattered list;
  list.from = shuffled(random, count, slots);
  list.to = shuffled(random, count, slots);
  auto* const staging = reinterpret_cast<std::uint32_t*>(probe.index_staging.bytes().data());
  std::ranges::copy(list.from, staging);
  std::ranges::copy(list.to, staging + count);
  probe.copy(probe.indices.address(), probe.index_staging.address(), 2 * count * sizeof(std::uint32_t));
  list.args.struct_size = sizeof list.args;
  const cuda::Address indices = probe.indices.address();
  list.args.source = side_of(source, page, page, indices);
  list.args.target = side_of(target, page, page, indices + count * sizeof(std::uint32_t));
  list.args.count = count;
  list.args.done = probe.done();
  return list;
}

bool arrived(Probe& probe, const Scattered& list, cuda::Address target,
             const gpu::PinnedMemory& source_host) {
  probe.copy(probe.seen.address(), target, pool_bytes);
  const std::size_t page = list.args.source.columns.page_bytes;
  for (std::size_t i = 0; i < list.from.size(); ++i)
    if (std::memcmp(probe.seen.bytes().data() + list.to[i] * page,
                    source_host.bytes().data() + list.from[i] * page, page) != 0)
      return false;
  return true;
}

struct Direction {
  const char* name;
  bool read;
};
constexpr Direction directions[] = {{"read", true}, {"write", false}};

/// compared: the target's pages were compared with the source's after these times, and are right.
void report(std::string_view what, std::string_view method, const char* direction, std::size_t page,
            std::size_t count, std::uint32_t multiprocessors, const Times& times, bool compared = false) {
  const double bytes = static_cast<double>(page) * static_cast<double>(count);
  fmt::print(
      "{{\"what\": \"{}\", \"method\": \"{}\", \"direction\": \"{}\", \"page\": {}, \"count\": {}, "
      "\"multiprocessors\": {}, "
      "\"gb_per_s\": {:.1f}, \"best_gb_per_s\": {:.1f}, \"us\": {:.1f}, \"compared\": {}}}\n",
      what, method, direction, page, count, multiprocessors, bytes / times.median / 1e9,
      bytes / times.best / 1e9, times.median * 1e6, compared);
  std::fflush(stdout);
}

// ------------------------------------------------------------------ right?

/// Random lists of odd lengths and offsets between two windows; the whole target window is compared.
void check_odd_moves(Probe& probe, cuda::Address remote, const char* mapping, int cases) {
  constexpr std::size_t window = 2 << 20;
  std::mt19937_64 random(99);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  gpu::DeviceMemory tables = must(gpu::DeviceMemory::allocate(probe.device, 1 << 20));
  gpu::PinnedMemory staging = must(gpu::PinnedMemory::allocate(probe.device, 1 << 20));
  std::vector<std::byte> expected(window), source(window);
  for (int number = 0; number < cases; ++number) {
    const bool read = number % 2 == 0;
    const cuda::Address from = read ? remote : probe.local.address(),
                        to = read ? probe.local.address() : remote;
    const std::uint64_t seed = 2 * static_cast<std::uint64_t>(number);
    fill(source, seed);
    fill(expected, seed + 1);
    std::ranges::copy(source, probe.seen.bytes().begin());
    probe.copy(from, probe.seen.address(), window);
    std::ranges::copy(expected, probe.seen.bytes().begin());
    probe.copy(to, probe.seen.address(), window);

    const int kind = static_cast<int>(below(4));
    const char* kernel = kind == 0 ? "pages" : kind == 1 ? "parts" : kind == 2 ? "few" : "one";
    std::string shape;
    cuda::Outcome outcome{};
    const auto move_on_host = [&](std::uint64_t source_at, std::uint64_t target_at, std::uint64_t bytes) {
      std::memcpy(expected.data() + (target_at - to), source.data() + (source_at - from), bytes);
    };
    // Runs that do not overlap at the target: cut both windows into slots.
    const std::size_t slot = kind == 0 ? 1 + below(number % 5 == 0 ? 100000 : 9000) : 512 + below(20000);
    const std::size_t slots = window / slot;
    std::mt19937 shuffle(static_cast<unsigned>(number));
    const std::size_t count = kind == 3   ? 1
                              : kind == 2 ? std::min<std::size_t>(1 + below(8), slots)
                                          : 1 + below(std::min<std::size_t>(slots, 3000));
    const auto source_slots = shuffled(shuffle, count, slots), target_slots = shuffled(shuffle, count, slots);
    if (kind == 0) {
      const bool vectors = number % 3 == 0 && slot >= 16;
      headrace_move_pages_v1 args{};
      args.struct_size = sizeof args;
      const std::size_t stride = vectors ? slot / 16 * 16 : slot;
      const std::size_t page = vectors ? stride : 1 + below(slot);
      const auto lead = [&] { return vectors ? 0 : below(slot - page + 1); };
      args.source = side_of(from + lead(), stride, page, tables.address());
      args.target = side_of(to + lead(), stride, page, tables.address() + 4 * count);
      args.count = count;
      args.done = probe.done();
      args.most_multiprocessors = number % 4 == 0 ? 3 : 0;
      auto* const numbers = reinterpret_cast<std::uint32_t*>(staging.bytes().data());
      std::ranges::copy(source_slots, numbers);
      std::ranges::copy(target_slots, numbers + count);
      probe.copy(tables.address(), staging.address(), 8 * count);
      headrace_move_pages_v1 on_host = args;
      on_host.source.columns.indices = numbers;
      on_host.target.columns.indices = numbers + count;
      kernels::reference::PagesMove(on_host).each_run(move_on_host);
      outcome = probe.launch(args, probe.stream.handle());
      shape = fmt::format("{} of {} bytes, stride {}", count, page, stride);
    } else {
      std::vector<std::uint64_t> sources, targets, lengths;
      const std::size_t unit = kind == 3 ? 16 : 1;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t bytes = below(slot + 1) / unit * unit;
        sources.push_back((source_slots[i] * slot + below(slot - bytes + 1)) / unit * unit);
        targets.push_back((target_slots[i] * slot + below(slot - bytes + 1)) / unit * unit);
        lengths.push_back(bytes);
        move_on_host(from + sources.back(), to + targets.back(), bytes);
      }
      shape = fmt::format("{} of up to {} bytes", count, slot);
      if (kind == 1) {
        headrace_move_runs_v1 args{};
        args.struct_size = sizeof args;
        auto* const words = reinterpret_cast<std::uint64_t*>(staging.bytes().data());
        std::ranges::copy(sources, words);
        std::ranges::copy(targets, words + count);
        std::ranges::copy(lengths, reinterpret_cast<std::uint32_t*>(words + 2 * count));
        probe.copy(tables.address(), staging.address(), 20 * count);
        args.sources = tables.address(), args.targets = tables.address() + 8 * count,
        args.lengths = tables.address() + 16 * count;
        args.source_base = from, args.target_base = to;
        args.count = count;
        args.done = probe.done();
        outcome = probe.launch(args, probe.stream.handle());
      } else {
        headrace_move_few_v1 args{};
        args.struct_size = sizeof args;
        args.count = count;
        for (std::size_t i = 0; i < count; ++i)
          args.sources[i] = from + sources[i], args.targets[i] = to + targets[i],
          args.lengths[i] = lengths[i];
        args.done = probe.done();
        outcome = probe.launch(args, probe.stream.handle());
      }
    }
    must(probe.driver, outcome, kernel);
    probe.wait_for(++probe.told);
    probe.copy(probe.seen.address(), to, window);
    const auto difference =
        std::ranges::mismatch(expected, probe.seen.bytes().first(window)).in1 - expected.begin();
    probe.expect(difference == static_cast<std::ptrdiff_t>(window),
                 fmt::format("{} {} over {}: {}, case {}, differs at byte {}", kernel,
                             read ? "read" : "write", mapping, shape, number, difference));
  }
  fmt::print("{{\"what\": \"correct\", \"mapping\": \"{}\", \"cases\": {}, \"failed\": {}}}\n", mapping,
             cases, probe.failures);
  std::fflush(stdout);
}

// ------------------------------------------------------------------ how fast, many pages

void time_pages(Probe& probe, cuda::Address remote, const char* what, const std::vector<std::size_t>& pages,
                const std::vector<std::uint32_t>& budgets) {
  for (const std::size_t page : pages)
    for (const auto& [name, read] : directions) {
      const cuda::Address from = read ? remote : probe.local.address(),
                          to = read ? probe.local.address() : remote;
      probe.set(remote, probe.host_remote, pool_bytes, page + 1);
      probe.set(probe.local.address(), probe.host_local, pool_bytes, page + 2);
      Scattered list = scatter(probe, from, to, page);
      std::vector<Times> of_budgets;
      for (const std::uint32_t budget : budgets) {
        list.args.most_multiprocessors = budget;
        of_budgets.push_back(probe.time(
            [&] { must(probe.driver, probe.launch(list.args, probe.stream.handle()), "move_pages"); }));
      }
      const bool right = arrived(probe, list, to, read ? probe.host_remote : probe.host_local);
      probe.expect(right, fmt::format("{} {} of {} bytes", what, name, page));
      for (std::size_t i = 0; i < budgets.size(); ++i)
        report(what, "kernel", name, page, list.args.count, budgets[i], of_budgets[i], right);
    }
}

/// The same list through a part table instead of indices, as general lists go.
void time_parts(Probe& probe, cuda::Address remote, const std::vector<std::size_t>& pages) {
  gpu::DeviceMemory tables = must(gpu::DeviceMemory::allocate(probe.device, 20 * 16384));
  gpu::PinnedMemory staging = must(gpu::PinnedMemory::allocate(probe.device, 20 * 16384));
  for (const std::size_t page : pages)
    for (const auto& [name, read] : directions) {
      const cuda::Address from = read ? remote : probe.local.address(),
                          to = read ? probe.local.address() : remote;
      const Scattered list = scatter(probe, from, to, page);
      const std::size_t count = list.from.size();
      auto* const words = reinterpret_cast<std::uint64_t*>(staging.bytes().data());
      for (std::size_t i = 0; i < count; ++i) {
        words[i] = list.from[i] * page;
        words[count + i] = list.to[i] * page;
        reinterpret_cast<std::uint32_t*>(words + 2 * count)[i] = static_cast<std::uint32_t>(page);
      }
      probe.copy(tables.address(), staging.address(), 20 * count);
      headrace_move_runs_v1 args{};
      args.struct_size = sizeof args;
      args.sources = tables.address(), args.targets = tables.address() + 8 * count,
      args.lengths = tables.address() + 16 * count;
      args.source_base = from, args.target_base = to, args.count = count;
      args.done = probe.done();
      report("parts", "kernel", name, page, count, 0,
             probe.time([&] { must(probe.driver, probe.launch(args, probe.stream.handle()), "move_runs"); }));
    }
}

struct Shape {
  std::string name;
  unsigned threads;
  unsigned shared_bytes;
};

void time_shapes(Probe& probe, cuda::Address remote, const std::vector<std::size_t>& pages) {
  std::vector<Shape> shapes;
  for (const char* name :
       {"256_8_no_allocate", "256_16_no_allocate", "512_4_no_allocate", "512_8_no_allocate",
        "512_16_no_allocate", "1024_4_no_allocate", "1024_8_no_allocate", "512_8_plain", "512_8_streaming"})
    shapes.push_back({std::string("probe_") + name, static_cast<unsigned>(std::stoi(name)), 0});
  const auto bulk = [&](unsigned warps, unsigned stages, unsigned chunk) {
    shapes.push_back(
        {fmt::format("probe_bulk_{}_{}_{}", warps, stages, chunk), warps * 32, warps * stages * (chunk + 8)});
  };
  bulk(1, 24, 4096), bulk(4, 12, 4096), bulk(8, 6, 4096), bulk(4, 6, 8192), bulk(4, 24, 2048);
  for (const Shape& shape : shapes) {
    cuda::Function function = nullptr;
    if (probe.driver.module_get_function(&function, probe.module, shape.name.c_str()) !=
        cuda::Outcome::success)
      continue;
    if (shape.shared_bytes > 48 * 1024)
      must(probe.driver,
           probe.driver.func_set_attribute(function, cuda::FunctionAttribute::max_dynamic_shared_bytes,
                                           static_cast<int>(shape.shared_bytes)),
           "shared memory");
    for (const std::size_t page : pages)
      for (const auto& [name, read] : directions) {
        const cuda::Address from = read ? remote : probe.local.address(),
                            to = read ? probe.local.address() : remote;
        if (page == pages.front()) {
          probe.set(remote, probe.host_remote, pool_bytes, page + 3);
          probe.set(probe.local.address(), probe.host_local, pool_bytes, page + 4);
        }
        Scattered list = scatter(probe, from, to, page);
        for (const unsigned blocks : {4u, 8u, 16u, 32u, 64u, 132u, 264u}) {
          cuda::LaunchConfig config;
          config.grid_x = blocks;
          config.block_x = shape.threads;
          config.shared_bytes = shape.shared_bytes;
          config.stream = probe.stream.handle();
          void* parameters[] = {&list.args};
          report("shape", shape.name, name, page, list.args.count, blocks,
                 probe.time(
                     [&] {
                       must(probe.driver,
                            probe.driver.launch_kernel_ex(&config, function, parameters, nullptr),
                            shape.name);
                     },
                     5));
        }
        if (page == pages.front())
          probe.expect(arrived(probe, list, to, read ? probe.host_remote : probe.host_local),
                       fmt::format("{} {} of {} bytes", shape.name, name, page));
      }
  }
}

/// A copy call for each page, dealt to several streams; the end is told by a stream write-value.
void time_copy_engines(Probe& probe, cuda::Address remote, const char* what,
                       const std::vector<std::size_t>& pages) {
  std::vector<gpu::Stream> streams;
  std::vector<gpu::Event> joined;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(must(gpu::Stream::make(probe.device)));
    joined.push_back(must(gpu::Event::make(probe.device)));
  }
  for (const std::size_t page : pages)
    for (const auto& [name, read] : directions) {
      const cuda::Address from = read ? remote : probe.local.address(),
                          to = read ? probe.local.address() : remote;
      const Scattered list = scatter(probe, from, to, page, 4096);
      for (const std::size_t used : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
        if (used > list.from.size()) continue;
        const Times times = probe.time([&] {
          for (std::size_t i = 0; i < list.from.size(); ++i)
            must(probe.driver,
                 probe.driver.memcpy_async(to + list.to[i] * page, from + list.from[i] * page, page,
                                           streams[i % used].handle()),
                 "cuMemcpyAsync");
          for (std::size_t i = 1; i < used; ++i) {
            must(joined[i].record(streams[i].handle()));
            must(joined[i].hold_back(streams[0].handle()));
          }
          must(probe.driver,
               probe.driver.stream_write_value_64(streams[0].handle(), probe.word_memory.address(),
                                                  probe.told + 1, 0),
               "cuStreamWriteValue64");
        });
        report(what, fmt::format("copy_engine_{}", used), name, page, list.from.size(), 0, times);
      }
    }
}

// ------------------------------------------------------------------ how soon, one page

void report_single(const char* method, const char* direction, std::size_t page, const Times& times,
                   double call_us) {
  fmt::print(
      "{{\"what\": \"single\", \"method\": \"{}\", \"direction\": \"{}\", \"page\": {}, \"p50_us\": {:.2f}, "
      "\"p99_us\": {:.2f}, "
      "\"best_us\": {:.2f}, \"call_us\": {:.2f}}}\n",
      method, direction, page, times.median * 1e6, times.p99 * 1e6, times.best * 1e6, call_us);
  std::fflush(stdout);
}

void time_singles(Probe& probe, cuda::Address remote, std::size_t page, int times) {
  double in_call = 0;
  int calls = 0;
  const auto measure = [&](const char* method, const char* direction,
                           const std::function<cuda::Outcome()>& post) {
    in_call = 0, calls = 0;
    const Times seen = probe.time(
        [&] {
          const auto begin = Clock::now();
          const cuda::Outcome outcome = post();
          in_call += duration<double>(Clock::now() - begin).count();
          ++calls;
          must(probe.driver, outcome, method);
        },
        times);
    report_single(method, direction, page, seen, in_call / calls * 1e6);
  };
  for (const auto& [name, read] : directions) {
    const cuda::Address from = read ? remote : probe.local.address(),
                        to = read ? probe.local.address() : remote;
    headrace_move_few_v1 few{};
    few.struct_size = sizeof few;
    few.count = 1;
    few.sources[0] = from + 4096, few.targets[0] = to + 8192, few.lengths[0] = page;
    measure("few", name, [&] {
      few.done = {probe.word_memory.address(), probe.told + 1, 0};
      return probe.launch(few, probe.stream.handle());
    });
    Scattered list = scatter(probe, from, to, page, 1);
    measure("pages", name, [&] {
      list.args.done = {probe.word_memory.address(), probe.told + 1, probe.state.address()};
      return probe.launch(list.args, probe.stream.handle());
    });
    measure("copy_engine", name, [&] {
      const cuda::Outcome outcome =
          probe.driver.memcpy_async(to + 8192, from + 4096, page, probe.stream.handle());
      if (outcome != cuda::Outcome::success) return outcome;
      return probe.driver.stream_write_value_64(probe.stream.handle(), probe.word_memory.address(),
                                                probe.told + 1, 0);
    });
  }
  headrace_move_few_v1 nothing{};
  nothing.struct_size = sizeof nothing;
  measure("empty_kernel", "none", [&] {
    nothing.done = {probe.word_memory.address(), probe.told + 1, 0};
    return probe.launch(nothing, probe.stream.handle());
  });
  measure("write_value", "none", [&] {
    return probe.driver.stream_write_value_64(probe.stream.handle(), probe.word_memory.address(),
                                              probe.told + 1, 0);
  });
}

/// Kernels that stay: a bare one, which is the least that this machine allows, and the courier without an
/// agent around it.
void time_resident(Probe& probe, cuda::Address remote, int times) {
  constexpr std::size_t page = 4096;
  cuda::Function function = nullptr;
  if (probe.module != nullptr)
    must(probe.driver, probe.driver.module_get_function(&function, probe.module, "probe_resident"),
         "probe_resident");
  auto* const job = reinterpret_cast<std::uint64_t*>(probe.index_staging.bytes().data());
  // Of `do_one`, after some that nobody counts.
  const auto measure = [&](const char* method, const char* direction, std::size_t bytes,
                           const std::function<void(std::uint64_t)>& do_one) {
    std::vector<double> seconds;
    for (std::uint64_t i = 1; i <= static_cast<std::uint64_t>(times); ++i) {
      const auto begin = Clock::now();
      do_one(i);
      if (i > 100) seconds.push_back(duration<double>(Clock::now() - begin).count());
    }
    report_single(method, direction, bytes, summary(std::move(seconds)), 0);
  };
  const auto courier = must(gpu::Courier::make(probe.kernels, {.on = true}));
  constexpr std::size_t places = 256;
  std::mt19937 random(5);
  const auto from_places = shuffled(random, places, pool_bytes / page),
             to_places = shuffled(random, places, pool_bytes / page);
  for (const char* direction : {"none", "read", "write"}) {
    const bool read = direction[0] == 'r';
    const std::size_t bytes = direction[0] == 'n' ? 0 : page;
    const cuda::Address from = read ? remote : probe.local.address(),
                        to = read ? probe.local.address() : remote;
    if (function != nullptr) {
      headrace_move_few_v1 args{};
      args.struct_size = sizeof args;
      args.sources[0] = from, args.targets[0] = to, args.lengths[0] = bytes;
      args.done = {probe.word_memory.address(), static_cast<std::uint64_t>(times),
                   probe.index_staging.address()};
      __atomic_store_n(job, 0, __ATOMIC_RELEASE);
      cuda::LaunchConfig config;
      config.block_x = 256;
      config.stream = probe.stream.handle();
      void* parameters[] = {&args};
      must(probe.driver, probe.driver.launch_kernel_ex(&config, function, parameters, nullptr),
           "probe_resident");
      measure("resident", direction, bytes, [&](std::uint64_t number) {
        __atomic_store_n(job, number, __ATOMIC_RELEASE);
        probe.wait_for(number);
      });
      must(probe.stream.wait_idle());
    }
    // One page again and again, and pages at random places, whose addresses take longer to translate.
    for (const bool scattered : {false, true})
      measure(scattered ? "courier_places" : "courier", direction, bytes, [&](std::uint64_t number) {
        const std::uint64_t first = scattered ? from_places[number % places] * page : 0,
                            second = scattered ? to_places[number % places] * page : 0;
        const std::array runs{gpu::Courier::Run{from + first, to + second, bytes}};
        const auto ticket = courier->post(runs);
        if (!ticket) must(probe.driver, cuda::Outcome::invalid_value, "post to the courier");
        while (courier->look(*ticket) == gpu::Courier::State::pending) {
        }
      });
  }
}

/// Where the time of a small launch goes: bare kernels, on streams of several kinds.
void time_tells(Probe& probe, cuda::Address remote, int times) {
  const gpu::Stream high = must(gpu::Stream::make(probe.device, gpu::Priority::high));
  struct On {
    const char* name;
    cuda::Stream stream;
  };
  for (const char* how : {"32_plain", "32_release", "128_release", "256_plain", "256_release", "256_fence"}) {
    cuda::Function function = nullptr;
    const std::string kernel = std::string("probe_tell_") + how;
    if (probe.driver.module_get_function(&function, probe.module, kernel.c_str()) != cuda::Outcome::success)
      continue;
    for (const auto& [stream_name, stream] :
         {On{"", probe.stream.handle()}, On{"_high", high.handle()}, On{"_legacy", cuda::legacy_stream}})
      for (const char* direction : {"none", "read", "write"}) {
        const bool read = direction[0] == 'r';
        headrace_move_few_v1 args{};
        args.struct_size = sizeof args;
        args.count = direction[0] == 'n' ? 0 : 1;
        args.sources[0] = read ? remote : probe.local.address(),
        args.targets[0] = read ? probe.local.address() : remote;
        args.lengths[0] = 4096;
        cuda::LaunchConfig config;
        config.block_x = static_cast<unsigned>(std::stoi(how));
        config.stream = stream;
        void* parameters[] = {&args};
        double in_call = 0;
        int calls = 0;
        const Times seen = probe.time(
            [&] {
              args.done = {probe.word_memory.address(), probe.told + 1, 0};
              const auto begin = Clock::now();
              must(probe.driver, probe.driver.launch_kernel_ex(&config, function, parameters, nullptr),
                   kernel);
              in_call += duration<double>(Clock::now() - begin).count();
              ++calls;
            },
            times);
        report_single((kernel + stream_name).c_str(), direction, args.count == 0 ? 0 : 4096, seen,
                      in_call / calls * 1e6);
      }
  }
}

/// Large copies: whole and in parts, by address alone and with both contexts named.
void time_bulk(Probe& probe, cuda::Address remote) {
  for (const std::size_t part : {std::size_t{16} << 20, std::size_t{64} << 20, pool_bytes})
    for (const auto& [name, read] : directions)
      for (const bool peer : {false, true}) {
        const cuda::Address from = read ? remote : probe.local.address(),
                            to = read ? probe.local.address() : remote;
        const cuda::Stream stream = probe.stream.handle();
        const cuda::Context context = probe.device->context();
        const Times times = probe.time([&] {
          for (std::size_t at = 0; at < pool_bytes; at += part)
            must(probe.driver,
                 peer ? probe.driver.memcpy_peer_async(to + at, context, from + at, context, part, stream)
                      : probe.driver.memcpy_async(to + at, from + at, part, stream),
                 "copy");
          must(probe.driver,
               probe.driver.stream_write_value_64(stream, probe.word_memory.address(), probe.told + 1, 0),
               "tell");
        });
        report("bulk", peer ? "peer_copy" : "copy", name, part, pool_bytes / part, 0, times);
      }
}

// ------------------------------------------------------------------ long pages

struct LongCopy {
  cuda::Address to = 0, from = 0;
  std::size_t bytes = 0;
};

/// What hides the time between two copies of long pages: several streams, calls, graphs, a kernel beside the
/// copies, the copy engines of both GPUs. Every way moves the same scattered pages, and its bytes are
/// compared.
class LongPages {
 public:
  LongPages(Probe& probe, cuda::Address remote) : probe_(probe), remote_(remote) {
    for (int i = 0; i < 4; ++i) {
      streams_.push_back(must(gpu::Stream::make(probe.device)));
      events_.push_back(must(gpu::Event::make(probe.device)));
    }
    must(probe.driver, probe.driver.memset_d8_async(blank_.address(), 0, pool_bytes, stream(0)), "clear");
    must(streams_[0].wait_idle());
    open_owner();
  }

  void run() {
    for (const std::size_t page : pages)
      for (const auto& [name, read] : directions) run(page, name, read);
    print();
  }

 private:
  static constexpr std::size_t mib = std::size_t{1} << 20;
  static constexpr std::size_t pages[] = {mib, 4 * mib, 16 * mib, 32 * mib, 64 * mib};
  static constexpr std::size_t part_bytes = 65536;  // of a kernel's warp

  [[nodiscard]] cuda::Stream stream(std::size_t i) const { return streams_[i].handle(); }

  /// The GPU of the far memory, driven from here: its copy engine may take a part.
  void open_owner() {
    if (probe_.owner.device == probe_.device->ordinal()) return;
    auto device = Device::open(probe_.driver, probe_.owner.device);
    if (!device) return;
    const gpu::ContextGuard guard(**device);
    auto memory = gpu::PeerMemory::open(*device, shared_by_handle(probe_.owner));
    auto access = gpu::enable_peer_access(**device, *probe_.device);
    auto made = gpu::Stream::make(*device);
    if (!memory || !access || !made) {
      fmt::print(stderr, "the owner's GPU takes no part: {}\n",
                 !memory   ? memory.error().message
                 : !access ? access.error().message
                           : made.error().message);
      return;
    }
    owner_memory_.emplace(std::move(*memory));
    owner_stream_.emplace(std::move(*made));
  }

  // ---- one list

  void run(std::size_t page, const char* direction, bool read) {
    const cuda::Address near = probe_.local.address();
    target_ = read ? near : remote_;
    source_ = read ? remote_ : near;
    gpu::PinnedMemory& host = read ? probe_.host_remote : probe_.host_local;
    probe_.set(source_, host, pool_bytes, page + (read ? 5 : 6));
    std::mt19937 random(static_cast<unsigned>(page / mib));
    const std::size_t count = pool_bytes / page;
    list_.clear();
    Scattered expected;
    expected.from = shuffled(random, count, count);
    expected.to = shuffled(random, count, count);
    expected.args.source.columns.page_bytes = page;
    for (std::size_t i = 0; i < count; ++i)
      list_.push_back({target_ + expected.to[i] * page, source_ + expected.from[i] * page, page});
    const auto measure = [&](const std::string& method, const std::function<void()>& post) {
      probe_.copy(target_, blank_.address(), pool_bytes);
      const Times times = time(post);
      if (failed_ != cuda::Outcome::success) {
        fmt::print(stderr, "{} {} of {}: {}\n", method, direction, page,
                   cuda::outcome_text(probe_.driver, failed_));
        row(method).emplace_back("-");
        return;
      }
      const bool right = arrived(probe_, expected, target_, host);
      report("long", method, direction, page, count, 0, times, right);
      row(method).push_back(gb_per_s(times));
      probe_.expect(right, fmt::format("long {} {} of {} bytes", method, direction, page));
    };
    copies(measure);
    graphs(measure);
    kernels(measure);
    if (owner_stream_) measure("engines_of_both_gpus", [&] { by_both(read); });
    measure_whole(direction);
  }

  /// All 256 MiB in one copy: what the engine gives without a gap.
  void measure_whole(const char* direction) {
    const Times times = time([&] {
      ask(probe_.driver.memcpy_async(target_, source_, pool_bytes, stream(0)));
      tell(0, stream(0));
    });
    report("long", "whole", direction, pool_bytes, 1, 0, times);
    row("whole").push_back(gb_per_s(times));
  }

  static std::string gb_per_s(const Times& times) {
    return fmt::format("{:.0f}", static_cast<double>(pool_bytes) / times.median / 1e9);
  }

  // ---- posts

  using Measure = std::function<void(const std::string&, const std::function<void()>&)>;

  void ask(cuda::Outcome outcome) {
    if (failed_ == cuda::Outcome::success) failed_ = outcome;
  }
  void copy(const LongCopy& page, cuda::Stream on) {
    ask(probe_.driver.memcpy_async(page.to, page.from, page.bytes, on));
  }
  /// The word of this number follows what the stream holds.
  void tell(std::size_t word, cuda::Stream on) {
    ask(probe_.driver.stream_write_value_64(on, probe_.word_memory.address() + 64 * word, probe_.told + 1,
                                            0));
    words_ |= 1u << word;
  }

  void copies(const Measure& measure) {
    for (const std::size_t used : {std::size_t{1}, std::size_t{2}, std::size_t{4}})
      measure(fmt::format("streams_{}", used), [&, used] {
        deal(used);
        for (std::size_t i = 0; i < used; ++i) tell(i, stream(i));
      });
    measure("streams_2_joined", [&] {
      fork(2), deal(2), join(2);
      tell(0, stream(0));
    });
    measure("two_priorities", [&] {
      for (std::size_t i = 0; i < list_.size(); ++i) copy(list_[i], i % 2 == 0 ? stream(0) : high_.handle());
      tell(0, stream(0)), tell(1, high_.handle());
    });
    if (owner_stream_)
      measure("peer_calls", [&] {
        const cuda::Context near = probe_.device->context(), far = owner_stream_->device().context();
        const bool read = source_ == remote_;
        for (const LongCopy& page : list_)
          ask(probe_.driver.memcpy_peer_async(page.to, read ? near : far, page.from, read ? far : near,
                                              page.bytes, stream(0)));
        tell(0, stream(0));
      });
    measure("rows_of_2", [&] { in_pairs(1); });
    measure("rows_of_2_streams_2", [&] { in_pairs(2); });
    using cuda::SourceOrder;
    for (const auto& [name, order, flags] : {std::tuple{"batch", SourceOrder::stream, 0u},
                                             {"batch_overlap", SourceOrder::stream, 1u},
                                             {"batch_any_overlap", SourceOrder::any, 1u}})
      measure(name, [&, order = order, flags = flags] { in_batches(1, order, flags); });
    measure("batch_streams_2", [&] { in_batches(2, SourceOrder::stream, 1); });
  }

  void deal(std::size_t used) {
    for (std::size_t i = 0; i < list_.size(); ++i) copy(list_[i], stream(i % used));
  }
  void fork(std::size_t used) {
    must(events_[0].record(stream(0)));
    for (std::size_t i = 1; i < used; ++i) must(events_[0].hold_back(stream(i)));
  }
  void join(std::size_t used) {
    for (std::size_t i = 1; i < used; ++i) {
      must(events_[i].record(stream(i)));
      must(events_[i].hold_back(stream(0)));
    }
  }

  /// Two pages whose second lies behind the first on both sides are two rows of one copy.
  void in_pairs(std::size_t used) {
    constexpr std::size_t longest_pitch = (std::size_t{1} << 31) - 1;
    std::vector<LongCopy> sorted = list_;
    std::ranges::sort(sorted, {}, &LongCopy::from);
    std::vector<bool> taken(sorted.size());
    std::size_t turn = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      if (taken[i]) continue;
      const cuda::Stream on = stream(turn++ % used);
      std::size_t j = i + 1;
      while (j < sorted.size() &&
             (taken[j] || sorted[j].to < sorted[i].to || sorted[j].from - sorted[i].from > longest_pitch))
        ++j;
      if (j == sorted.size()) {
        copy(sorted[i], on);
        continue;
      }
      taken[j] = true;
      cuda::Copy2D rows;
      rows.source_device = sorted[i].from, rows.target_device = sorted[i].to;
      rows.source_pitch_bytes = sorted[j].from - sorted[i].from;
      rows.target_pitch_bytes = sorted[j].to - sorted[i].to;
      rows.width_bytes = sorted[i].bytes, rows.height = 2;
      ask(probe_.driver.memcpy_2d_async(&rows, on));
    }
    for (std::size_t i = 0; i < used; ++i) tell(i, stream(i));
  }

  void in_batches(std::size_t used, cuda::SourceOrder order, unsigned flags) {
    for (std::size_t k = 0; k < used; ++k) {
      std::vector<cuda::Address> targets, sources;
      std::vector<std::size_t> bytes;
      for (std::size_t i = k; i < list_.size(); i += used)
        targets.push_back(list_[i].to), sources.push_back(list_[i].from), bytes.push_back(list_[i].bytes);
      cuda::CopyAttributes attributes;
      attributes.source_order = order, attributes.flags = flags;
      std::size_t first = 0, failed = 0;
      ask(probe_.driver.memcpy_batch_async(targets.data(), sources.data(), bytes.data(), bytes.size(),
                                           &attributes, &first, 1, &failed, stream(k)));
      tell(k, stream(k));
    }
  }

  void graphs(const Measure& measure) {
    for (const std::size_t used : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
      cuda::Graph graph = nullptr;
      cuda::GraphExec exec = nullptr;
      must(probe_.driver, probe_.driver.stream_begin_capture(stream(0), cuda::CaptureMode::relaxed),
           "capture");
      fork(used), deal(used), join(used);
      must(probe_.driver, probe_.driver.stream_end_capture(stream(0), &graph), "capture");
      must(probe_.driver, probe_.driver.graph_instantiate(&exec, graph, 0), "instantiate");
      measure(fmt::format("graph_{}", used), [&] {
        ask(probe_.driver.graph_launch(exec, stream(0)));
        tell(0, stream(0));
      });
      must(probe_.driver, probe_.driver.graph_exec_destroy(exec), "destroy");
      must(probe_.driver, probe_.driver.graph_destroy(graph), "destroy");
    }
  }

  // ---- a kernel takes the last bytes of the list, copies the others

  void kernels(const Measure& measure) {
    for (const std::uint32_t multiprocessors : {64u, 0u}) {
      const auto [copied, args] = share(16, multiprocessors);
      measure(fmt::format("kernel_{}", multiprocessors), [&, args = args] { launch(args); });
    }
    for (const auto& [sixteenths, multiprocessors] :
         {std::pair{1u, 8u}, {1u, 16u}, {2u, 8u}, {2u, 16u}, {2u, 32u}, {3u, 16u}, {4u, 32u}}) {
      const auto [copied, args] = share(sixteenths, multiprocessors);
      measure(fmt::format("beside_{}of16_sm{}", sixteenths, multiprocessors),
              [&, copied = copied, args = args] {
                copy(copied.front(), stream(0));
                launch(args);
                for (std::size_t i = 1; i < copied.size(); ++i) copy(copied[i], stream(0));
                tell(0, stream(0));
              });
    }
  }

  /// What is left to copies when a kernel takes so much, and the kernel's argument; its table is on the GPU.
  std::pair<std::vector<LongCopy>, headrace_move_runs_v1> share(std::uint32_t sixteenths,
                                                                std::uint32_t multiprocessors) {
    std::vector<LongCopy> copied = list_;
    std::vector<std::uint64_t> sources, targets;
    for (std::size_t left = pool_bytes / 16 * sixteenths; left > 0; left -= part_bytes) {
      LongCopy& last = copied.back();
      last.bytes -= part_bytes;
      sources.push_back(last.from + last.bytes - source_);
      targets.push_back(last.to + last.bytes - target_);
      if (last.bytes == 0) copied.pop_back();
    }
    const std::size_t count = sources.size();
    auto* const words = reinterpret_cast<std::uint64_t*>(probe_.index_staging.bytes().data());
    std::ranges::copy(sources, words);
    std::ranges::copy(targets, words + count);
    std::fill_n(reinterpret_cast<std::uint32_t*>(words + 2 * count), count,
                static_cast<std::uint32_t>(part_bytes));
    const cuda::Address table = probe_.indices.address();
    probe_.copy(table, probe_.index_staging.address(), 20 * count);
    headrace_move_runs_v1 args{};
    args.struct_size = sizeof args;
    args.sources = table, args.targets = table + 8 * count, args.lengths = table + 16 * count;
    args.source_base = source_, args.target_base = target_, args.count = count;
    args.most_multiprocessors = multiprocessors;
    return {std::move(copied), args};
  }
  void launch(headrace_move_runs_v1 args) {
    args.done = {probe_.word_memory.address() + 64, probe_.told + 1, probe_.state.address()};
    ask(probe_.launch(args, high_.handle()));
    words_ |= 2;
  }

  /// Every other page by the engine of the far GPU.
  void by_both(bool read) {
    const auto seen_there = [&](cuda::Address address) {
      return (read ? address == source_ : address == target_) ? owner_memory_->address()
                                                              : probe_.local.address();
    };
    for (std::size_t i = 0; i < list_.size(); i += 2) copy(list_[i], stream(0));
    tell(0, stream(0));
    const gpu::ContextGuard guard(owner_stream_->device());
    for (std::size_t i = 1; i < list_.size(); i += 2)
      copy({list_[i].to - target_ + seen_there(target_), list_[i].from - source_ + seen_there(source_),
            list_[i].bytes},
           owner_stream_->handle());
    tell(1, owner_stream_->handle());
  }

  // ---- times

  Times time(const std::function<void()>& post) {
    std::vector<double> seconds;
    failed_ = cuda::Outcome::success;
    for (int i = 0; i < probe_.rounds + 2; ++i) {
      words_ = 0;
      const auto begin = Clock::now();
      post();
      if (failed_ != cuda::Outcome::success) {
        must(probe_.driver, probe_.driver.ctx_synchronize(), "synchronise");
        ++probe_.told;
        return {};
      }
      wait_for_words(probe_.told + 1);
      ++probe_.told;
      if (i >= 2) seconds.push_back(duration<double>(Clock::now() - begin).count());
    }
    return summary(std::move(seconds));
  }
  void wait_for_words(std::uint64_t value) const {
    const auto limit = Clock::now() + std::chrono::seconds(20);
    for (std::size_t i = 0; i < 4; ++i) {
      if ((words_ >> i & 1) == 0) continue;
      std::atomic_ref<std::uint64_t> word(probe_.word()[8 * i]);
      for (std::uint64_t spins = 1; word.load(std::memory_order_acquire) != value; ++spins)
        if (spins % (1 << 24) == 0 && Clock::now() > limit) {
          fmt::print(stderr, "word {} was not told in 20 s\n", i);
          std::exit(1);
        }
    }
  }

  // ---- the table that people read

  std::vector<std::string>& row(const std::string& method) {
    const auto found =
        std::ranges::find(rows_, method, &std::pair<std::string, std::vector<std::string>>::first);
    return found != rows_.end() ? found->second
                                : rows_.emplace_back(method, std::vector<std::string>{}).second;
  }
  void print() const {
    fmt::print(stderr, "{:24}", "GB/s, read write of MiB");
    for (const std::size_t page : pages) fmt::print(stderr, "{:>8}", page / mib);
    for (const auto& [method, values] : rows_) {
      fmt::print(stderr, "\n{:24}", method);
      for (const std::string& value : values) fmt::print(stderr, "{:>4}", value);
    }
    fmt::print(stderr, "\n{} lists compared, {} differ\n", probe_.checks, probe_.failures);
  }

  Probe& probe_;
  const cuda::Address remote_;
  std::vector<gpu::Stream> streams_;
  std::vector<gpu::Event> events_;
  const gpu::Stream high_ = must(gpu::Stream::make(probe_.device, gpu::Priority::high));
  const gpu::DeviceMemory blank_ = must(gpu::DeviceMemory::allocate(probe_.device, pool_bytes));
  std::optional<gpu::PeerMemory> owner_memory_;
  std::optional<gpu::Stream> owner_stream_;
  std::vector<LongCopy> list_;
  cuda::Address source_ = 0, target_ = 0;
  cuda::Outcome failed_ = cuda::Outcome::success;
  unsigned words_ = 0;
  std::vector<std::pair<std::string, std::vector<std::string>>> rows_;
};

// ------------------------------------------------------------------ as the backend does it

/// Requests as they come from the host's table: how long making one takes, and a post of it until its end is
/// seen.
void time_prepared(Probe& probe, cuda::Address remote) {
  const auto mover = must(gpu::Mover::make(probe.kernels));
  const gpu::Stream stream = must(gpu::Stream::make(probe.device, gpu::Priority::high));
  const auto address_of = [](void* region) { return *static_cast<cuda::Address*>(region); };
  cuda::Address here = probe.local.address(), there = remote;
  for (const auto& [page, count] :
       {std::pair<std::size_t, std::size_t>{4096, 1}, {4096, 8}, {4096, 16384}, {65536, 4096}})
    for (const auto& [name, read] : directions) {
      std::mt19937 random(5);
      const auto from = shuffled(random, count, pool_bytes / page),
                 to = shuffled(random, count, pool_bytes / page);
      const auto side = [page = page](const std::vector<std::uint32_t>& indices, void** region) {
        headrace_side_v1 view{};
        view.struct_size = sizeof view;
        view.regions = region;
        view.region_count = 1;
        view.columns.indices = indices.data();
        view.columns.stride_bytes = view.columns.page_bytes = page;
        return view;
      };
      void* near_region = &here;
      void* far_region = &there;
      const headrace_side_v1 local = side(to, &near_region), far = side(from, &far_region);
      headrace_prepare_v1 args{};
      args.struct_size = sizeof args;
      args.op = read ? HEADRACE_READ : HEADRACE_WRITE;
      args.count = count;
      args.bytes = count * page;
      args.local = &local;
      args.remote = &far;
      std::vector<double> making, posting;
      for (int i = 0; i < 50; ++i) {
        const auto begin = Clock::now();
        auto move = must(gpu::PreparedMove::prepare(mover, args, address_of, address_of));
        making.push_back(duration<double>(Clock::now() - begin).count());
        for (int post = 0; post < 20; ++post) {
          const auto posted = Clock::now();
          must(move.post(stream.handle()));
          while (!move.poll_done()) {
          }
          if (post > 0) posting.push_back(duration<double>(Clock::now() - posted).count());
        }
      }
      const Times made = summary(std::move(making)), done = summary(std::move(posting));
      fmt::print(
          "{{\"what\": \"prepared\", \"direction\": \"{}\", \"page\": {}, \"count\": {}, \"make_us\": "
          "{:.1f}, \"p50_us\": {:.2f}, "
          "\"p99_us\": {:.2f}, \"gb_per_s_of_all\": {:.1f}}}\n",
          name, page, count, made.median * 1e6, done.median * 1e6, done.p99 * 1e6,
          static_cast<double>(args.bytes) / done.median / 1e9);
      std::fflush(stdout);
    }
}

// ------------------------------------------------------------------ host memory

void time_host(Probe& probe) {
  // A file without a name, as agents share it; mapped and pinned here, where a peer would map and pin it too.
  const UniqueFd file(::memfd_create("headrace-probe", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(pool_bytes)) != 0) return;
  void* const at =
      ::mmap(nullptr, pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (at == MAP_FAILED) return;
  {
    const auto begin = Clock::now();
    auto pinned = must(gpu::PinnedMemory::pin(probe.device, {static_cast<std::byte*>(at), pool_bytes}));
    fmt::print("{{\"what\": \"pin\", \"bytes\": {}, \"ms\": {:.1f}}}\n", pool_bytes,
               duration<double>(Clock::now() - begin).count() * 1e3);
    time_pages(probe, pinned.address(), "host", {512, 4096, 65536, std::size_t{16} << 20},
               {2, 4, 8, 16, 32, 0});
    time_copy_engines(probe, pinned.address(), "host", {65536, std::size_t{1} << 20, std::size_t{16} << 20});
  }
  ::munmap(at, pool_bytes);
}

void resynchronise(Probe& probe) {
  // Streams have told the word without the kernels' count knowing: let it count from there.
  headrace_move_state_v1 state{0, 0, probe.told};
  std::memcpy(probe.index_staging.bytes().data(), &state, sizeof state);
  probe.copy(probe.state.address(), probe.index_staging.address(), sizeof state);
}

struct Options {
  bool quick = false;          // fewer repetitions
  bool shapes = false;         // compares shapes of the kernel
  bool correct_only = false;   // nothing is timed
  bool pid_namespace = false;  // the owner lives in one of its own; needs root
  bool long_pages = false;     // long pages alone, by every way there is
  bool resident = false;       // kernels that stay alone
};

Probe open_probe(int socket) {
  auto driver = must(cuda::load_driver());
  auto device = must(Device::open(driver, 0));
  for (const auto& info : must(gpu::list_devices(driver)))
    fmt::print(
        "{{\"what\": \"gpu\", \"ordinal\": {}, \"name\": \"{}\", \"capability\": \"{}.{}\", "
        "\"multiprocessors\": {}, \"pci\": "
        "\"{}\", \"memory\": {}, \"descriptors\": {}}}\n",
        info.ordinal, info.name, info.major, info.minor, info.multiprocessors, info.pci, info.memory_bytes,
        info.shares_descriptors);
  auto [says, fd] = receive_fd(socket);
  const auto begin = Clock::now();
  const auto library = must(gpu::KernelLibrary::load());
  auto kernels = must(gpu::Kernels::open(library, device));
  fmt::print("{{\"what\": \"kernels\", \"image\": \"{}\", \"load_ms\": {:.2f}}}\n", kernels->image(),
             duration<double>(Clock::now() - begin).count() * 1e3);
  const auto pinned = [&](std::size_t bytes) { return must(gpu::PinnedMemory::allocate(device, bytes)); };
  const auto memory = [&](std::size_t bytes) { return must(gpu::DeviceMemory::allocate(device, bytes)); };
  Probe probe{driver,
              device,
              kernels,
              must(gpu::KernelFamily<GatherScatter>::of(kernels, HEADRACE_GATHER_SCATTER_FAMILY,
                                                        HEADRACE_GATHER_SCATTER_FAMILY_VERSION)),
              must(gpu::Stream::make(device)),
              memory(pool_bytes),
              {},
              {},
              pinned(pool_bytes),
              pinned(pool_bytes),
              pinned(pool_bytes),
              pinned(4096),
              memory(4096),
              memory(std::size_t{8} << 20),
              pinned(std::size_t{8} << 20)};
  probe.owner = says;
  resynchronise(probe);
  const auto opening = Clock::now();
  probe.remote_ipc.emplace(must(gpu::PeerMemory::open(device, shared_by_handle(says))));
  fmt::print("{{\"what\": \"import\", \"by\": \"ipc\", \"owner_gpu\": {}, \"ms\": {:.2f}}}\n", says.device,
             duration<double>(Clock::now() - opening).count() * 1e3);
  if (fd) {
    gpu::SharedMemory shared;
    shared.sharing = gpu::Sharing::descriptor;
    shared.bytes = pool_bytes;
    shared.pieces.push_back({std::move(fd), says.piece_bytes});
    const auto mapping = Clock::now();
    auto mapped = gpu::PeerMemory::open(device, shared);
    if (mapped)
      probe.remote_vmm.emplace(std::move(*mapped));
    else
      fmt::print("{{\"what\": \"import\", \"by\": \"descriptor\", \"error\": \"{}\"}}\n",
                 mapped.error().message);
    fmt::print("{{\"what\": \"import\", \"by\": \"descriptor\", \"ms\": {:.2f}}}\n",
               duration<double>(Clock::now() - mapping).count() * 1e3);
  }
  return probe;
}

void open_shapes(Probe& probe) {
  for (std::uint64_t i = 0; i < headrace_probe_image_count; ++i)
    if (probe.driver.module_load_data(&probe.module, headrace_probe_images[i].data) == cuda::Outcome::success)
      return;
  fmt::print("{{\"what\": \"shape\", \"error\": \"no image runs here\"}}\n");
}

int end(const Probe& probe);

int run(int socket, const Options& options) {
  const bool quick = options.quick;
  Probe probe = open_probe(socket);
  const gpu::ContextGuard guard(*probe.device);
  const cuda::Address ipc = probe.remote_ipc->address();
  if (options.resident) {
    open_shapes(probe);
    time_resident(probe, ipc, quick ? 2000 : 20000);
    return end(probe);
  }
  if (options.long_pages) {
    LongPages(probe, ipc).run();
    return end(probe);
  }
  check_odd_moves(probe, ipc, "ipc", quick ? 60 : 300);
  if (probe.remote_vmm) check_odd_moves(probe, probe.remote_vmm->address(), "descriptor", quick ? 20 : 60);
  if (options.correct_only) return end(probe);

  constexpr std::size_t mib = std::size_t{1} << 20;
  const std::vector<std::size_t> all_pages{512, 1024, 2048, 4096, 16384, 65536, 262144, mib, 16 * mib};
  time_pages(probe, ipc, "pages", all_pages, {4, 8, 16, 32, 64, 0});
  if (probe.remote_vmm)
    time_pages(probe, probe.remote_vmm->address(), "pages_by_descriptor", {4096, mib}, {16, 0});
  time_pages(probe, ipc, "pages_odd", {4096 + 8, 65536 + 4, 1000, 520}, {16, 0});
  time_parts(probe, ipc, {4096, 16384, 65536});
  open_shapes(probe);
  time_singles(probe, ipc, 4096, quick ? 500 : 5000);
  if (probe.module != nullptr) time_tells(probe, ipc, quick ? 300 : 2000);
  time_bulk(probe, ipc);
  time_prepared(probe, ipc);
  time_singles(probe, ipc, 65536, quick ? 200 : 1000);
  resynchronise(probe);
  time_copy_engines(probe, ipc, "pages", {4096, 65536, 262144, mib, 16 * mib});
  resynchronise(probe);
  time_host(probe);
  resynchronise(probe);
  if (probe.module != nullptr && options.shapes)  // last: what is tried out here may fail
    time_shapes(probe, ipc,
                quick ? std::vector<std::size_t>{4096} : std::vector<std::size_t>{4096, 65536, mib});
  return end(probe);
}

int end(const Probe& probe) {
  fmt::print("{{\"what\": \"end\", \"checks\": {}, \"failed\": {}}}\n", probe.checks, probe.failures);
  return probe.failures == 0 ? 0 : 1;
}

/// Returns in a child that is number 1 of its own namespace. The process between waits: one that has left its
/// namespace may not start threads, which the driver does.
void enter_pid_namespace() {
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    std::perror("unshare");
    ::_exit(1);
  }
  const pid_t inner = ::fork();
  if (inner == 0) {
    // The driver looks itself up in /proc.
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("proc", "/proc", "proc", 0, nullptr) != 0) std::perror("mount /proc");
    return;
  }
  ::waitpid(inner, nullptr, 0);
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--shapes") {
      options.shapes = true;
    } else if (argument == "--correct") {
      options.correct_only = true;
    } else if (argument == "--pid-namespace") {
      options.pid_namespace = true;
    } else if (argument == "--long-pages") {
      options.long_pages = true;
    } else if (argument == "--resident") {
      options.resident = true;
    } else {
      fmt::print(
          stderr,
          "unknown option {}: --quick, --shapes, --correct, --pid-namespace, --long-pages, --resident\n",
          argument);
      return 2;
    }
  }
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    std::perror("socketpair");
    return 1;
  }
  const pid_t owner = ::fork();  // before either touches the driver
  if (owner == 0) {
    ::close(sockets[0]);
    if (options.pid_namespace) enter_pid_namespace();
    own(sockets[1]);
  }
  ::close(sockets[1]);
  const int failed = run(sockets[0], options);
  ::close(sockets[0]);
  ::waitpid(owner, nullptr, 0);
  return failed;
}
