// SPDX-License-Identifier: Apache-2.0
// contract [--backends=NAME[,NAME...]] [GoogleTest's own flags]: see cases.hpp.
#include "contract/cases.hpp"
#include "support/fake_gpus.hpp"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  headrace::test::FakeGpus::offer_backends();
  headrace::contract::read_backends_flag(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
