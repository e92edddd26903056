// SPDX-License-Identifier: Apache-2.0
// On which interfaces the ports of an agent are, and what is said where everybody can reach them.
#pragma once

#include "agent/secret.hpp"
#include "base/log.hpp"

#include <headrace/agent.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Where an agent asks peers to come to.
struct Meeting {
  std::string listen;  ///< the metadata socket's address; empty: no socket
  bool store = false;  ///< one that agents of other hosts can read, too

  /// `store` is its address. A store in the memory of this process brings nobody.
  [[nodiscard]] static Meeting at(std::string listen, std::string_view store);
  /// Peers of this host alone: the metadata socket is on loopback, and there is no store.
  [[nodiscard]] bool on_this_host() const;
  /// Peers of other hosts. Neither this nor `on_this_host`: metadata is passed on by hand, to any host.
  [[nodiscard]] bool beyond_this_host() const;
  /// The addresses of a backend's data port: those of its option `listen`. If that is not set, loopback where
  /// the agent meets on this host, else every interface ("").
  [[nodiscard]] std::string data_port(const OptionInfo& listen) const;
};

/// A port that is open.
struct OpenPort {
  std::string what;     ///< "tcp", "metadata"
  std::string address;  ///< with the port's number
  std::string setting;  ///< what keeps it on this host: "tcp.listen=127.0.0.1:0 (HEADRACE_TCP_LISTEN)"
};

/// `ports` are the addresses, separated by commas, on which an instance of the backend listens.
[[nodiscard]] std::vector<OpenPort> data_ports(const std::string& backend, std::string_view ports);
[[nodiscard]] OpenPort metadata_port(const std::string& address);

/// What keeps the data port of a backend on this host.
[[nodiscard]] std::string local_setting(const std::string& backend);

/// Says once in a process that ports beyond loopback ask for no secret, if the agent asks peers of other
/// hosts to come.
void warn_of_open_ports(const Log& log, const Meeting& meeting, const Secret& secret,
                        const std::vector<OpenPort>& ports);

}  // namespace headrace
