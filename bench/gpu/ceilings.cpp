// SPDX-License-Identifier: Apache-2.0
// What the barest program gets where Headrace has a goal: the same pages between the same two processes,
// without an agent. bench/compare_ceilings.py runs it in turn with `headrace bench pages`.
//
//   bench_gpu_ceilings [single] [pages] [tcp] [host]
//
// single  one page of 4 KiB at a time between two GPUs: a launched kernel, the copy engine and a stream
//         write-value, the copy engine and an event, a kernel that stays; and each with nothing to move
// pages   many pages between two GPUs, 4 KiB to 16 MiB: by kernel and by copy engine
// tcp     one page at a time over a loopback socket: from GPU memory into pinned memory, send, receive, from
//         pinned memory into GPU memory, each leg by the ways of `single`; and the socket alone
// host    many pages between a GPU and pinned host memory of another process, by kernel and by copy engine
//
// One JSON line a figure: {"case", "way", "metric", "value"}. A child process owns the far memory, on the
// last GPU. Of single pages 256 at random places take turns, as in `headrace bench pages --single`. All data
// is compared; a difference ends it.
#include "base/unique_fd.hpp"
#include "bench/gpu/shuffled.hpp"
#include "gpu/device.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/event.hpp"
#include "gpu/kernel_library.hpp"
#include "gpu/peer_memory.hpp"
#include "gpu/pinned_memory.hpp"
#include "gpu/stream.hpp"
#include "memory/allocation.hpp"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
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
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

// Written by cmake/kernels.cmake from ceiling_kernels.cu.
extern "C" const headrace_kernel_image_v1 headrace_ceiling_images[];
extern "C" const uint64_t headrace_ceiling_image_count;

