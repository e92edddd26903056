// SPDX-License-Identifier: Apache-2.0
// What a machine's GPUs give: are the page kernels right, and how fast do pages travel by kernel, by copy
// engine, to host memory, and one at a time. One JSON line a result; the last line says how many checks
// failed.
//
//   bench_gpu_probe [--quick] [--shapes] [--correct] [--pid-namespace]
//
// A child process owns the far memory, on the last GPU: by cudaMalloc (opened by IPC handle), and by the
// virtual memory API (a descriptor). With one GPU both are on it, and "remote" is another process's memory on
// the same GPU.
#include "base/clock.hpp"
#include "gpu/device.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/event.hpp"
#include "gpu/kernel_library.hpp"
#include "gpu/peer_memory.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/prepared_move.hpp"
#include "gpu/stream.hpp"
#include "kernels/gather_scatter/reference.hpp"

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
#include <numeric>
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

// ------------------------------------------------------------------ this process

struct Times {
  double median = 0, best = 0, p99 = 0;  // seconds
};
Times summary(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  return {seconds[seconds.size() / 2], seconds.front(), seconds[seconds.size() * 99 / 100]};
}

struct Probe {
  cuda::DriverTable driver;
  std::shared_ptr<const Device> device;
  std::shared_ptr<const gpu::Kernels> kernels;
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

