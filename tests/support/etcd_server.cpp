// SPDX-License-Identifier: Apache-2.0
#include "support/etcd_server.hpp"

#include "support/child_ending.hpp"
#include "support/free_port.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <vector>

namespace headrace::test {
namespace {

constexpr int exec_failed = 127;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::string url(std::uint16_t port) { return "http://127.0.0.1:" + std::to_string(port); }

std::string content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

EtcdServer::EtcdServer() {
  for (int attempt = 0; attempt < 5; ++attempt) {
    client_port_ = free_port();
    peer_port_ = free_port();
    spawn();
    if (wait_until_it_serves()) return;
  }
  throw std::runtime_error("etcd does not start, it " + ending_ + ":\n" + content(folder_.path() + "/log"));
}

EtcdServer::~EtcdServer() { stop(); }

std::string EtcdServer::address() const { return "127.0.0.1:" + std::to_string(client_port_); }
std::string EtcdServer::store_url(const std::string& name_space) const {
  return "etcd://" + address() + "/" + name_space;
}

void EtcdServer::stop() {
  if (process_ <= 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  process_ = -1;
}

void EtcdServer::start() {
  spawn();
  if (!wait_until_it_serves())
    throw std::runtime_error("etcd does not start again, it " + ending_ + ":\n" +
                             content(folder_.path() + "/log"));
}

void EtcdServer::forget_everything() { std::filesystem::remove_all(folder_.path() + "/data"); }

void EtcdServer::spawn() {
  const std::string data = folder_.path() + "/data";
  const std::string log = folder_.path() + "/log";
  // Short election and heartbeat times: the only member waits for no other, and leases of one second become
  // possible.
  const std::vector<std::string> arguments = {"etcd",
                                              "--data-dir",
                                              data,
                                              "--listen-client-urls",
                                              url(client_port_),
                                              "--advertise-client-urls",
                                              url(client_port_),
                                              "--listen-peer-urls",
                                              url(peer_port_),
                                              "--initial-advertise-peer-urls",
                                              url(peer_port_),
                                              "--initial-cluster",
                                              "default=" + url(peer_port_),
                                              "--heartbeat-interval",
                                              "10",
                                              "--election-timeout",
                                              "100"};
  std::vector<char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);

  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ < 0) throw std::runtime_error("cannot fork for etcd");
  if (process_ > 0) return;
  // The child must not outlive a test that crashes, and its output goes to the log.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(exec_failed);
  const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  ::execvp("etcd", pointers.data());
  ::_exit(exec_failed);
}

bool EtcdServer::wait_until_it_serves() {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < give_up) {
    int status = 0;
    if (::waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      if (WIFEXITED(status) && WEXITSTATUS(status) == exec_failed) {
        throw std::runtime_error("there is no program `etcd`: install the Debian package etcd-server");
      }
      ending_ = test::ending_text(status);
      return false;
    }
    if (healthy()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw std::runtime_error("etcd does not serve after a minute:\n" + content(folder_.path() + "/log"));
}

bool EtcdServer::healthy() const {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(client_port_);
  const timeval patience{2, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  std::string answer;
  constexpr std::string_view question = "GET /health HTTP/1.0\r\n\r\n";
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::send(fd, question.data(), question.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(question.size())) {
    char buffer[1024];
    for (ssize_t got = 0; (got = ::recv(fd, buffer, sizeof buffer, 0)) > 0;)
      answer.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(fd);
  return answer.find("\"health\":\"true\"") != std::string::npos;
}

}  // namespace headrace::test