namespace {

using namespace headrace;
using cuda::Address;
using gpu::Device;
using gpu::DeviceMemory;
using gpu::PeerMemory;
using gpu::PinnedMemory;
using Clock = std::chrono::steady_clock;

constexpr std::size_t pool_bytes = std::size_t{256} << 20;
constexpr std::size_t page = 4096;
constexpr std::size_t places = 256;
constexpr std::uint64_t rounds = 17;  // of all places; the first is a warm-up
constexpr auto patience = std::chrono::seconds(10);

[[noreturn]] void end_with(const std::string& text) {
  fmt::print(stderr, "{}\n", text);
  std::exit(1);
}
template <class T>
T must(Result<T> result) {
  if (!result.ok()) end_with(result.error().message);
  return std::move(result).value();
}
void must(Result<void> result) {
  if (!result.ok()) end_with(result.error().message);
}
void must(const Device& device, cuda::Outcome outcome, std::string_view what) {
  if (outcome != cuda::Outcome::success)
    end_with(fmt::format("{}: {}", what, cuda::outcome_text(device.driver(), outcome)));
}
void must_system(bool good, const char* what) {
  if (!good) end_with(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// checked: what `compare` answered for the data of these times.
void report(const std::string& name, std::string_view way, std::string_view metric, double value,
            bool checked) {
  fmt::print(
      "{{\"case\": \"{}\", \"way\": \"{}\", \"metric\": \"{}\", \"value\": {:.5g}, \"checked\": {}}}\n", name,
      way, metric, value, checked);
  std::fflush(stdout);
}

void in_parallel(std::size_t count, const std::function<void(std::size_t, std::size_t)>& share) {
  const std::size_t threads = std::min<std::size_t>(8, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> others;
  for (std::size_t t = 0; t < threads; ++t)
    others.emplace_back(share, count * t / threads, count * (t + 1) / threads);
  for (std::thread& thread : others) thread.join();
}

/// Bytes that differ from place to place and from seed to seed.
void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  auto* const words = reinterpret_cast<std::uint64_t*>(bytes.data());
  in_parallel(bytes.size() / 8, [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      const std::uint64_t mixed = (i + (seed << 32)) * 0x9e3779b97f4a7c15;
      words[i] = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9;
    }
  });
}

/// Which page goes where: pairs of places that both processes draw alike.
struct Pairs {
  std::vector<std::uint32_t> from, to;
};
Pairs draw(std::size_t count, std::size_t page_bytes) {
  std::mt19937 random(static_cast<unsigned>(page_bytes + count));
  Pairs pairs;
  pairs.from = shuffled(random, count, pool_bytes / page_bytes);
  pairs.to = shuffled(random, count, pool_bytes / page_bytes);
  return pairs;
}

/// True: each target's page is its source's; else the program ends with an error. False: there was no page.
bool compare(std::span<const std::byte> source, std::span<const std::byte> target, const Pairs& pairs,
             std::size_t page_bytes, const std::string& what) {
  std::atomic<std::size_t> wrong{0};
  in_parallel(pairs.from.size(), [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i)
      if (std::memcmp(source.data() + pairs.from[i] * page_bytes, target.data() + pairs.to[i] * page_bytes,
                      page_bytes) != 0)
        wrong.fetch_add(1);
  });
  if (wrong != 0)
    end_with(fmt::format("{}: {} of {} pages are wrong", what, wrong.load(), pairs.from.size()));
  return !pairs.from.empty();
}

void report_times(const std::string& name, std::string_view way, std::vector<double> seconds, bool checked) {
  std::ranges::sort(seconds);
  report(name, way, "p50_us", seconds[seconds.size() / 2] * 1e6, checked);
  report(name, way, "p99_us", seconds[seconds.size() * 99 / 100] * 1e6, checked);
}

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// ------------------------------------------------------------------ one GPU and the ways to move a page

enum class Way : std::uint32_t { none, copy_engine, copy_engine_event, kernel_256, kernel_32, resident };
constexpr std::array ways{Way::copy_engine, Way::copy_engine_event, Way::kernel_256, Way::kernel_32,
                          Way::resident};
const char* name_of(Way way) {
  constexpr const char* names[] = {"bare_socket",     "bare_copy_engine", "bare_copy_engine_event",
                                   "bare_kernel_256", "bare_kernel_32",   "bare_resident"};
  return names[static_cast<std::size_t>(way)];
}

class Gpu {
 public:
  explicit Gpu(std::shared_ptr<const Device> device)
      : device_(std::move(device)),
        stream_(must(gpu::Stream::make(device_, gpu::Priority::high))),
        event_(must(gpu::Event::make(device_))),
        words_(must(PinnedMemory::allocate(device_, 4096))) {
    const gpu::ContextGuard guard(*device_);
    for (std::uint64_t i = 0; i < headrace_ceiling_image_count && module_ == nullptr; ++i)
      if (device_->driver().module_load_data(&module_, headrace_ceiling_images[i].data) !=
          cuda::Outcome::success)
        module_ = nullptr;
    if (module_ == nullptr) end_with("no image of the kernels runs on this GPU");
    page_256_ = function("ceiling_page_256");
    page_32_ = function("ceiling_page_32");
    resident_ = function("ceiling_resident");
    pages_ = function("ceiling_pages");
  }

  [[nodiscard]] const std::shared_ptr<const Device>& device() const { return device_; }

  /// Before `moves` calls of `move` of so many bytes in that way, on this thread.
  void begin(Way way, std::uint64_t moves, std::size_t bytes) {
    wake();
    way_ = way;
    bytes_ = static_cast<unsigned>(bytes);
    if (way != Way::resident) return;
    told_ = 0;
    __atomic_store_n(word(), 0, __ATOMIC_RELEASE);
    for (int i : {0, 1, 2, 3}) __atomic_store_n(job() + i, 0, __ATOMIC_RELEASE);
    Address job_at = words_.address() + 1024, word_at = words_.address();
    std::uint64_t last = moves;
    void* parameters[] = {&job_at, &bytes_, &word_at, &last};
    launch(resident_, 1, 32, parameters);
  }
  void end() { must(stream_.wait_idle()); }

