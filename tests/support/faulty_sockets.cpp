// SPDX-License-Identifier: Apache-2.0
#include "support/faulty_sockets.hpp"

#include "base/errors.hpp"
#include "base/options.hpp"
#include "base/text.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace headrace::test {
namespace {

/// The first `bytes` of a list of buffers.
std::vector<iovec> first_of(const msghdr& message, std::uint64_t bytes) {
  std::vector<iovec> cut;
  for (std::size_t i = 0; i < message.msg_iovlen && bytes > 0; ++i) {
    iovec part = message.msg_iov[i];
    part.iov_len = std::min<std::uint64_t>(part.iov_len, bytes);
    bytes -= part.iov_len;
    cut.push_back(part);
  }
  return cut;
}

}  // namespace

Result<FaultPlan> FaultPlan::parse(std::string_view text) {
  struct Name {
    std::string_view name;
    std::uint64_t FaultPlan::*field;
    std::uint64_t middling;
  };
  static constexpr std::array<Name, 7> names{{{"short_reads", &FaultPlan::short_reads, 4096},
                                              {"short_writes", &FaultPlan::short_writes, 4096},
                                              {"eagain", &FaultPlan::eagain, 30},
                                              {"eintr", &FaultPlan::eintr, 10},
                                              {"reset_after", &FaultPlan::reset_after, 1 << 20},
                                              {"refuse", &FaultPlan::refuse, 1},
                                              {"seed", &FaultPlan::seed, 1}}};
  FaultPlan plan;
  for (const std::string_view part : split_list(text)) {
    const std::size_t equals = part.find('=');
    const std::string_view name = trim(part.substr(0, equals));
    const auto* const known =
        std::find_if(names.begin(), names.end(), [&](const Name& n) { return n.name == name; });
    if (known == names.end()) {
      return make_error(
          Code::invalid_argument,
          "there is no fault \"{}\": short_reads, short_writes, eagain, eintr, reset_after, refuse or seed",
          name);
    }
    plan.*known->field = known->middling;
    if (equals == std::string_view::npos) continue;
    HEADRACE_TRY(value, parse_bytes(part.substr(equals + 1)));
    plan.*known->field = value;
  }
  if (plan.eagain > 95 || plan.eintr > 95)
    return make_error(Code::invalid_argument,
                      "faults eagain={} eintr={}: at most 95 of 100, or nothing ever moves", plan.eagain,
                      plan.eintr);
  return plan;
}

FaultySockets::Trouble FaultySockets::draw(int fd, std::uint64_t short_limit) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t dice = random_() % 100;
  if (dice < plan_.eintr) return {EINTR, 0};
  if (plan_.eintr <= dice && dice < plan_.eintr + plan_.eagain) return {EAGAIN, 0};
  Trouble trouble;
  if (short_limit != 0) trouble.limit = 1 + random_() % short_limit;
  if (plan_.reset_after != 0) {
    const std::uint64_t so_far = carried_[fd];
    if (so_far >= plan_.reset_after) return {ECONNRESET, 0};
    // The last bytes before the reset go through: it strikes in the middle of things, not between calls.
    const std::uint64_t left = plan_.reset_after - so_far;
    trouble.limit = trouble.limit == 0 ? left : std::min(trouble.limit, left);
  }
  return trouble;
}

void FaultySockets::carried(int fd, ssize_t bytes) {
  if (bytes <= 0 || plan_.reset_after == 0) return;
  const std::scoped_lock lock(mutex_);
  carried_[fd] += static_cast<std::uint64_t>(bytes);
}

ssize_t FaultySockets::sendmsg(int fd, const msghdr* message, bool more) {
  const Trouble trouble = draw(fd, plan_.short_writes);
  if (trouble.error != 0) return errno = trouble.error, -1;
  ssize_t n = 0;
  if (trouble.limit == 0) {
    n = real_->sendmsg(fd, message, more);
  } else {
    std::vector<iovec> cut = first_of(*message, trouble.limit);
    msghdr part = *message;
    part.msg_iov = cut.data();
    part.msg_iovlen = cut.size();
    n = real_->sendmsg(fd, &part, more);
  }
  carried(fd, n);
  return n;
}

ssize_t FaultySockets::recvmsg(int fd, msghdr* message) {
  const Trouble trouble = draw(fd, plan_.short_reads);
  if (trouble.error != 0) return errno = trouble.error, -1;
  ssize_t n = 0;
  if (trouble.limit == 0) {
    n = real_->recvmsg(fd, message);
  } else {
    std::vector<iovec> cut = first_of(*message, trouble.limit);
    msghdr part = *message;
    part.msg_iov = cut.data();
    part.msg_iovlen = cut.size();
    n = real_->recvmsg(fd, &part);
  }
  carried(fd, n);
  return n;
}

int FaultySockets::connect(int fd, const sockaddr* address, socklen_t length) {
  {
    const std::scoped_lock lock(mutex_);
    carried_.erase(fd);
    if (refused_ < plan_.refuse) {
      ++refused_;
      errno = ECONNREFUSED;
      return -1;
    }
  }
  return real_->connect(fd, address, length);
}

int FaultySockets::accept(int fd, sockaddr* address, socklen_t* length) {
  const int made = real_->accept(fd, address, length);
  if (made >= 0) forget(made);
  return made;
}

void FaultySockets::forget(int fd) {
  const std::scoped_lock lock(mutex_);
  carried_.erase(fd);
}

}  // namespace headrace::test
