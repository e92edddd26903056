// SPDX-License-Identifier: Apache-2.0
// The file of the table by which communicators of `auto` choose.
#include <headrace/comm_tuning.hpp>

#include "base/options.hpp"
#include "base/own_folder.hpp"
#include "base/random.hpp"
#include "base/unique_fd.hpp"
#include "choice/tuning.hpp"
#include "collectives/observers.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

namespace headrace {
namespace {

std::string usual_path() {
  constexpr const char* file = "headrace/collectives.json";
  if (const auto xdg = environment_variable("XDG_CONFIG_HOME"); xdg && xdg->starts_with('/'))
    return *xdg + "/" + file;
  if (const auto home = environment_variable("HOME"); home && home->starts_with('/'))
    return *home + "/.config/" + file;
  return {};
}

Result<std::string> content_of(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return os_error(errno, "open the table of collectives {}", path);
  std::string content;
  std::array<char, 4096> part{};
  while (true) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error(errno, "read the table of collectives {}", path);
    if (got == 0) return content;
    content.append(part.data(), static_cast<std::size_t>(got));
    if (content.size() > choice::most_text_bytes)
      return content;  // the reader of the text says what is wrong
  }
}

Result<void> write_whole(int file, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t put = ::write(file, text.data(), text.size());
    if (put < 0 && errno != EINTR) return os_error(errno, "write {}", path);
    if (put > 0) text.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::fsync(file) != 0) return os_error(errno, "write {} to the disk", path);
  return {};
}

/// Another name in the same folder, until the file is whole.
Result<void> replace_file(const std::string& path, std::string_view text) {
  const std::string part = fmt::format("{}.{:016x}.part", path, random_u64());
  Result<void> done;
  {
    const UniqueFd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file) return os_error(errno, "make {}", part);
    done = write_whole(file.get(), text, part);
  }
  if (done && ::rename(part.c_str(), path.c_str()) != 0)
    done = os_error(errno, "rename {} to {}", part, path);
  if (!done) ::unlink(part.c_str());
  return done;
}

}  // namespace

Result<std::string> comm_tuning_path() {
  HEADRACE_TRY(named, collectives::tuning_option());
  return named.empty() ? usual_path() : named;
}

Result<CommTuning> read_comm_tuning(const std::string& path) {
  HEADRACE_TRY(named, path.empty() ? collectives::tuning_option() : Result<std::string>(path));
  const std::string file = named.empty() ? usual_path() : named;
  if (file.empty()) return built_in_comm_tuning();
  auto text = content_of(file);
  if (!text && named.empty() && text.code() == Code::not_found) return built_in_comm_tuning();
  if (!text) {
    Error error = std::move(text).error();
    error.message += ". `headrace tune` writes such a file; hint table and HEADRACE_COMM_TUNE name one";
    return error;
  }
  return choice::parse_tuning(*text, file);
}

Result<std::string> write_comm_tuning(const CommTuning& tuning, const std::string& path) {
  HEADRACE_TRY(file, path.empty() ? comm_tuning_path() : Result<std::string>(path));
  if (file.empty())
    return make_error(
        Code::not_found,
        "neither XDG_CONFIG_HOME nor HOME names a folder for the table of collectives: name a file");
  if (const auto slash = file.rfind('/'); slash != std::string::npos && slash != 0)
    HEADRACE_TRY_VOID(make_folders(file.substr(0, slash)));
  HEADRACE_TRY_VOID(replace_file(file, choice::tuning_text(tuning)));
  return file;
}

}  // namespace headrace
