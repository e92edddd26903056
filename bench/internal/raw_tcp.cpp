// SPDX-License-Identifier: Apache-2.0
// Bare TCP over loopback: what the machine's kernel gives to anybody, and so what the tcp backend is held
// against.
//
// Two processes, one thread a stream a side, blocking sockets, 1 MiB sends and receives, no framing, no
// checks, no bookkeeping beyond a byte count. The receiving side counts. Prints one JSON line.
//
//   bench_raw_tcp [--streams N] [--seconds S] [--send BYTES] [--memory BYTES] [--page BYTES] [--burst BYTES]
//   [--congestion NAME] [--buffer BYTES]
//
// --memory is the memory that each stream of each side walks through. The default is one send's worth, which
// stays in the caches and makes the ceiling as high as it gets; a larger one shows what memory traffic costs
// on top. With --page each side takes that memory in pages of so many bytes, in an order of its own drawn at
// random (sendmsg and recvmsg, 1 MiB a call as before): the ceiling of that very pattern.
//
// With --burst so many bytes of all streams together go once, again and again for --seconds: both sides write
// all their memory, everybody sleeps, and the time runs from the one byte a stream by which the receiver asks
// to the last byte. What one request is held against, whose beginning and end are part of its time.
#include "base/options.hpp"
#include "base/unique_fd.hpp"

#include <fmt/format.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace headrace;

namespace {

struct Plan {
  int streams = 1;
  double seconds = 2;
  std::size_t send_bytes = 1 << 20;
  std::size_t memory_bytes = 0;  // 0: send_bytes
  std::size_t page_bytes = 0;    // 0: in order
  std::size_t burst_bytes = 0;   // 0: without end
  int socket_buffer_bytes = 0;   // 0: the system's own tuning
  std::string congestion = "cubic";
};

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

Plan parse(int argc, char** argv) {
  Plan plan;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) {
      std::fprintf(stderr, "%s needs a value\n", argv[i]);
      std::exit(2);
    }
    const char* value = argv[++i];
    const auto bytes = [&] {
      const auto parsed = parse_bytes(value);
      if (!parsed) {
        std::fprintf(stderr, "%s\n", parsed.error().message.c_str());
        std::exit(2);
      }
      return parsed.value();
    };
    if (name == "--streams")
      plan.streams = std::stoi(value);
    else if (name == "--seconds")
      plan.seconds = std::stod(value);
    else if (name == "--send")
      plan.send_bytes = bytes();
    else if (name == "--memory")
      plan.memory_bytes = bytes();
    else if (name == "--page")
      plan.page_bytes = bytes();
    else if (name == "--burst")
      plan.burst_bytes = bytes();
    else if (name == "--buffer")
      plan.socket_buffer_bytes = static_cast<int>(bytes());
    else if (name == "--congestion")
      plan.congestion = value;
    else {
      std::fprintf(stderr, "unknown argument %s\n", argv[i - 1]);
      std::exit(2);
    }
  }
  if (plan.streams < 1 || plan.streams > 256 || plan.seconds <= 0 || plan.send_bytes == 0) {
    std::fprintf(stderr, "streams must be 1 to 256, seconds and send positive\n");
    std::exit(2);
  }
  plan.memory_bytes = std::max(plan.memory_bytes, plan.send_bytes);
  if (plan.burst_bytes / static_cast<std::size_t>(plan.streams) > plan.memory_bytes) {
    std::fprintf(stderr, "a burst is at most as long as the memory of all streams\n");
    std::exit(2);
  }
  if (plan.page_bytes > plan.memory_bytes) {
    std::fprintf(stderr, "a page is at most as long as the memory\n");
    std::exit(2);
  }
  return plan;
}

void tune(int fd, const Plan& plan) {
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0) die("TCP_NODELAY");
  if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, plan.congestion.c_str(),
                   static_cast<socklen_t>(plan.congestion.size())) < 0)
    die("TCP_CONGESTION");
  if (plan.socket_buffer_bytes > 0) {
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &plan.socket_buffer_bytes, sizeof plan.socket_buffer_bytes);
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &plan.socket_buffer_bytes, sizeof plan.socket_buffer_bytes);
  }
}

