// SPDX-License-Identifier: Apache-2.0
#include "collectives/line_file.hpp"

#include "base/errors.hpp"
#include "base/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

namespace headrace::collectives {
namespace {

Result<UniqueFd> open_for_lines(const std::string& path) {
  if (path == "stderr") {
    UniqueFd copy(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
    if (!copy) return os_error(errno, "duplicate standard error");
    return copy;
  }
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!file) return os_error(errno, "open {} for lines", path);
  return file;
}

}  // namespace

Result<std::shared_ptr<LineFile>> LineFile::open(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<LineFile>> files;
  const std::scoped_lock lock(mutex);
  if (auto known = files[path].lock()) return known;
  HEADRACE_TRY(file, open_for_lines(path));
  auto opened = std::make_shared<LineFile>(std::move(file), path);
  files[path] = opened;
  return opened;
}

void LineFile::add(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(file_.get(), line.data(), line.size());
    if (written < 0 && errno != EINTR) {
      const Error why = os_error(errno, "write to {}: its lines are lost", path_);
      if (!lost_.exchange(true)) Log(Logger::process_default(), "collectives").warn("{}", why.message);
      return;
    }
    if (written > 0) line.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace headrace::collectives
