// SPDX-License-Identifier: Apache-2.0
#include "base/errors.hpp"

#include <cctype>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace headrace {
namespace {

std::string_view advice(int error_number) {
  if (error_number == EMFILE) return "; close descriptors, or raise `ulimit -n`";
  if (error_number == ENFILE) return "; the system has no descriptor left: raise fs.file-max";
  return {};
}

}  // namespace

std::string os_error_text(int error_number) {
  char buffer[128] = "";
  std::string text =
      ::strerror_r(error_number, buffer, sizeof buffer);  // the GNU version: it returns the text
  const auto upper = [&](std::size_t i) { return std::isupper(static_cast<unsigned char>(text[i])) != 0; };
  // "Permission denied" becomes "permission denied"; "RPC version wrong" stays.
  if (text.size() > 1 && upper(0) && !upper(1)) text[0] = static_cast<char>(std::tolower(text[0]));
  return fmt::format("{} (errno {}){}", text, error_number, advice(error_number));
}

Code code_of_errno(int error_number) noexcept {
  switch (error_number) {
    case EAGAIN:
    case EINPROGRESS:
    case EALREADY:
      return Code::would_block;
    case EINVAL:
    case EBADF:
    case EFAULT:
    case ENAMETOOLONG:
    case EISDIR:
    case ENOTDIR:
    case EADDRINUSE:
    case EADDRNOTAVAIL:
      return Code::invalid_argument;
    case ENOENT:
    case ENODEV:
    case ENXIO:
    case ESRCH:
      return Code::not_found;
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
    case EPROTONOSUPPORT:
      return Code::not_supported;
    case ETIMEDOUT:
      return Code::timed_out;
    case ECANCELED:
      return Code::canceled;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case EPIPE:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
      return Code::peer_lost;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOSPC:
    case EDQUOT:
    case ETOOMANYREFS:
      return Code::exhausted;
    default:
      return Code::backend_failed;
  }
}

}  // namespace headrace