  /// Moves a page and returns when this process has seen its end.
  void move(Address from, Address to) {
    const std::uint64_t value = told_ + 1;
    switch (way_) {
      case Way::none:
        return;
      case Way::copy_engine:
        if (bytes_ != 0)
          must(*device_, device_->driver().memcpy_async(to, from, bytes_, stream_.handle()), "cuMemcpyAsync");
        must(*device_, device_->driver().stream_write_value_64(stream_.handle(), words_.address(), value, 0),
             "cuStreamWriteValue64");
        break;
      case Way::copy_engine_event:
        if (bytes_ != 0)
          must(*device_, device_->driver().memcpy_async(to, from, bytes_, stream_.handle()), "cuMemcpyAsync");
        must(*device_, device_->driver().event_record(event_.handle(), stream_.handle()), "cuEventRecord");
        return wait_for_event(value);
      case Way::kernel_256:
      case Way::kernel_32: {
        Address word_at = words_.address();
        std::uint64_t said = value;
        void* parameters[] = {&from, &to, &bytes_, &word_at, &said};
        const bool many = way_ == Way::kernel_256;
        launch(many ? page_256_ : page_32_, 1, many ? 256 : 32, parameters);
        break;
      }
      case Way::resident:
        // A half of the job is 16 bytes; its number is written after its address, and read with it.
        job()[0] = from, job()[2] = to;
        __atomic_store_n(job() + 1, value, __ATOMIC_RELEASE);
        __atomic_store_n(job() + 3, value, __ATOMIC_RELEASE);
        break;
    }
    wait_for(value);
  }

  /// Many pages by a kernel on so many multiprocessors; the tables hold addresses.
  void move_pages(Address sources, Address targets, std::uint64_t count, std::uint64_t page_bytes,
                  unsigned blocks) {
    void* parameters[] = {&sources, &targets, &count, &page_bytes};
    launch(pages_, blocks, 512, parameters);
    tell_and_wait();
  }
  /// Many pages by copy engine: a call a page, or all in one call.
  void copy_pages(std::vector<Address>& sources, std::vector<Address>& targets,
                  std::vector<std::size_t>& bytes, bool in_one) {
    const cuda::DriverTable& driver = device_->driver();
    if (in_one) {
      cuda::CopyAttributes attributes;
      attributes.flags = cuda::copy_prefer_overlap;
      std::size_t first = 0, failed = 0;
      must(*device_,
           driver.memcpy_batch_async(targets.data(), sources.data(), bytes.data(), bytes.size(), &attributes,
                                     &first, 1, &failed, stream_.handle()),
           "cuMemcpyBatchAsync");
    } else {
      for (std::size_t i = 0; i < bytes.size(); ++i)
        must(*device_, driver.memcpy_async(targets[i], sources[i], bytes[i], stream_.handle()),
             "cuMemcpyAsync");
    }
    tell_and_wait();
  }

  void copy(Address to, Address from, std::size_t bytes) {
    must(*device_, device_->driver().memcpy_async(to, from, bytes, stream_.handle()), "cuMemcpyAsync");
    end();
  }
  void wipe(Address at, std::size_t bytes) {
    must(*device_, device_->driver().memset_d8_async(at, 0xa5, bytes, stream_.handle()), "cuMemsetD8Async");
    end();
  }

