// SPDX-License-Identifier: Apache-2.0
#include "rail/shm/provider.hpp"

#include "support/provider_contract.hpp"
#include "support/temporary_folder.hpp"

#include <poll.h>

#include <memory>
#include <string>

namespace headrace::test {
namespace {

std::unique_ptr<rail::Provider> open_shm_nic(const std::string& folder) {
  auto opened = rail::shm::ShmProvider::open(folder);
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

class ShmPair final : public ProviderPair {
 public:
  rail::Provider& nic(int side) override { return *nics_[side]; }
  void close(int side) override { nics_[side].reset(); }
  /// Waits until a NIC has something to do, or a moment.
  void pass() override {
    pollfd waited[2];
    int count = 0;
    for (const auto& nic : nics_) {
      if (nic == nullptr) continue;
      if (!nic->arm()) return;
      waited[count++] = {nic->descriptor(), POLLIN, 0};
    }
    ::poll(waited, static_cast<nfds_t>(count), 1);
  }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<rail::Provider> nics_[2] = {open_shm_nic(folder_.path()), open_shm_nic(folder_.path())};
};

INSTANTIATE_TEST_SUITE_P(Shm, ProviderContract,
                         testing::Values(ProviderCase{"shm", [] { return std::make_unique<ShmPair>(); }}),
                         name_of_provider_case);

}  // namespace
}  // namespace headrace::test
