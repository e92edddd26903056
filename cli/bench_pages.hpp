// SPDX-License-Identifier: Apache-2.0
// `headrace bench pages`: how fast pages move between two processes of this machine.
#pragma once

namespace CLI {
class App;
}

namespace headrace::cli {

struct Invocation;

void add_bench_pages(CLI::App& bench, Invocation& invocation);

}  // namespace headrace::cli
