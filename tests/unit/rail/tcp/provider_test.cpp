// SPDX-License-Identifier: Apache-2.0
#include "rail/tcp/provider.hpp"

#include "support/provider_contract.hpp"
#include "unit/rail/wait_for_nics.hpp"

#include <memory>
#include <string>

namespace headrace::test {
namespace {

std::unique_ptr<rail::Provider> open_tcp_nic(const std::string& where) {
  auto opened = rail::tcp::TcpProvider::open(where);
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

class TcpPair final : public ProviderPair {
 public:
  TcpPair(const std::string& one, const std::string& other) : nics_{open_tcp_nic(one), open_tcp_nic(other)} {}
  rail::Provider& nic(int side) override { return *nics_[side]; }
  void close(int side) override { nics_[side].reset(); }
  void pass() override { test::wait_for_nics(nics_); }

 private:
  std::unique_ptr<rail::Provider> nics_[2];
};

ProviderCase tcp_case(const char* name, const char* one, const char* other) {
  return {name, [=] { return std::make_unique<TcpPair>(one, other); }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, ProviderContract,
                         testing::Values(tcp_case("tcp_v4", "127.0.0.1", "127.0.0.2"),
                                         tcp_case("tcp_v6", "::1", "::1")),
                         name_of_provider_case);

}  // namespace
}  // namespace headrace::test
