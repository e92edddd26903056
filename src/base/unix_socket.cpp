// SPDX-License-Identifier: Apache-2.0
#include "base/unix_socket.hpp"

#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cstring>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace headrace {
namespace {

constexpr int socket_flags = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int backlog = 1024;  // all agents of a host may start at once

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty()) return make_error(Code::invalid_argument, "the path of a Unix socket is empty");
  if (path.size() >= sizeof address.sun_path) {
    return make_error(
        Code::invalid_argument,
        "the path of a Unix socket holds at most {} bytes and this one has {}: {}; choose a shorter "
        "directory with HEADRACE_RUNTIME_DIR",
        sizeof address.sun_path - 1, path.size(), path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* generic(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

/// Opens and locks "<path>.lock". Its last holder may unlink the file between the open and the lock here.
/// Then the locked file is not the one that others will open, and the loop begins again.
Result<UniqueFd> take_lock(const std::string& path) {
  const std::string lock_path = path + ".lock";
  for (;;) {
    UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock) return os_error(errno, "open the lock file {}", lock_path);
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return os_error(errno, "lock {}", lock_path);
      return make_error(Code::invalid_argument, "{} is in use by a living process: choose another name",
                        path);
    }
    struct stat ours {};
    struct stat named {};
    if (::fstat(lock.get(), &ours) < 0)
      return os_error(errno, "read the state of the lock file {}", lock_path);
    if (::stat(lock_path.c_str(), &named) == 0 && ours.st_dev == named.st_dev &&
        ours.st_ino == named.st_ino) {
      return lock;
    }
  }
}

/// Removes a socket file that its dead owner left. The held lock proves that the owner is gone.
Result<void> remove_stale(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) < 0) {
    if (errno == ENOENT) return {};
    return os_error(errno, "read the state of {}", path);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return make_error(Code::invalid_argument,
                      "{} exists and is not a socket: remove it or choose another name", path);
  }
  if (::unlink(path.c_str()) < 0 && errno != ENOENT)
    return os_error(errno, "remove the stale socket {}", path);
  return {};
}

std::vector<UniqueFd> take_descriptors(msghdr& header) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

Error peer_closed() { return make_error(Code::peer_lost, "the peer has closed the connection"); }

}  // namespace

Result<UnixSocket> UnixSocket::connect(const std::string& path) {
  HEADRACE_TRY(address, address_of(path));
  UniqueFd fd(::socket(AF_UNIX, socket_flags, 0));
  if (!fd) return os_error(errno, "create a Unix socket");
  while (::connect(fd.get(), generic(address), sizeof address) < 0) {
    if (errno != EINTR) return os_error(errno, "connect to {}", path);
  }
  return UnixSocket(std::move(fd));
}

Result<UnixSocket> UnixSocket::adopt(UniqueFd fd) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) < 0) {
    return os_error(errno, "make socket {} non-blocking", fd.get());
  }
  return UnixSocket(std::move(fd));
}

Result<void> UnixSocket::send(std::span<const std::byte> message, std::span<const int> descriptors) {
  // The receiver could not distinguish an empty message from the end of the connection.
  if (message.empty())
    return make_error(Code::invalid_argument, "a message over a Unix socket needs at least 1 byte");
  if (descriptors.size() > max_descriptors) {
    return make_error(Code::invalid_argument, "a message carries at most {} descriptors and this one has {}",
                      max_descriptors, descriptors.size());
  }
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(max_descriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    if (::sendmsg(fd_.get(), &header, MSG_NOSIGNAL) >= 0) return {};
    if (errno == EINTR) continue;
    const Code code = errno == EMSGSIZE ? Code::exhausted : code_of_errno(errno);
    return os_error(code, errno, "send {} bytes and {} descriptors over Unix socket {}", message.size(),
                    descriptors.size(), fd_.get());
  }
}

Result<UnixSocket::Received> UnixSocket::receive(std::span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(max_descriptors * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got = 0;
  while ((got = ::recvmsg(fd_.get(), &header, MSG_CMSG_CLOEXEC | MSG_TRUNC)) < 0) {
    if (errno != EINTR) return os_error(errno, "receive from Unix socket {}", fd_.get());
  }
  // From here on the descriptors have owners, so that every return closes them.
  Received received{static_cast<std::size_t>(got), take_descriptors(header)};
  if (got == 0) return peer_closed();
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    if (received.descriptors.size() < max_descriptors)
      return make_error(Code::exhausted,
                        "a message over Unix socket {} lost descriptors: this process has reached its limit "
                        "of file descriptors: raise it (ulimit -n)",
                        fd_.get());
    return make_error(Code::corrupt, "a message over Unix socket {} has more than {} descriptors", fd_.get(),
                      max_descriptors);
  }
  if (received.bytes > buffer.size()) {
    return make_error(Code::corrupt,
                      "a message over Unix socket {} has {} bytes and the most that is allowed is {}",
                      fd_.get(), received.bytes, buffer.size());
  }
  return received;
}

