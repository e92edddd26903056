// SPDX-License-Identifier: Apache-2.0
// Files and folders whose content this process believes: code that it loads, verdicts on plugins, names of
// peers. Another user who can write there chooses that content. So they are made for this user alone, and
// what is found is used only if it belongs to this user or to root and nobody else may write to it.
#pragma once

#include "base/unique_fd.hpp"

#include <sys/stat.h>

#include <string>

namespace headrace {

/// Whether nobody but this user and root can write to it.
[[nodiscard]] bool is_own(const struct stat& status) noexcept;
/// The same for what lies at `path`, which must be of that type (S_IFREG, S_IFDIR); a link is not followed.
[[nodiscard]] bool is_own(const std::string& path, mode_t type) noexcept;
/// As `is_own`, with what to do.
///   errors  invalid_argument (another user owns it, or others may write to it)
[[nodiscard]] Result<void> check_own(const struct stat& status, const std::string& path);

/// Makes the folder and its parents where they are missing, with mode 0700.
[[nodiscard]] Result<void> make_folders(const std::string& path);

/// Opens a folder of this user, and makes it where it is missing.
///   errors  invalid_argument (it is a link or no folder; another user owns it, or others may write to it)
[[nodiscard]] Result<UniqueFd> open_own_folder(const std::string& path);

/// The same for a folder that is used by its path: nobody else can put another folder in its place.
///   errors  those of open_own_folder, also for the folder that it lies in; that one may be sticky, as /tmp
///   is
[[nodiscard]] Result<UniqueFd> open_own_folder_within(const std::string& path);

/// Opens a file of this user for reading. It follows no link. It does not wait, even for a FIFO.
///   errors  invalid_argument (it is a link or no file; another user owns it, or others may write to it)
[[nodiscard]] Result<UniqueFd> open_own_file(const std::string& path);

}  // namespace headrace
