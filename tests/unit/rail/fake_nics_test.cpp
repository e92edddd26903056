// SPDX-License-Identifier: Apache-2.0
#include "support/fake_nics.hpp"

#include "support/provider_contract.hpp"

namespace headrace::test {
namespace {

using namespace std::chrono_literals;

class FakePair final : public ProviderPair {
 public:
  explicit FakePair(const FakeFaults& faults) {
    net_.set_faults(faults);
    nics_[0] = net_.open("one");
    nics_[1] = net_.open("two");
  }
  rail::Provider& nic(int side) override { return *nics_[side]; }
  void close(int side) override { nics_[side].reset(); }
  void pass() override { net_.run_next(); }

 private:
  FakeNics net_;
  std::unique_ptr<rail::Provider> nics_[2];
};

ProviderCase fake_case(const char* name, const FakeFaults& faults) {
  return {name, [faults] { return std::make_unique<FakePair>(faults); }};
}

INSTANTIATE_TEST_SUITE_P(Fake, ProviderContract,
                         testing::Values(fake_case("fake", {}), fake_case("fake_reorders", {1us, 1ms})),
                         name_of_provider_case);

}  // namespace
}  // namespace headrace::test
