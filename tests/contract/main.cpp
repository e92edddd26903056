// SPDX-License-Identifier: Apache-2.0
// contract [--backends=NAME[,NAME...]] [GoogleTest's own flags]: see cases.hpp.
#include "contract/cases.hpp"
#include "support/fake_gpus.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string_view>

namespace {

constexpr const char* usage =
    "usage: contract [--backends=NAME[,NAME...]] [GoogleTest's flags]\n"
    "  NAME is a row of tests/contract/cases.cpp or the path of a plugin, /tmp/headrace_backend_mine.so;\n"
    "  without --backends every row is tested. docs/writing-a-transport.md says more.\n";

}  // namespace

int main(int argc, char** argv) {
  const bool asks_help = std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
    return argument == "--help" || argument == "-h";
  });
  if (asks_help) std::cout << usage << "\n" << std::flush;  // GoogleTest prints its own help behind it
  headrace::test::FakeGpus::offer_backends();
  headrace::contract::read_backends_flag(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && !asks_help) {
    std::cerr << "contract: there is no flag " << argv[1] << '\n' << usage;
    return 2;
  }
  return RUN_ALL_TESTS();
}
