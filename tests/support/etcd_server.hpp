// SPDX-License-Identifier: Apache-2.0
// A real etcd for a test: one member on loopback. Its data lie in a folder that is removed with it.
#pragma once

#include "support/temporary_folder.hpp"

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace headrace::test {

class EtcdServer {
 public:
  /// Starts etcd and waits until it serves. Throws std::runtime_error with a sentence if etcd is not
  /// installed: a test that needs etcd then fails.
  EtcdServer();
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  /// "127.0.0.1:40213".
  [[nodiscard]] std::string address() const;
  /// "etcd://127.0.0.1:40213/<name_space>".
  [[nodiscard]] std::string store_url(const std::string& name_space) const;

  /// Kills etcd. Its data stay.
  void stop();
  /// Starts etcd again on the same port and waits until it serves.
  void start();
  /// Removes the data. Call `stop` before and `start` after it.
  void forget_everything();

 private:
  void spawn();
  /// False: it has ended (`ending_` says how), for example since somebody else took a port.
  bool wait_until_it_serves();
  [[nodiscard]] bool healthy() const;

  const TemporaryFolder folder_;
  std::uint16_t client_port_ = 0;
  std::uint16_t peer_port_ = 0;
  pid_t process_ = -1;
  std::string ending_;
};

}  // namespace headrace::test