/// The memory of one stream of one side, walked through page by page, again and again.
class Walk {
 public:
  explicit Walk(const Plan& plan)
      : page_bytes_(plan.page_bytes == 0 ? plan.send_bytes : plan.page_bytes), a_call_(plan.send_bytes) {
    void* memory =
        ::mmap(nullptr, plan.memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    memory_ = {static_cast<char*>(memory), plan.memory_bytes};
    ::madvise(memory, plan.memory_bytes, MADV_HUGEPAGE);  // as the pages of `headrace bench pages`
    fill();
    for (std::size_t at = 0; at + page_bytes_ <= plan.memory_bytes; at += page_bytes_)
      pages_.push_back(static_cast<char*>(memory) + at);
    if (plan.page_bytes != 0)
      std::shuffle(pages_.begin(), pages_.end(), std::mt19937_64(std::random_device()()));
  }

  /// As the benchmark does before each transfer: what is moved lies in no cache, as far as the memory is
  /// larger.
  void fill() { std::memset(memory_.data(), ++fills_, memory_.size()); }

  /// What the next call takes, `most` bytes at most: the rest of the present page and whole ones behind it.
  [[nodiscard]] ::msghdr next(std::size_t most = SIZE_MAX) {
    parts_.clear();
    std::size_t page = page_, from = from_;
    const std::size_t wanted = std::min(a_call_, most);
    for (std::size_t bytes = 0; bytes < wanted && parts_.size() < most_parts; from = 0) {
      const std::size_t length = std::min(page_bytes_ - from, wanted - bytes);
      parts_.push_back({pages_[page] + from, length});
      bytes += length;
      page = page + 1 == pages_.size() ? 0 : page + 1;
    }
    ::msghdr message{};
    message.msg_iov = parts_.data();
    message.msg_iovlen = parts_.size();
    return message;
  }
  void advance(std::size_t bytes) {
    from_ += bytes;
    page_ = (page_ + from_ / page_bytes_) % pages_.size();
    from_ %= page_bytes_;
  }

 private:
  static constexpr std::size_t most_parts = 1024;  // of one call (IOV_MAX)
  const std::size_t page_bytes_, a_call_;
  std::span<char> memory_;
  int fills_ = 0;
  std::vector<char*> pages_;
  std::vector<::iovec> parts_;
  std::size_t page_ = 0, from_ = 0;
};

/// Sends until the receiver closes.
void send_stream(UniqueFd fd, const Plan& plan) {
  for (Walk walk(plan);;) {
    const ::msghdr message = walk.next();
    const ssize_t n = ::sendmsg(fd.get(), &message, MSG_NOSIGNAL);
    if (n <= 0) return;
    walk.advance(static_cast<std::size_t>(n));
  }
}

std::size_t share_of(const Plan& plan) { return plan.burst_bytes / static_cast<std::size_t>(plan.streams); }

constexpr char please_fill = 'f', please_send = 's', filled = 'd';

/// Fills its memory and sends a burst, whenever it is asked to.
void send_bursts(UniqueFd fd, const Plan& plan) {
  Walk walk(plan);
  for (char word = 0; ::recv(fd.get(), &word, 1, 0) == 1;) {
    if (word == please_fill) {
      walk.fill();
      if (::send(fd.get(), &filled, 1, MSG_NOSIGNAL) != 1) return;
      continue;
    }
    for (std::size_t left = share_of(plan); left > 0;) {
      const ::msghdr message = walk.next(left);
      const ssize_t n = ::sendmsg(fd.get(), &message, MSG_NOSIGNAL);
      if (n <= 0) return;
      walk.advance(static_cast<std::size_t>(n));
      left -= static_cast<std::size_t>(n);
    }
  }
}

[[noreturn]] void run_sender(std::uint16_t port, const Plan& plan) {
  std::vector<std::thread> threads;
  for (int i = 0; i < plan.streams; ++i) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) die("socket");
    tune(fd.get(), plan);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) < 0) die("connect");
    threads.emplace_back(plan.burst_bytes > 0 ? send_bursts : send_stream, std::move(fd), std::cref(plan));
  }
  for (auto& thread : threads) thread.join();
  std::exit(0);
}

struct Counter {
  alignas(64) std::atomic<std::uint64_t> bytes{0};
};

void receive_stream(int fd, const Plan& plan, Counter& counter) {
  for (Walk walk(plan);;) {
    ::msghdr message = walk.next();
    const ssize_t n = ::recvmsg(fd, &message, 0);
    if (n <= 0) return;
    counter.bytes.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
    walk.advance(static_cast<std::size_t>(n));
  }
}

/// How far the threads are with a burst.
struct Burst {
  std::atomic<unsigned> number{0};  ///< of the one that is asked for
  std::atomic<int> unfilled{0};
  std::atomic<int> missing{0};
};

void wait_for_zero(std::atomic<int>& count) {
  for (int now = count.load(); now != 0; now = count.load()) count.wait(now);
}

void count_down(std::atomic<int>& count) {
  if (count.fetch_sub(1) == 1) count.notify_all();
}

