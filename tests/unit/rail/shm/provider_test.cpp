// SPDX-License-Identifier: Apache-2.0
#include "rail/shm/provider.hpp"

#include "support/provider_contract.hpp"
#include "support/temporary_folder.hpp"
#include "unit/rail/wait_for_nics.hpp"

#include <memory>
#include <string>

namespace headrace::test {
namespace {

std::unique_ptr<rail::Provider> open_shm_nic(const std::string& folder, rail::shm::Copies copies) {
  rail::shm::Options options;
  options.copies = copies;
  auto opened = rail::shm::ShmProvider::open(folder, options);
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

class ShmPair final : public ProviderPair {
 public:
  explicit ShmPair(rail::shm::Copies copies)
      : nics_{open_shm_nic(folder_.path(), copies), open_shm_nic(folder_.path(), copies)} {}
  rail::Provider& nic(int side) override { return *nics_[side]; }
  void close(int side) override { nics_[side].reset(); }
  void pass() override { test::wait_for_nics(nics_); }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<rail::Provider> nics_[2];
};

ProviderCase shm_case(const char* name, rail::shm::Copies copies) {
  return {name, [=] { return std::make_unique<ShmPair>(copies); }};
}

INSTANTIATE_TEST_SUITE_P(Shm, ProviderContract,
                         testing::Values(shm_case("shm", rail::shm::Copies::by_the_system),
                                         shm_case("shm_rings", rail::shm::Copies::through_rings)),
                         name_of_provider_case);

}  // namespace
}  // namespace headrace::test
