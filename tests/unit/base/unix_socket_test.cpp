// SPDX-License-Identifier: Apache-2.0
#include "base/unix_socket.hpp"

#include "base/clock.hpp"
#include "support/child_ending.hpp"
#include "support/temporary_folder.hpp"

#include <gtest/gtest.h>

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace headrace {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class UnixSocketTest : public ::testing::Test {
 protected:
  struct Pair {
    UnixSocket left;
    UnixSocket right;
  };
  Pair connected() {
    UnixListener listener = UnixListener::listen(path_).value();
    UnixSocket left = UnixSocket::connect(path_).value();
    UnixSocket right = listener.accept().value();
    return {std::move(left), std::move(right)};
  }

  const test::TemporaryFolder folder_;
  const std::string directory_ = folder_.path();
  const std::string path_ = directory_ + "/a.sock";
};

TEST_F(UnixSocketTest, AMessageArrivesWholeAndInOrder) {
  Pair pair = connected();
  std::array<std::byte, 64> buffer{};
  EXPECT_EQ(pair.right.receive(buffer).code(), Code::would_block);
  ASSERT_TRUE(pair.left.send(bytes_of("first")).ok());
  ASSERT_TRUE(pair.left.send(bytes_of("second one")).ok());
  EXPECT_EQ(pair.right.receive(buffer)->bytes, 5U);
  EXPECT_EQ(std::memcmp(buffer.data(), "first", 5), 0);
  EXPECT_EQ(pair.right.receive(buffer)->bytes, 10U);
}

TEST_F(UnixSocketTest, SixteenDescriptorsArriveAndOpenTheSameFiles) {
  Pair pair = connected();
  std::array<UniqueFd, 16> files;
  std::array<int, 16> numbers{};
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = fmt::format("{}/{}", directory_, i);
    files[i] = UniqueFd(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    numbers[i] = files[i].get();
    ASSERT_EQ(::pwrite(numbers[i], &i, sizeof i, 0), static_cast<ssize_t>(sizeof i));
  }
  ASSERT_TRUE(pair.left.send(bytes_of("files"), numbers).ok());
  std::array<std::byte, 8> buffer{};
  const UnixSocket::Received received = pair.right.receive(buffer).value();
  ASSERT_EQ(received.descriptors.size(), 16U);
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::size_t content = 99;
    ASSERT_EQ(::pread(received.descriptors[i].get(), &content, sizeof content, 0),
              static_cast<ssize_t>(sizeof content));
    EXPECT_EQ(content, i);
    EXPECT_EQ(::fcntl(received.descriptors[i].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
}

TEST_F(UnixSocketTest, SeventeenDescriptorsAndEmptyMessagesAreRefused) {
  Pair pair = connected();
  const std::array<int, 17> numbers{};
  EXPECT_EQ(pair.left.send(bytes_of("x"), numbers).code(), Code::invalid_argument);
  EXPECT_EQ(pair.left.send({}).code(), Code::invalid_argument);
}

TEST_F(UnixSocketTest, AMessageLargerThanTheBufferIsCorruptAndItsDescriptorsAreClosed) {
  Pair pair = connected();
  const std::size_t before = open_descriptors();
  const std::array<int, 2> numbers{pair.left.fd(), pair.right.fd()};
  ASSERT_TRUE(pair.left.send(bytes_of("far too long"), numbers).ok());
  std::array<std::byte, 4> buffer{};
  const auto received = pair.right.receive(buffer);
  EXPECT_EQ(received.code(), Code::corrupt);
  EXPECT_NE(received.error().message.find("12 bytes"), std::string::npos) << received.error().message;
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(pair.right.receive(buffer).code(), Code::would_block);
}

TEST_F(UnixSocketTest, MoreDescriptorsThanAllowedAreCorruptAndThoseReceivedAreClosed) {
  Pair pair = connected();
  const std::size_t before = open_descriptors();
  // Our send refuses 17 descriptors, so the test calls sendmsg as a peer that breaks the rule.
  constexpr std::size_t count = 17;
  alignas(cmsghdr) char control[CMSG_SPACE(count * sizeof(int))] = {};
  char letter = 'x';
  iovec part{&letter, 1};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(count * sizeof(int));
  for (std::size_t i = 0; i < count; ++i) {
    const int fd = pair.left.fd();
    std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
  }
  ASSERT_EQ(::sendmsg(pair.left.fd(), &header, 0), 1);
  std::array<std::byte, 4> buffer{};
  EXPECT_EQ(pair.right.receive(buffer).code(), Code::corrupt);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(UnixSocketTest, AReceiverWithoutFreeDescriptorsGetsAnError) {
  Pair pair = connected();
  const std::array<int, 4> numbers{0, 0, 0, 0};
  ASSERT_TRUE(pair.left.send(bytes_of("x"), numbers).ok());
  const UniqueFd highest =
      pair.left.fd() > pair.right.fd() ? UniqueFd(::dup(pair.left.fd())) : UniqueFd(::dup(pair.right.fd()));
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit tight = old;
  tight.rlim_cur = static_cast<rlim_t>(highest.get()) + 2;  // room for one more descriptor
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::array<std::byte, 4> buffer{};
  const auto received = pair.right.receive(buffer);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(received.code(), Code::exhausted);
  EXPECT_NE(received.error().message.find("ulimit -n"), std::string::npos) << received.error().message;
}

TEST_F(UnixSocketTest, AClosedPeerIsLost) {
  Pair pair = connected();
  { const UnixSocket gone = std::move(pair.left); }
  std::array<std::byte, 4> buffer{};
  EXPECT_EQ(pair.right.receive(buffer).code(), Code::peer_lost);
  EXPECT_EQ(pair.right.send(bytes_of("x")).code(), Code::peer_lost);
}

TEST_F(UnixSocketTest, SendReturnsWouldBlockWhileThePeerDoesNotRead) {
  Pair pair = connected();
  const std::vector<std::byte> message(4096);
  Result<void> sent = {};
  for (int i = 0; i < 100'000 && sent.ok(); ++i) sent = pair.left.send(message);
  EXPECT_EQ(sent.code(), Code::would_block);
  const std::vector<std::byte> enormous(64U << 20);
  EXPECT_EQ(connected().left.send(enormous).code(), Code::exhausted);
}

TEST_F(UnixSocketTest, CredentialsAndPidfdBelongToThePeer) {
  Pair pair = connected();
  const PeerCredentials peer = pair.right.peer_credentials().value();
  EXPECT_EQ(peer.pid, ::getpid());
  EXPECT_EQ(peer.uid, ::geteuid());
  EXPECT_EQ(peer.gid, ::getegid());

  UnixListener listener = UnixListener::listen(path_).value();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto socket = UnixSocket::connect(path_);
    std::byte letter{};
    while (socket.ok() && ::recv(socket->fd(), &letter, 1, 0) < 0)
      ::sched_yield();  // until the parent closes the connection
    ::_exit(0);
  }
  Result<UnixSocket> socket = listener.accept();
  const Deadline patience = Deadline::after(std::chrono::seconds(20));
  while (socket.code() == Code::would_block && !patience.expired()) socket = listener.accept();
  ASSERT_TRUE(socket.ok());
  EXPECT_EQ(socket->peer_credentials()->pid, child);
  const UniqueFd pidfd = socket->peer_pidfd().value();
  pollfd end{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, 0), 0);
  { const UnixSocket hang_up = std::move(*socket); }
  EXPECT_EQ(::poll(&end, 1, 20'000), 1);
  EXPECT_TRUE(test::ends_well(child));
}

TEST_F(UnixSocketTest, AMissingSocketIsNotFoundAndAStaleSocketFileIsPeerLost) {
  EXPECT_EQ(UnixSocket::connect(path_).code(), Code::not_found);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto listener = UnixListener::listen(path_);
    ::_exit(listener.ok() ? 0 : 1);  // _exit runs no destructor: the file stays, as after a crash
  }
  ASSERT_TRUE(test::ends_well(child));
  ASSERT_TRUE(fs::exists(path_));
  EXPECT_EQ(UnixSocket::connect(path_).code(), Code::peer_lost);
  UnixListener successor = UnixListener::listen(path_).value();
  EXPECT_TRUE(UnixSocket::connect(path_).ok());
}

TEST_F(UnixSocketTest, TheFilesHaveTheirModeAndAreRemovedWithTheListener) {
  {
    const UnixListener listener = UnixListener::listen(path_, 0600).value();
    EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0600));
  }
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(UnixSocketTest, ALivingListenerKeepsItsPath) {
  const UnixListener first = UnixListener::listen(path_).value();
  const auto second = UnixListener::listen(path_);
  EXPECT_EQ(second.code(), Code::invalid_argument);
  EXPECT_NE(second.error().message.find("in use by a living process"), std::string::npos);
  EXPECT_TRUE(UnixSocket::connect(path_).ok());
}

TEST_F(UnixSocketTest, AFileThatIsNoSocketIsNotRemoved) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(UnixListener::listen(path_).code(), Code::invalid_argument);
  EXPECT_EQ(fs::file_size(path_), 8U);
}

TEST_F(UnixSocketTest, AForkedChildDoesNotRemoveItsParentsFiles) {
  const UnixListener listener = UnixListener::listen(path_).value();
  const pid_t child = ::fork();
  if (child == 0) {
    {
      const UnixListener copy = std::move(const_cast<UnixListener&>(listener));
    }
    ::_exit(0);
  }
  EXPECT_TRUE(test::ends_well(child));
  EXPECT_TRUE(UnixSocket::connect(path_).ok());
}

TEST_F(UnixSocketTest, APathThatIsTooLongIsRefusedWithTheLimit) {
  const std::string path = directory_ + "/" + std::string(120, 'x');
  const auto refused = UnixListener::listen(path);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.error().message.find("at most 107 bytes"), std::string::npos) << refused.error().message;
  EXPECT_EQ(UnixSocket::connect(path).code(), Code::invalid_argument);
  EXPECT_TRUE(UnixListener::listen(directory_ + "/" + std::string(107 - directory_.size() - 1, 'x')).ok());
}

TEST_F(UnixSocketTest, OneOfManyConcurrentListenersOwnsThePath) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> owners = 0;
    std::atomic<int> tried = 0;
    std::vector<std::thread> starters;
    for (int i = 0; i < 4; ++i) {
      starters.emplace_back([&] {
        const auto listener = UnixListener::listen(path_);
        if (listener.ok()) ++owners;
        ++tried;
        while (tried < 4) std::this_thread::yield();  // no listener closes before all have tried
      });
    }
    for (std::thread& starter : starters) starter.join();
    EXPECT_EQ(owners, 1);
  }
}

