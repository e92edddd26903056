// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/lingering_close.hpp"

#include "backends/tcp/context.hpp"
#include "backends/tcp/frame_writer.hpp"
#include "backends/tcp/socket_setup.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>

namespace headrace::tcp {
namespace {

class LingeringClose final : public Watched {
 public:
  LingeringClose(IoThread& thread, UniqueFd fd, const Context& context, std::shared_ptr<const void> held,
                 LastWords words)
      : thread_(thread),
        fd_(std::move(fd)),
        context_(context),
        until_ns_(words.until_ns),
        held_(std::move(held)) {
    words_.keep(std::move(words.bytes));
    (void)words_.flush(*context_.calls, fd_.get());  // an error shows again, at the first look
    if (words_.empty()) ::shutdown(fd_.get(), SHUT_WR);
  }

  bool watch() {
    const std::uint32_t events = words_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
    return thread_.watch(shared_from_this(), fd_.get(), events).ok();
  }

  void on_ready(std::uint32_t events) override {
    if ((events & EPOLLOUT) != 0) speak();
    hear();
  }
  std::uint64_t on_time(std::uint64_t now_ns) override {
    if (now_ns < until_ns_) return until_ns_;
    finish();
    return never;
  }

 private:
  void speak() {
    if (!fd_ || words_.empty()) return;
    const auto flushed = words_.flush(*context_.calls, fd_.get()).result;
    if (flushed == FrameWriter::Flushed::blocked) return;
    if (flushed == FrameWriter::Flushed::failed) return finish();
    ::shutdown(fd_.get(), SHUT_WR);
    (void)thread_.change(*this, fd_.get(), EPOLLIN);
  }

  void hear() {
    std::array<char, 16 * 1024> nowhere;
    for (int i = 0; i < 64 && fd_; ++i) {
      const ssize_t n = ::recv(fd_.get(), nowhere.data(), nowhere.size(), MSG_DONTWAIT);
      if (n > 0 || (n < 0 && errno == EINTR)) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      finish();
    }
  }

  void finish() {
    if (!fd_) return;
    thread_.forget(*this, fd_.get());
    context_.calls->forget(fd_.get());
    if (words_.empty()) {
      fd_.reset();
    } else {
      abort_connection(std::move(fd_));  // nothing of a frame that is cut arrives later
    }
    held_.reset();
  }

  IoThread& thread_;
  UniqueFd fd_;
  const Context& context_;
  const std::uint64_t until_ns_;
  std::shared_ptr<const void> held_;
  FrameWriter words_;
};

}  // namespace

std::shared_ptr<const void> Farewells::begin() {
  const std::scoped_lock lock(mutex_);
  ++under_way_;
  return {this, [this](const void*) {
            const std::scoped_lock end(mutex_);
            --under_way_;
            changed_.notify_all();
          }};
}

void Farewells::wait() {
  std::unique_lock lock(mutex_);
  (void)changed_.wait_for(lock, std::chrono::nanoseconds(farewell_patience_ns + farewell_patience_ns / 10),
                          [this] { return under_way_ == 0; });
}

void close_lingering(IoThread& thread, UniqueFd fd, const Context& context, std::shared_ptr<const void> held,
                     LastWords words) {
  const auto closing =
      std::make_shared<LingeringClose>(thread, std::move(fd), context, std::move(held), std::move(words));
  (void)closing->watch();  // if it cannot be watched it is closed at once
}

}  // namespace headrace::tcp