 private:
  cuda::Function function(const char* name) {
    cuda::Function found = nullptr;
    must(*device_, device_->driver().module_get_function(&found, module_, name), name);
    return found;
  }
  void launch(cuda::Function function, unsigned blocks, unsigned threads, void** parameters) {
    cuda::LaunchConfig config;
    config.grid_x = blocks;
    config.block_x = threads;
    config.stream = stream_.handle();
    must(*device_, device_->driver().launch_kernel_ex(&config, function, parameters, nullptr),
         "cuLaunchKernelEx");
  }
  /// A GPU that has idled has low clocks: launches with nothing to move, until they must be up.
  void wake() {
    way_ = Way::kernel_256, bytes_ = 0;
    for (const auto begin = Clock::now(); since(begin) < 0.1;) move(words_.address(), words_.address());
  }
  void tell_and_wait() {
    const std::uint64_t value = told_ + 1;
    must(*device_, device_->driver().stream_write_value_64(stream_.handle(), words_.address(), value, 0),
         "cuStreamWriteValue64");
    wait_for(value);
  }
  void wait_for(std::uint64_t value) {
    const auto limit = Clock::now() + patience;
    for (std::uint64_t looks = 1; __atomic_load_n(word(), __ATOMIC_ACQUIRE) != value; ++looks)
      if (looks % (1 << 22) == 0 && Clock::now() > limit)
        end_with(fmt::format("{}: the end of move {} was not seen", name_of(way_), value));
    told_ = value;
  }
  void wait_for_event(std::uint64_t value) {
    const auto limit = Clock::now() + patience;
    for (std::uint64_t looks = 1;; ++looks) {
      const cuda::Outcome outcome = device_->driver().event_query(event_.handle());
      if (outcome == cuda::Outcome::success) break;
      if (outcome != cuda::Outcome::not_ready) must(*device_, outcome, "cuEventQuery");
      if (looks % (1 << 16) == 0 && Clock::now() > limit)
        end_with(fmt::format("{}: the end of move {} was not seen", name_of(way_), value));
    }
    told_ = value;
  }
  [[nodiscard]] std::uint64_t* word() const {
    return reinterpret_cast<std::uint64_t*>(words_.bytes().data());
  }
  [[nodiscard]] std::uint64_t* job() const { return word() + 128; }

  std::shared_ptr<const Device> device_;
  gpu::Stream stream_;
  gpu::Event event_;
  PinnedMemory words_;  // the word that tells the end, and a resident's job in a line of its own
  cuda::Module module_ = nullptr;
  cuda::Function page_256_ = nullptr, page_32_ = nullptr, resident_ = nullptr, pages_ = nullptr;
  Way way_ = Way::none;
  unsigned bytes_ = 0;
  std::uint64_t told_ = 0;
};

// ------------------------------------------------------------------ the socket

/// What goes before a page, or asks for one.
struct Ask {
  enum class What : std::uint32_t { begin, read, write, end } what = What::end;
  Way way = Way::none;
  std::uint64_t number = 0;  // of the page's place; for `begin`: how many moves there will be
};

void send_all(int socket, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
    must_system(sent > 0 || errno == EINTR, "send");
    if (sent > 0) at += sent, bytes -= static_cast<std::size_t>(sent);
  }
}
/// Looks without sleeping, or sleeps. False: the other side has closed.
bool receive_all(int socket, void* data, std::size_t bytes, bool sleeping = false) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, at, bytes, sleeping ? 0 : MSG_DONTWAIT);
    if (got == 0) return false;
    must_system(got > 0 || errno == EAGAIN || errno == EINTR, "recv");
    if (got > 0) at += got, bytes -= static_cast<std::size_t>(got);
  }
  return true;
}
void tune(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
}

/// A page with its header before it, in pinned memory.
class Slot {
 public:
  explicit Slot(const std::shared_ptr<const Device>& device)
      : memory_(must(PinnedMemory::allocate(device, 2 * page))) {}
  [[nodiscard]] std::byte* page_bytes() const { return memory_.bytes().data() + page; }
  [[nodiscard]] Address page_address() const { return memory_.address() + page; }
  /// Header and page, one behind the other.
  [[nodiscard]] const void* with(const Ask& ask) const {
    std::memcpy(page_bytes() - sizeof ask, &ask, sizeof ask);
    return page_bytes() - sizeof ask;
  }

 private:
  PinnedMemory memory_;
};

// ------------------------------------------------------------------ the process that owns the far memory

struct OwnerSays {
  int device = 0;
  cuda::IpcMemoryHandle handle{};
  std::size_t offset = 0;
  std::uint16_t port = 0;
};

void send_with(int socket, const OwnerSays& says, int fd) {
  iovec data{const_cast<OwnerSays*>(&says), sizeof says};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  must_system(::sendmsg(socket, &message, 0) == static_cast<ssize_t>(sizeof says), "sendmsg");
}
std::pair<OwnerSays, UniqueFd> receive_with(int socket) {
  OwnerSays says;
  iovec data{&says, sizeof says};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_WAITALL) != static_cast<ssize_t>(sizeof says))
    end_with("the owner's process has ended");
  int fd = -1;
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return {says, UniqueFd(fd)};
}

