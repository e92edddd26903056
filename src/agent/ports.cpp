// SPDX-License-Identifier: Apache-2.0
#include "agent/ports.hpp"

#include "base/tcp_address.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <atomic>

namespace headrace {

Meeting Meeting::at(std::string listen, std::string_view store) {
  return {std::move(listen), !store.empty() && !store.starts_with("memory:")};
}

bool Meeting::on_this_host() const { return !store && is_loopback_only(listen); }

bool Meeting::beyond_this_host() const { return store || (!listen.empty() && !is_loopback_only(listen)); }

std::string Meeting::data_port(const OptionInfo& option) const {
  if (option.source != "default" || !on_this_host()) return option.value;
  const auto address = TcpAddress::parse(listen, 0);
  return address ? TcpAddress{address->host, 0}.text() : option.value;  // the metadata socket will refuse it
}

std::string local_setting(const std::string& backend) {
  return fmt::format("{}.listen=127.0.0.1:0 ({})", backend, variable_name(backend, "listen"));
}

std::vector<OpenPort> data_ports(const std::string& backend, std::string_view ports) {
  std::vector<OpenPort> open;
  for (const std::string_view address : split_list(ports))
    open.push_back({backend, std::string(address), local_setting(backend)});
  return open;
}

OpenPort metadata_port(const std::string& address) {
  return {"metadata", address, "listen=127.0.0.1:0 of the agent"};
}

void warn_of_open_ports(const Log& log, const Meeting& meeting, const Secret& secret,
                        const std::vector<OpenPort>& ports) {
  if (!secret.token.empty() || !meeting.beyond_this_host()) return;
  std::vector<std::string> open, settings;
  for (const OpenPort& port : ports) {
    if (is_loopback_only(port.address)) continue;
    open.push_back(port.what + " " + port.address);
    if (std::ranges::find(settings, port.setting) == settings.end()) settings.push_back(port.setting);
  }
  // Of the process: an agent of many says what is true of all.
  static std::atomic_flag said;
  if (open.empty() || said.test_and_set()) return;
  log.warn(
      "ports are open beyond this host without a secret: {}; everyone who reaches them can take up any name "
      "that is not connected, and read and write registered memory: set auth_token or auth_token_file, or "
      "{} (docs/security.md)",
      fmt::join(open, ", "), fmt::join(settings, " and "));
}

}  // namespace headrace
