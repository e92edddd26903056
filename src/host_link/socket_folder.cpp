// SPDX-License-Identifier: Apache-2.0
#include "host_link/socket_folder.hpp"

#include "base/unix_socket.hpp"

#include <dirent.h>

#include <fstream>
#include <memory>

namespace headrace::host_link {
namespace {

constexpr int stale_sockets_a_start = 32;

}  // namespace

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

/// Listening at such a socket takes the lock, which only a dead owner's socket lets us have, and going away
/// again removes the files.
void sweep_stale_sockets(const std::string& runtime_dir, const std::string& prefix) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(runtime_dir.c_str()), ::closedir);
  if (folder == nullptr) return;
  int swept = 0;
  while (const dirent* const entry = ::readdir(folder.get())) {
    const std::string_view file = entry->d_name;
    if (!file.starts_with(prefix) || !file.ends_with(socket_suffix)) continue;
    if (UnixListener::listen(runtime_dir + "/" + entry->d_name) && ++swept == stale_sockets_a_start) return;
  }
}

}  // namespace headrace::host_link