void serve(int socket, Gpu& gpu, const DeviceMemory& memory) {
  const Slot slot(gpu.device());
  bool busy = false;
  for (Ask ask; receive_all(socket, &ask, sizeof ask, !busy);) {
    const Address at = memory.address() + ask.number * page;
    if (ask.what == Ask::What::begin) {
      busy = true;
      gpu.begin(ask.way, ask.number, page);
      send_all(socket, &ask, sizeof ask);
    } else if (ask.what == Ask::What::read) {
      gpu.move(at, slot.page_address());
      send_all(socket, slot.page_bytes(), page);
    } else if (ask.what == Ask::What::write) {
      if (!receive_all(socket, slot.page_bytes(), page)) return;
      gpu.move(slot.page_address(), at);
      send_all(socket, &ask, sizeof ask);
    } else {
      busy = false;
      gpu.end();
      send_all(socket, &ask, sizeof ask);
    }
  }
}

[[noreturn]] void own(int socket) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto driver = must(cuda::load_driver());
  const int last = static_cast<int>(must(gpu::list_devices(driver)).size()) - 1;
  const auto device = must(Device::open(driver, last));
  const gpu::ContextGuard guard(*device);
  const auto memory = must(DeviceMemory::allocate(device, pool_bytes));
  const auto shared = must(gpu::share_memory(*device, memory.address(), pool_bytes));
  const auto host = must(Allocation::make(pool_bytes));
  fill(host.bytes(), 1);
  Gpu gpu(device);
  const UniqueFd door(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  must_system(::bind(door.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 &&
                  ::listen(door.get(), 1) == 0 &&
                  ::getsockname(door.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0,
              "listen");
  send_with(socket, {last, shared.handle, shared.offset, at.sin_port}, host.fd());
  const UniqueFd link(::accept(door.get(), nullptr, nullptr));
  must_system(link.valid(), "accept");
  tune(link.get());
  serve(link.get(), gpu, memory);
  ::_exit(0);
}

// ------------------------------------------------------------------ this process

struct Near {
  explicit Near(int socket) : Near(receive_with(socket)) {}

  cuda::DriverTable driver;
  OwnerSays owner;
  UniqueFd host_fd;
  Gpu gpu;
  DeviceMemory local;
  PeerMemory remote;
  PinnedMemory expected, seen;  // what a source holds, and what came to a target

 private:
  explicit Near(std::pair<OwnerSays, UniqueFd> come)
      : driver(must(cuda::load_driver())),
        owner(come.first),
        host_fd(std::move(come.second)),
        gpu(must(Device::open(driver, 0))),
        local(must(DeviceMemory::allocate(gpu.device(), pool_bytes))),
        remote(must(PeerMemory::open(gpu.device(), shared()))),
        expected(must(PinnedMemory::allocate(gpu.device(), pool_bytes))),
        seen(must(PinnedMemory::allocate(gpu.device(), pool_bytes))) {}

 public:
  [[nodiscard]] gpu::SharedMemory shared() const {
    gpu::SharedMemory memory;
    memory.sharing = gpu::Sharing::ipc;
    memory.offset = owner.offset;
    memory.bytes = pool_bytes;
    memory.handle = owner.handle;
    return memory;
  }
  /// New bytes at the source, none of them at the target.
  void renew(Address source, Address target, std::uint64_t seed) {
    fill(expected.bytes(), seed);
    gpu.copy(source, expected.address(), pool_bytes);
    gpu.wipe(target, pool_bytes);
  }
  bool check(Address target, const Pairs& pairs, std::size_t page_bytes, const std::string& what) {
    gpu.copy(seen.address(), target, pool_bytes);
    return compare(expected.bytes(), seen.bytes(), pairs, page_bytes, what);
  }
};

struct Direction {
  const char* name;
  bool read;
};
constexpr std::array directions{Direction{"read", true}, Direction{"write", false}};

/// "single/4096", "single/write/4096".
std::string case_of(const Direction& direction, std::string_view prefix) {
  return fmt::format("{}{}{}", prefix, direction.read ? "" : "write/", page);
}

void single(Near& near) {
  const Pairs pairs = draw(places, page);
  std::uint64_t seed = 100;
  for (const Direction& direction : directions) {
    const Address source = direction.read ? near.remote.address() : near.local.address(),
                  target = direction.read ? near.local.address() : near.remote.address();
    for (const Way way : ways) {
      near.renew(source, target, ++seed);
      std::vector<double> seconds;
      near.gpu.begin(way, rounds * places, page);
      for (std::uint64_t round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < places; ++i) {
          const auto begin = Clock::now();
          near.gpu.move(source + pairs.from[i] * page, target + pairs.to[i] * page);
          if (round > 0) seconds.push_back(since(begin));
        }
      near.gpu.end();
      const std::string name = case_of(direction, "single/");
      const bool checked = near.check(target, pairs, page, fmt::format("{} {}", name, name_of(way)));
      report_times(name, name_of(way), std::move(seconds), checked);
    }
  }
  for (const Way way : ways) {
    std::vector<double> seconds;
    near.gpu.begin(way, rounds * places, 0);
    for (std::uint64_t i = 0; i < rounds * places; ++i) {
      const auto begin = Clock::now();
      near.gpu.move(near.local.address(), near.local.address());
      if (i >= places) seconds.push_back(since(begin));
    }
    near.gpu.end();
    report_times("single/nothing", name_of(way), std::move(seconds), false);  // nothing moves
  }
}

// ------------------------------------------------------------------ many pages between GPUs

/// Where the pages of a request lie, as the copy engine is told and, in GPU memory, as the kernel is.
struct Table {
  Table(Gpu& gpu, Address source, Address target, const Pairs& pairs, std::size_t page_bytes)
      : lengths(pairs.from.size(), page_bytes),
        memory(must(DeviceMemory::allocate(gpu.device(), pairs.from.size() * 16))) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      sources.push_back(source + pairs.from[i] * page_bytes);
      targets.push_back(target + pairs.to[i] * page_bytes);
    }
    const auto staging = must(PinnedMemory::allocate(gpu.device(), lengths.size() * 16));
    std::byte* const at = staging.bytes().data();
    std::memcpy(at, sources.data(), lengths.size() * 8);
    std::memcpy(at + lengths.size() * 8, targets.data(), lengths.size() * 8);
    gpu.copy(memory.address(), staging.address(), lengths.size() * 16);
  }
  void move(Gpu& gpu, unsigned blocks) const {
    gpu.move_pages(memory.address(), memory.address() + lengths.size() * 8, lengths.size(), lengths[0],
                   blocks);
  }
  void copy(Gpu& gpu, bool in_one) { gpu.copy_pages(sources, targets, lengths, in_one); }

  std::vector<Address> sources, targets;
  std::vector<std::size_t> lengths;
  DeviceMemory memory;
};