  [[nodiscard]] std::uint64_t* word() const {
    return reinterpret_cast<std::uint64_t*>(word_memory.bytes().data());
  }
  [[nodiscard]] headrace_move_done_v1 done() const { return {word_memory.address(), 0, state.address()}; }

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

std::vector<std::uint32_t> shuffled(std::mt19937& random, std::size_t count, std::size_t of) {
  std::vector<std::uint32_t> numbers(of);
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::ranges::shuffle(numbers, random);
  numbers.resize(count);
  return numbers;
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
  list.args.source = {source, page, probe.indices.address(), 0, 0};
  list.args.target = {target, page, probe.indices.address() + count * sizeof(std::uint32_t), 0, 0};
  list.args.page_bytes = page;
  list.args.count = count;
  list.args.done = probe.done();
  return list;
}

bool arrived(Probe& probe, const Scattered& list, cuda::Address target,
             const gpu::PinnedMemory& source_host) {
  probe.copy(probe.seen.address(), target, pool_bytes);
  const std::size_t page = list.args.page_bytes;
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

void report(std::string_view what, std::string_view method, const char* direction, std::size_t page,
            std::size_t count, std::uint32_t multiprocessors, const Times& times) {
  const double bytes = static_cast<double>(page) * static_cast<double>(count);
  fmt::print(
      "{{\"what\": \"{}\", \"method\": \"{}\", \"direction\": \"{}\", \"page\": {}, \"count\": {}, "
      "\"multiprocessors\": {}, "
      "\"gb_per_s\": {:.1f}, \"best_gb_per_s\": {:.1f}, \"us\": {:.1f}}}\n",
      what, method, direction, page, count, multiprocessors, bytes / times.median / 1e9,
      bytes / times.best / 1e9, times.median * 1e6);
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
    fill(source, static_cast<std::uint64_t>(2 * number));
    fill(expected, static_cast<std::uint64_t>(2 * number + 1));
    std::ranges::copy(source, probe.seen.bytes().begin());
    probe.copy(from, probe.seen.address(), window);
    std::ranges::copy(expected, probe.seen.bytes().begin());
    probe.copy(to, probe.seen.address(), window);

    const int kind = static_cast<int>(below(3));
    const char* kernel = kind == 0 ? "pages" : kind == 1 ? "parts" : "few";
    std::string shape;
    cuda::Outcome outcome{};
    const auto move_on_host = [&](std::uint64_t source_at, std::uint64_t target_at, std::uint64_t bytes) {
      std::memcpy(expected.data() + (target_at - to), source.data() + (source_at - from), bytes);
    };
    // Parts that do not overlap at the target: cut both windows into slots.
    const std::size_t slot = kind == 0 ? 1 + below(number % 5 == 0 ? 100000 : 9000) : 512 + below(20000);
    const std::size_t slots = window / slot;
    std::mt19937 shuffle(static_cast<unsigned>(number));
    const std::size_t count = kind == 2 ? std::min<std::size_t>(1 + below(8), slots)
                                        : 1 + below(std::min<std::size_t>(slots, 3000));
    const auto source_slots = shuffled(shuffle, count, slots), target_slots = shuffled(shuffle, count, slots);
    if (kind == 0) {
      const bool vectors = number % 3 == 0 && slot >= 16;
      headrace_move_pages_v1 args{};
      args.struct_size = sizeof args;
      const std::size_t stride = vectors ? slot / 16 * 16 : slot;
      args.page_bytes = vectors ? stride : 1 + below(slot);
      const std::size_t lead = vectors ? 0 : below(slot - args.page_bytes + 1);
      args.source = {from + lead, stride, tables.address(), 0, 0};
      args.target = {to + (vectors ? 0 : below(slot - args.page_bytes + 1)), stride,
                     tables.address() + 4 * count, 0, 0};
      args.count = count;
      args.done = probe.done();
      args.most_multiprocessors = number % 4 == 0 ? 3 : 0;
      auto* const numbers = reinterpret_cast<std::uint32_t*>(staging.bytes().data());
      std::ranges::copy(source_slots, numbers);
      std::ranges::copy(target_slots, numbers + count);
      probe.copy(tables.address(), staging.address(), 8 * count);
      headrace_move_pages_v1 on_host = args;
      on_host.source.indices = reinterpret_cast<std::uint64_t>(numbers);
      on_host.target.indices = reinterpret_cast<std::uint64_t>(numbers + count);
      kernels::reference::each_part(on_host, move_on_host);
      outcome = probe.kernels->move(args, probe.stream.handle());
      shape = fmt::format("{} of {} bytes, stride {}", count, args.page_bytes, stride);
    } else {
      std::vector<std::uint64_t> sources, targets, lengths;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t bytes = below(slot + 1);
        sources.push_back(source_slots[i] * slot + below(slot - bytes + 1));
        targets.push_back(target_slots[i] * slot + below(slot - bytes + 1));
        lengths.push_back(bytes);
        move_on_host(from + sources.back(), to + targets.back(), bytes);
      }
      shape = fmt::format("{} of up to {} bytes", count, slot);
      if (kind == 1) {
        headrace_move_parts_v1 args{};
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
        outcome = probe.kernels->move(args, probe.stream.handle());
      } else {
        headrace_move_few_v1 args{};
        args.struct_size = sizeof args;
        args.count = count;
        for (std::size_t i = 0; i < count; ++i)
          args.sources[i] = from + sources[i], args.targets[i] = to + targets[i],
          args.lengths[i] = lengths[i];
        args.done = probe.done();
        outcome = probe.kernels->move(args, probe.stream.handle());
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
      for (const std::uint32_t budget : budgets) {
        list.args.most_multiprocessors = budget;
        const Times times = probe.time(
            [&] { must(probe.driver, probe.kernels->move(list.args, probe.stream.handle()), "move_pages"); });
        report(what, "kernel", name, page, list.args.count, budget, times);
      }
      probe.expect(arrived(probe, list, to, read ? probe.host_remote : probe.host_local),
                   fmt::format("{} {} of {} bytes", what, name, page));
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
      headrace_move_parts_v1 args{};
      args.struct_size = sizeof args;
      args.sources = tables.address(), args.targets = tables.address() + 8 * count,
      args.lengths = tables.address() + 16 * count;
      args.source_base = from, args.target_base = to, args.count = count;
      args.done = probe.done();
      report("parts", "kernel", name, page, count, 0, probe.time([&] {
        must(probe.driver, probe.kernels->move(args, probe.stream.handle()), "move_parts");
      }));
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
    shapes.push_back({std::string("probe_") + name, static_cast<unsigned>(std::atoi(name)), 0});
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
      return probe.kernels->move(few, probe.stream.handle());
    });
    Scattered list = scatter(probe, from, to, page, 1);
    measure("pages", name, [&] {
      list.args.done = {probe.word_memory.address(), probe.told + 1, probe.state.address()};
      return probe.kernels->move(list.args, probe.stream.handle());
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
    return probe.kernels->move(nothing, probe.stream.handle());
  });
  measure("write_value", "none", [&] {
    return probe.driver.stream_write_value_64(probe.stream.handle(), probe.word_memory.address(),
                                              probe.told + 1, 0);
  });
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
        config.block_x = static_cast<unsigned>(std::atoi(how));
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
        view.indices = indices.data();
        view.stride_bytes = view.page_bytes = page;
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
};

gpu::SharedMemory shared_by_handle(const OwnerSays& says) {
  gpu::SharedMemory shared;
  shared.sharing = gpu::Sharing::ipc;
  shared.offset = says.ipc_offset;
  shared.bytes = pool_bytes;
  shared.handle = says.handle;
  return shared;
}

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
    } else {
      fmt::print(stderr, "unknown option {}: --quick, --shapes, --correct, --pid-namespace\n", argument);
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