void receive_bursts(int fd, const Plan& plan, Burst& burst) {
  Walk walk(plan);
  for (unsigned number = 0;; ++number) {
    burst.number.wait(number);
    char word = please_fill;
    if (::send(fd, &word, 1, MSG_NOSIGNAL) != 1) return;
    walk.fill();
    if (::recv(fd, &word, 1, 0) != 1) return;
    count_down(burst.unfilled);
    for (std::size_t left = share_of(plan); left > 0;) {
      ::msghdr message = walk.next(left);
      const ssize_t n = ::recvmsg(fd, &message, 0);
      if (n <= 0) return;
      walk.advance(static_cast<std::size_t>(n));
      left -= static_cast<std::size_t>(n);
    }
    count_down(burst.missing);
  }
}

/// Of the bursts of so many seconds, or of five, the median time of one.
double measure_bursts(const std::vector<UniqueFd>& sockets, const Plan& plan) {
  constexpr std::size_t at_least = 5, warm_up = 2;
  Burst burst;
  std::vector<std::thread> threads;
  for (const UniqueFd& fd : sockets)
    threads.emplace_back(receive_bursts, fd.get(), std::cref(plan), std::ref(burst));
  std::vector<double> seconds;
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(plan.seconds);
  while (seconds.size() < at_least + warm_up || std::chrono::steady_clock::now() < until) {
    burst.unfilled = burst.missing = plan.streams;
    ++burst.number;
    burst.number.notify_all();
    wait_for_zero(burst.unfilled);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until all of them sleep
    const auto begin = std::chrono::steady_clock::now();
    for (const UniqueFd& fd : sockets)
      if (::send(fd.get(), &please_send, 1, MSG_NOSIGNAL) != 1) die("send");
    wait_for_zero(burst.missing);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  for (const UniqueFd& fd : sockets) ::shutdown(fd.get(), SHUT_RDWR);
  ++burst.number;
  burst.number.notify_all();
  for (std::thread& thread : threads) thread.join();
  seconds.erase(seconds.begin(), seconds.begin() + warm_up);
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2),
                   seconds.end());
  return seconds[seconds.size() / 2];
}

void print_result(const Plan& plan, double seconds, std::uint64_t bytes) {
  fmt::print(
      "{{\"program\": \"raw_tcp\", \"streams\": {}, \"seconds\": {:.6f}, \"send_bytes\": {}, "
      "\"memory_bytes\": {}, \"page_bytes\": {}, \"burst_bytes\": {}, \"congestion\": \"{}\", "
      "\"bytes\": {}, \"GB/s\": {:.3f}}}\n",
      plan.streams, seconds, plan.send_bytes, plan.memory_bytes, plan.page_bytes, plan.burst_bytes,
      plan.congestion, bytes, static_cast<double>(bytes) / seconds * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  const Plan plan = parse(argc, argv);
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener) die("socket");
  tune(listener.get(), plan);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) < 0) die("bind");
  if (::listen(listener.get(), plan.streams) < 0) die("listen");
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &length) < 0) die("getsockname");

  const pid_t sender = ::fork();
  if (sender < 0) die("fork");
  if (sender == 0) run_sender(ntohs(at.sin_port), plan);

  std::vector<UniqueFd> sockets;
  std::vector<Counter> counters(static_cast<std::size_t>(plan.streams));
  std::vector<std::thread> threads;
  for (auto& counter : counters) {
    sockets.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!sockets.back()) die("accept");
    tune(sockets.back().get(), plan);
    if (plan.burst_bytes > 0) continue;
    threads.emplace_back(receive_stream, sockets.back().get(), std::cref(plan), std::ref(counter));
  }
  if (plan.burst_bytes > 0) {
    const double seconds = measure_bursts(sockets, plan);
    ::waitpid(sender, nullptr, 0);
    print_result(plan, seconds, share_of(plan) * sockets.size());
    return 0;
  }
  const auto total = [&] {
    std::uint64_t bytes = 0;
    for (const auto& counter : counters) bytes += counter.bytes.load(std::memory_order_relaxed);
    return bytes;
  };
  // Leave out the slow start and the threads' first touches of their memory.
  while (total() < 4 * plan.memory_bytes * counters.size())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t before = total();
  std::this_thread::sleep_for(std::chrono::duration<double>(plan.seconds));
  const std::uint64_t bytes = total() - before;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  for (auto& fd : sockets) ::shutdown(fd.get(), SHUT_RDWR);
  for (auto& thread : threads) thread.join();
  ::waitpid(sender, nullptr, 0);
  print_result(plan, seconds, bytes);
}