Result<PeerCredentials> UnixSocket::peer_credentials() const {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) {
    return os_error(errno, "read the credentials of the peer of Unix socket {}", fd_.get());
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

Result<UniqueFd> UnixSocket::peer_pidfd() const {
  int direct = -1;
  socklen_t length = sizeof direct;
  // Since Linux 6.5 this names the process that connected. Before, the pid may have been reused if the peer
  // has ended; then the socket's hang-up reports that.
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERPIDFD, &direct, &length) == 0) {
    ::fcntl(direct, F_SETFD, FD_CLOEXEC);
    return UniqueFd(direct);
  }
  HEADRACE_TRY(peer, peer_credentials());
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
  if (fd) return fd;
  const int why = errno;
  const Code code = why == ESRCH                     ? Code::peer_lost
                    : why == EMFILE || why == ENFILE ? Code::exhausted
                                                     : Code::not_supported;
  return os_error(code, why, "open a pidfd of process {}", peer.pid);
}

UnixListener::UnixListener(UniqueFd lock, UniqueFd fd, std::string path)
    : lock_(std::move(lock)), fd_(std::move(fd)), path_(std::move(path)), made_in_(::getpid()) {}

Result<UnixListener> UnixListener::listen(const std::string& path, mode_t mode) {
  HEADRACE_TRY(address, address_of(path));
  HEADRACE_TRY(lock, take_lock(path));
  HEADRACE_TRY_VOID(remove_stale(path));
  UniqueFd fd(::socket(AF_UNIX, socket_flags, 0));
  if (!fd) return os_error(errno, "create a Unix socket");
  if (::bind(fd.get(), generic(address), sizeof address) < 0) return os_error(errno, "bind {}", path);
  UnixListener listener(std::move(lock), std::move(fd), path);  // from here on the files have an owner
  // Connections are possible only after listen, so the mode is set in time.
  if (::chmod(path.c_str(), mode) < 0) return os_error(errno, "set mode {:o} on {}", mode, path);
  if (::listen(listener.fd(), backlog) < 0) return os_error(errno, "listen at {}", path);
  return listener;
}

UnixListener& UnixListener::operator=(UnixListener&& other) noexcept {
  if (this != &other) {
    close();
    lock_ = std::move(other.lock_);
    fd_ = std::move(other.fd_);
    path_ = std::move(other.path_);
    made_in_ = other.made_in_;
  }
  return *this;
}

UnixListener::~UnixListener() { close(); }

void UnixListener::close() noexcept {
  if (!fd_) return;
  if (::getpid() == made_in_) {
    // In this order, under the lock: the next owner finds both files or none.
    ::unlink(path_.c_str());
    ::unlink((path_ + ".lock").c_str());
  }
  fd_.reset();
  lock_.reset();
}

Result<UnixSocket> UnixListener::accept() {
  for (;;) {
    UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) return UnixSocket(std::move(fd));
    if (errno != EINTR && errno != ECONNABORTED) return os_error(errno, "accept at {}", path_);
  }
}

namespace {

std::string runtime_dir_name(std::string_view configured, const std::optional<std::string>& xdg_runtime_dir) {
  if (!configured.empty()) return std::string(configured);
  struct stat found {};
  if (xdg_runtime_dir && !xdg_runtime_dir->empty() && ::stat(xdg_runtime_dir->c_str(), &found) == 0 &&
      S_ISDIR(found.st_mode)) {
    return *xdg_runtime_dir + "/headrace";
  }
  return fmt::format("/tmp/headrace-{}", ::geteuid());
}

}  // namespace

Result<std::string> runtime_dir(std::string_view configured,
                                const std::optional<std::string>& xdg_runtime_dir) {
  std::string path = runtime_dir_name(configured, xdg_runtime_dir);
  if (::mkdir(path.c_str(), 0700) < 0 && errno != EEXIST)
    return os_error(errno, "make the runtime directory {}", path);
  // Opened without following a link and checked through the descriptor: every user can write to /tmp.
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory && code_of_errno(errno) == Code::exhausted)
    return os_error(errno, "open the runtime directory {}", path);
  if (!directory)
    return os_error(Code::invalid_argument, errno, "open the runtime directory {} (a link is refused)", path);
  struct stat found {};
  if (::fstat(directory.get(), &found) < 0)
    return os_error(errno, "read the state of the runtime directory {}", path);
  if (found.st_uid != ::geteuid()) {
    return make_error(
        Code::invalid_argument,
        "the runtime directory {} belongs to user {} and this process is user {}: remove it or set "
        "HEADRACE_RUNTIME_DIR",
        path, found.st_uid, ::geteuid());
  }
  if ((found.st_mode & 0077) != 0) {
    return make_error(
        Code::invalid_argument,
        "the runtime directory {} has mode {:04o}, which gives other users access: chmod 700 it or set "
        "HEADRACE_RUNTIME_DIR",
        path, found.st_mode & 07777);
  }
  return path;
}

}  // namespace headrace