TEST_F(UnixSocketTest, TheRuntimeDirectoryIsCreatedForItsUserOnly) {
  const std::string configured = directory_ + "/run";
  EXPECT_EQ(runtime_dir(configured, std::nullopt).value(), configured);
  EXPECT_EQ(fs::status(configured).permissions(), fs::perms(0700));
  EXPECT_EQ(runtime_dir(configured, std::nullopt).value(), configured);
  EXPECT_EQ(runtime_dir("", directory_).value(), directory_ + "/headrace");
  EXPECT_EQ(runtime_dir("", directory_ + "/missing").value(), fmt::format("/tmp/headrace-{}", ::geteuid()));
}

TEST_F(UnixSocketTest, ARuntimeDirectoryThatOtherUsersCanEnterIsRefused) {
  const std::string open = directory_ + "/open";
  fs::create_directory(open);
  fs::permissions(open, fs::perms(0750));
  const auto refused = runtime_dir(open, std::nullopt);
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.error().message.find("mode 0750"), std::string::npos) << refused.error().message;

  const std::string good = directory_ + "/good";
  ASSERT_TRUE(runtime_dir(good, std::nullopt).ok());
  const std::string link = directory_ + "/link";
  fs::create_symlink(good, link);
  EXPECT_EQ(runtime_dir(link, std::nullopt).code(), Code::invalid_argument);

  // A user who is not root finds a folder of another user: the root of the file system.
  const bool is_root = ::geteuid() == 0;
  if (is_root) {
    ASSERT_EQ(::chown(good.c_str(), 12345, 12345), 0);
  }
  const auto foreign = runtime_dir(is_root ? good : "/", std::nullopt);
  ASSERT_EQ(foreign.code(), Code::invalid_argument);
  EXPECT_NE(foreign.error().message.find(is_root ? "belongs to user 12345" : "belongs to user 0"),
            std::string::npos)
      << foreign.error().message;
}

}  // namespace
}  // namespace headrace
