// SPDX-License-Identifier: Apache-2.0
// contract [--backends=NAME[,NAME...]] [GoogleTest's own flags]: see cases.hpp.
#include "contract/cases.hpp"
#include "support/fake_gpus.hpp"
#include "support/faulty_tcp.hpp"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  headrace::test::FakeGpus::link_backends();
  headrace::test::link_faulty_tcp();
  headrace::contract::read_backends_flag(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
