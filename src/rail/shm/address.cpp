// SPDX-License-Identifier: Apache-2.0
#include "rail/shm/address.hpp"

#include "host_link/socket_folder.hpp"

#include <algorithm>
#include <charconv>

namespace headrace::rail::shm {
namespace {

constexpr std::string_view near_scheme = "shm:";
constexpr std::size_t digits = 16;

bool read_digits(std::string_view text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return text.size() == digits && error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string encode(const NearAddress& address) {
  return fmt::format("{}{:016x}/{:016x}", near_scheme, address.host, address.life);
}

Result<NearAddress> read_near_address(std::string_view bytes) {
  NearAddress address;
  const bool ours = bytes.starts_with(near_scheme);
  const std::string_view rest = ours ? bytes.substr(near_scheme.size()) : "";
  if (rest.size() == 2 * digits + 1 && rest[digits] == '/' &&
      read_digits(rest.substr(0, digits), address.host) && read_digits(rest.substr(digits + 1), address.life))
    return address;
  const auto scheme = bytes.substr(0, std::min<std::size_t>(bytes.find(':'), 16));
  const bool named = !ours && scheme.size() < bytes.size() && !scheme.empty() &&
                     std::all_of(scheme.begin(), scheme.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  if (named)
    return make_error(Code::not_supported, "the NIC of this host cannot reach a NIC of kind {}", scheme);
  return make_error(
      Code::corrupt,
      "{} bytes are no address of a NIC of this host; expected is shm:host/life with 16 hex digits "
      "each, as the NIC says it",
      bytes.size());
}

std::uint64_t this_host() {
  std::string id = host_link::boot_id();
  std::erase(id, '-');
  std::uint64_t number = 0;
  return read_digits(std::string_view(id).substr(0, digits), number) ? number : 0;
}

}  // namespace headrace::rail::shm
