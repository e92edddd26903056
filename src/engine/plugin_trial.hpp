// SPDX-License-Identifier: Apache-2.0
// Others' plugins are tried in a child process, so that a crash or a hang ends only the child.
#pragma once

#include <headrace/result.hpp>

#include <string>

namespace headrace::engine {

/// Lets the child load and open the plugin. What it said is remembered in the folder, under a hash of the
/// file; that the child hung is not: the machine may have been busy. An empty folder: nothing is remembered.
///   `program`   loads the plugin named by its argument, opens an instance, exits 0; else says why on stdout
///   errors      not_supported (the plugin failed its trial), timed_out, not_found (the file cannot be read)
[[nodiscard]] Result<void> try_in_child(const std::string& plugin, const std::string& program,
                                        const std::string& cache_folder);

}  // namespace headrace::engine
