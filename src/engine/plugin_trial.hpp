// SPDX-License-Identifier: Apache-2.0
// Others' plugins are tried in a child process, so that a crash or a hang ends only the child.
#pragma once

#include <headrace/result.hpp>

#include <string>

namespace headrace::engine {

class VerdictFolder;

/// Lets the child load and open the plugin. What it said is remembered; that the child hung is not: the
/// machine may have been busy.
///   `program`   loads the plugin named by its argument, opens an instance, says "headrace: trial passed" on
///               stdout as the last line, exits 0; else says why
///   errors      not_supported (the plugin failed its trial), timed_out, not_found (the file cannot be read)
[[nodiscard]] Result<void> try_in_child(const std::string& plugin, const std::string& program,
                                        const VerdictFolder& verdicts);

}  // namespace headrace::engine