void many_pages(Near& near) {
  constexpr int turns = 10;  // the first is a warm-up
  std::uint64_t seed = 400;
  for (const std::size_t kib : {4, 16, 64, 256, 1024, 16384})
    for (const Direction& direction : directions) {
      const std::size_t bytes = kib << 10, count = std::min<std::size_t>(pool_bytes / bytes, 16384);
      const Pairs pairs = draw(count, bytes);
      const Address source = direction.read ? near.remote.address() : near.local.address(),
                    target = direction.read ? near.local.address() : near.remote.address();
      Table table(near.gpu, source, target, pairs, bytes);
      const std::string name = fmt::format("{}/{}x{}", direction.name, bytes, count);
      const auto measure = [&](const std::string& way, const std::function<void()>& move) {
        near.renew(source, target, ++seed);
        std::vector<double> seconds;
        for (int turn = 0; turn < turns; ++turn) {
          for (int i = 0; i < 20; ++i)
            near.gpu.move(near.local.address(),
                          near.local.address());  // with nothing to move: clocks stay up
          const auto begin = Clock::now();
          move();
          if (turn > 0) seconds.push_back(since(begin));
        }
        const bool checked = near.check(target, pairs, bytes, fmt::format("{} {}", name, way));
        std::ranges::sort(seconds);
        report(name, way, "GB/s", static_cast<double>(bytes * count) / seconds[seconds.size() / 2] / 1e9,
               checked);
      };
      near.gpu.begin(Way::kernel_32, 0, 0);
      for (const unsigned blocks : {16u, 64u, 132u})
        measure(fmt::format("bare_kernel_sm{}", blocks), [&] { table.move(near.gpu, blocks); });
      if (kib < 1024) continue;
      measure("bare_copy_engine_one_call", [&] { table.copy(near.gpu, true); });
      measure("bare_copy_engine", [&] { table.copy(near.gpu, false); });
    }
}

