// SPDX-License-Identifier: Apache-2.0
#include "engine/verdict_folder.hpp"

#include "base/errors.hpp"
#include "base/hash.hpp"
#include "base/own_folder.hpp"
#include "base/random.hpp"

#include <headrace/plugin/backend_v1.h>

#include <cstdio>

namespace headrace::engine {
namespace {

constexpr std::size_t most_bytes = 4096;
constexpr char end_of_verdict = '\n';  // a file without it was cut off

bool write_whole(int fd, std::string_view text) {
  return ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

Result<VerdictFolder> VerdictFolder::open(const std::string& path) {
  if (!path.empty()) HEADRACE_TRY_VOID(open_own_folder_within(path));
  return VerdictFolder(path);
}

std::string VerdictFolder::file(std::string_view content) const {
  return fmt::format("{}/{:016x}-{}.{}", path_, hash64(std::as_bytes(std::span(content))),
                     HEADRACE_BACKEND_ABI_MAJOR, HEADRACE_BACKEND_ABI_MINOR);
}

std::optional<std::string> VerdictFolder::find(std::string_view content) const {
  if (path_.empty()) return std::nullopt;
  const auto opened = open_own_file(file(content));
  if (!opened) return std::nullopt;
  std::string text(most_bytes, '\0');
  const ssize_t bytes = ::read(opened->get(), text.data(), text.size());
  if (bytes <= 1 || text[static_cast<std::size_t>(bytes) - 1] != end_of_verdict) return std::nullopt;
  text.resize(static_cast<std::size_t>(bytes) - 1);
  return text;
}

void VerdictFolder::remember(std::string_view content, std::string_view verdict) const {
  if (path_.empty()) return;
  const std::string name = file(content), fresh = fmt::format("{}.{:016x}", name, random_u64());
  const UniqueFd made(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!made) return;
  if (!write_whole(made.get(), fmt::format("{}{}", verdict.substr(0, most_bytes - 1), end_of_verdict)) ||
      ::rename(fresh.c_str(), name.c_str()) != 0)
    ::unlink(fresh.c_str());
}

}  // namespace headrace::engine
