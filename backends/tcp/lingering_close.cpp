// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/lingering_close.hpp"

#include "backends/tcp/context.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace headrace::tcp {
namespace {

constexpr std::uint64_t patience_ns = 1'000'000'000;

class LingeringClose final : public Watched {
 public:
  LingeringClose(IoThread& thread, UniqueFd fd, std::uint64_t until_ns, std::shared_ptr<const void> held)
      : thread_(thread), fd_(std::move(fd)), until_ns_(until_ns), held_(std::move(held)) {}

  bool watch() { return thread_.watch(shared_from_this(), fd_.get(), EPOLLIN).ok(); }

  void on_ready(std::uint32_t) override {
    std::array<char, 16 * 1024> nowhere;
    for (int i = 0; i < 64 && fd_; ++i) {
      const ssize_t n = ::recv(fd_.get(), nowhere.data(), nowhere.size(), MSG_DONTWAIT);
      if (n > 0 || (n < 0 && errno == EINTR)) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      finish();
    }
  }
  std::uint64_t on_time(std::uint64_t now_ns) override {
    if (now_ns < until_ns_) return until_ns_;
    finish();
    return never;
  }

 private:
  void finish() {
    if (!fd_) return;
    thread_.forget(*this, fd_.get());
    fd_.reset();
    held_.reset();
  }

  IoThread& thread_;
  UniqueFd fd_;
  const std::uint64_t until_ns_;
  std::shared_ptr<const void> held_;
};

}  // namespace

void close_lingering(IoThread& thread, UniqueFd fd, const Context& context,
                     std::shared_ptr<const void> held) {
  ::shutdown(fd.get(), SHUT_WR);
  const auto closing = std::make_shared<LingeringClose>(thread, std::move(fd),
                                                        context.host.now_ns() + patience_ns, std::move(held));
  (void)closing->watch();  // if it cannot be watched it is closed at once
}

}  // namespace headrace::tcp