void over_tcp(Near& near) {
  const UniqueFd link(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = near.owner.port;
  must_system(::connect(link.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0, "connect");
  tune(link.get());
  const int socket = link.get();
  const Slot slot(near.gpu.device());
  const Pairs pairs = draw(places, page);
  std::uint64_t seed = 200;
  const auto phase = [&](const Ask& ask) {
    Ask answer;
    send_all(socket, &ask, sizeof ask);
    if (!receive_all(socket, &answer, sizeof answer)) end_with("the owner's process has ended");
  };
  const auto one = [&](bool read, Address source, Address target, std::size_t i) {
    Ask ask{read ? Ask::What::read : Ask::What::write, Way::none, read ? pairs.from[i] : pairs.to[i]};
    if (read) {
      send_all(socket, &ask, sizeof ask);
      if (!receive_all(socket, slot.page_bytes(), page)) end_with("the owner's process has ended");
      near.gpu.move(slot.page_address(), target + pairs.to[i] * page);
    } else {
      near.gpu.move(source + pairs.from[i] * page, slot.page_address());
      send_all(socket, slot.with(ask), sizeof ask + page);
      if (!receive_all(socket, &ask, sizeof ask)) end_with("the owner's process has ended");
    }
  };
  for (const Direction& direction : directions) {
    const Address source = direction.read ? near.remote.address() : near.local.address(),
                  target = direction.read ? near.local.address() : near.remote.address();
    for (const Way way : {Way::none, Way::copy_engine, Way::kernel_256, Way::kernel_32, Way::resident}) {
      near.renew(source, target, ++seed);
      phase({Ask::What::begin, way, rounds * places});
      near.gpu.begin(way, rounds * places, page);
      std::vector<double> seconds;
      for (std::uint64_t round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < places; ++i) {
          const auto begin = Clock::now();
          one(direction.read, source, target, i);
          if (round > 0) seconds.push_back(since(begin));
        }
      near.gpu.end();
      phase({Ask::What::end, way, 0});
      const std::string name = case_of(direction, "single/vram/");
      // With no way the bytes cross the socket alone: no GPU's memory is written, and nothing is compared.
      const bool checked =
          way != Way::none && near.check(target, pairs, page, fmt::format("{} {}", name, name_of(way)));
      report_times(name, name_of(way), std::move(seconds), checked);
    }
  }
}

// ------------------------------------------------------------------ host memory

/// A GPU's pages and pages of pinned host memory, both ways; which process has which says the case's name.
void host_pages(const std::string& gpu_reads, const std::string& gpu_writes, Gpu& gpu, Address device_memory,
                const PinnedMemory& host, std::span<std::byte> staging, Address staging_address) {
  constexpr int turns = 6;  // the first is a warm-up
  std::uint64_t seed = 300;
  for (const std::size_t page_bytes : {std::size_t{4096}, std::size_t{65536}, std::size_t{16} << 20})
    for (const bool reads : {true, false}) {
      const std::size_t count = std::min<std::size_t>(pool_bytes / page_bytes, 16384);
      const Pairs pairs = draw(count, page_bytes);
      const Address source = reads ? host.address() : device_memory,
                    target = reads ? device_memory : host.address();
      Table table(gpu, source, target, pairs, page_bytes);
      const auto measure = [&](const std::string& way, const std::function<void()>& move) {
        std::vector<double> seconds;
        bool checked = true;
        const std::string name = fmt::format("{}/{}x{}", reads ? gpu_reads : gpu_writes, page_bytes, count);
        for (int turn = 0; turn < turns; ++turn) {
          ++seed;
          if (reads) {
            fill(host.bytes(), seed);
            gpu.wipe(target, pool_bytes);
          } else {
            fill(staging, seed);
            gpu.copy(source, staging_address, pool_bytes);
            in_parallel(pool_bytes, [&](std::size_t from, std::size_t to) {
              std::memset(host.bytes().data() + from, 0xa5, to - from);
            });
          }
          for (int i = 0; i < 20; ++i)
            gpu.move_pages(table.memory.address(), table.memory.address() + count * 8,
                           std::min<std::size_t>(count, 4), 4096, 4);  // links wake
          const auto begin = Clock::now();
          move();
          if (turn > 0) seconds.push_back(since(begin));
          if (reads) gpu.copy(staging_address, target, pool_bytes);
          checked = compare(reads ? host.bytes() : staging, reads ? staging : host.bytes(), pairs, page_bytes,
                            fmt::format("{} {}", name, way)) &&
                    checked;
        }
        std::ranges::sort(seconds);
        report(name, way, "GB/s", static_cast<double>(page_bytes * count) / seconds[seconds.size() / 2] / 1e9,
               checked);
      };
      for (const unsigned blocks : {8u, 16u, 64u})
        measure(fmt::format("bare_kernel_sm{}", blocks), [&] { table.move(gpu, blocks); });
      if (page_bytes >= 65536) measure("bare_copy_engine_one_call", [&] { table.copy(gpu, true); });
      if (page_bytes > 65536) measure("bare_copy_engine", [&] { table.copy(gpu, false); });
    }
}

/// Memory of the peer's `allocate`, mapped and pinned here, and this process's GPU; then this process's own,
/// and the peer's GPU.
void host(Near& near) {
  {
    void* const at = ::mmap(nullptr, pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, near.host_fd.get(), 0);
    must_system(at != MAP_FAILED, "mmap");
    {
      const auto pinned =
          must(PinnedMemory::pin(near.gpu.device(), {static_cast<std::byte*>(at), pool_bytes}));
      host_pages("allocated/vram<-dram", "allocated/vram->dram", near.gpu, near.local.address(), pinned,
                 near.seen.bytes(), near.seen.address());
    }
    ::munmap(at, pool_bytes);
  }
  const auto device =
      near.owner.device == 0 ? near.gpu.device() : must(Device::open(near.driver, near.owner.device));
  const gpu::ContextGuard guard(*device);
  Gpu far(device);
  const auto memory = must(PeerMemory::open(device, near.shared()));
  const auto own = must(Allocation::make(pool_bytes));
  fill(own.bytes(), 2);
  const auto pinned = must(PinnedMemory::pin(device, own.bytes()));
  host_pages("allocated/dram->vram", "allocated/dram<-vram", far, memory.address(), pinned, near.seen.bytes(),
             near.seen.address());
}

int run(int socket, const std::set<std::string>& parts) {
  Near near(socket);
  const gpu::ContextGuard guard(*near.gpu.device());
  if (parts.contains("single")) single(near);
  if (parts.contains("pages")) many_pages(near);
  if (parts.contains("host")) host(near);
  if (parts.contains("tcp")) over_tcp(near);  // last: the owner's process ends with its connection
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::set<std::string> parts(argv + 1, argv + argc);
  for (const std::string& part : parts)
    if (part != "single" && part != "pages" && part != "tcp" && part != "host") {
      fmt::print(stderr, "unknown part {}: single, pages, tcp, host\n", part);
      return 2;
    }
  int sockets[2];
  must_system(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "socketpair");
  const pid_t owner = ::fork();  // before either touches the driver
  if (owner == 0) {
    ::close(sockets[0]);
    own(sockets[1]);
  }
  ::close(sockets[1]);
  const int failed = run(sockets[0], parts);
  ::kill(owner, SIGKILL);  // it may still wait for a connection
  ::waitpid(owner, nullptr, 0);
  return failed;
}
