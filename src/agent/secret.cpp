// SPDX-License-Identifier: Apache-2.0
#include "agent/secret.hpp"

#include "base/errors.hpp"
#include "base/tcp_address.hpp"
#include "base/text.hpp"
#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace headrace {
namespace {

Result<std::string> first_line(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return os_error(Code::invalid_argument, errno, "read the secret from auth_token_file {}", path);
  std::array<char, 4096> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0)
    return os_error(Code::invalid_argument, errno, "read the secret from auth_token_file {}", path);
  std::string_view line(text.data(), static_cast<std::size_t>(got));
  line = trim(line.substr(0, line.find('\n')));
  if (line.empty())
    return make_error(Code::invalid_argument, "auth_token_file {} has an empty first line", path);
  return std::string(line);
}

}  // namespace

Result<Secret> Secret::read(const Options& core) {
  HEADRACE_TRY(token, core.text("auth_token"));
  HEADRACE_TRY(file, core.text("auth_token_file"));
  HEADRACE_TRY(auth, core.text("auth"));
  if (auth != "optional" && auth != "required")
    return make_error(Code::invalid_argument, "option auth is \"{}\": write optional or required", auth);
  if (!token.empty() && !file.empty())
    return make_error(Code::invalid_argument, "auth_token and auth_token_file ({}) are both set: choose one",
                      file);
  if (!file.empty()) {
    HEADRACE_TRY(line, first_line(file));
    token = std::move(line);
  }
  return Secret{std::move(token), auth == "required"};
}

Result<void> Secret::check_port(std::string_view port, std::string_view addresses,
                                std::string_view local) const {
  if (!required || !token.empty() || is_loopback_only(addresses)) return {};
  return make_error(Code::invalid_argument,
                    "{} listens on {} without a secret, and option auth is \"required\": set auth_token or "
                    "auth_token_file (HEADRACE_AUTH_TOKEN, HEADRACE_AUTH_TOKEN_FILE), or {}",
                    port, addresses.empty() ? "every interface" : addresses, local);
}

bool is_loopback_only(std::string_view addresses) {
  const std::vector<std::string_view> all = split_list(addresses);
  return !all.empty() && std::ranges::all_of(all, [](std::string_view text) {
    const auto address = TcpAddress::parse(text, 0);
    return address && address->is_loopback();
  });
}

}  // namespace headrace
