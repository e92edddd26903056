// SPDX-License-Identifier: Apache-2.0
#include "engine/take_metadata.hpp"

#include "base/errors.hpp"

#include <algorithm>
#include <mutex>

namespace headrace::engine {
namespace {

std::vector<RemoteRegion> rows_of(const wire::Metadata& m) {
  std::vector<RemoteRegion> rows(m.ids.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto kind = static_cast<std::uint8_t>(m.kinds[i] & ~wire::MetadataLimits::read_only_bit);
    rows[i] = {.address = m.addresses[i],
               .length = m.lengths[i],
               .backends = m.masks[i],
               .kind = kind,
               .writable = kind == m.kinds[i],
               .version = m.version};
  }
  return rows;
}

Result<void> check_backends(const PeerLife& life, const wire::Metadata& m, Origin origin) {
  for (std::size_t b = 0; b < std::min(m.backends.size(), life.backends.size()); ++b) {
    const auto& said = m.backends[b];
    const PeerBackend& held = life.backends[b];
    if (held.name != said.name)
      return make_error(Code::corrupt,
                        "metadata of peer {} renames its backend {} from {} to {} within one incarnation",
                        life.name, b, held.name, said.name);
    if (origin == Origin::sender && held.info && said.info && *held.info != *said.info)
      return make_error(Code::invalid_argument,
                        "peer {} sends another way to reach it over {} than the one that is held: import or "
                        "fetch its metadata here if that is right",
                        life.name, held.name);
  }
  return {};
}

void take_backends(PeerLife& life, wire::Metadata& m) {
  for (std::size_t b = 0; b < m.backends.size(); ++b) {
    auto& backend = m.backends[b];
    if (b == life.backends.size()) life.backends.push_back({backend.name, backend.version, std::nullopt});
    std::optional<std::string>& held = life.backends[b].info;
    // What is older than the rest does not change the way to the peer.
    if (backend.info && (!held || m.version >= life.version)) held = std::move(backend.info);
  }
}

Taken report_of(const PeerLife& life, std::uint64_t version, std::size_t gone) {
  if (gone == 0) return {};
  return {gone, fmt::format("{} regions in metadata of version {} were left out: peer {} has revoked them "
                            "since; version {} is held",
                            gone, version, life.name, life.version)};
}

}  // namespace

// Complete metadata says which regions there are at its version: `life.version` is the latest such version.
// Parts say nothing of other regions, and leave it as it is.
Result<Taken> take_metadata(PeerLife& life, wire::Metadata& m, Origin origin) {
  std::vector<RemoteRegion> rows = rows_of(m);
  const std::unique_lock lock(life.mutex);
  if (m.since > life.version) {
    return make_error(Code::not_found,
                      "this update of peer {} starts from version {}, we hold {}: ask it for a full export",
                      life.name, m.since, life.version);
  }
  if (!life.revoked.can_judge(m.version))
    return make_error(
        Code::not_found,
        "this metadata of peer {} is of version {}, and the peer has revoked regions since: ask it "
        "for a new export",
        life.name, m.version);
  HEADRACE_TRY_VOID(check_backends(life, m, origin));
  take_backends(life, m);
  const std::size_t revoked = life.revoked.take_out(m, rows);
  const std::size_t before = life.regions.size();
  const bool later = m.version >= life.version;
  if (m.whole() && later) life.regions.keep_only(m.ids, m.end);
  if (!m.gone.empty()) life.regions.erase(m.gone);
  if (life.regions.size() < before) life.epoch.fetch_add(1);
  const auto left = life.regions.merge(std::move(m.ids), std::move(rows), later);
  const auto taken = [&](std::uint32_t id) { return !left.has(id); };
  for (auto& named : m.named)
    if (taken(named.id)) life.regions.set_name(named.id, std::move(named.name), std::move(named.note));
  for (auto& data : m.public_data)
    if (taken(data.id)) life.regions.set_public(data.id, data.backend, std::move(data.bytes));
  if (!m.partial) life.version = std::max(life.version, m.version);
  life.has_metadata = true;
  return report_of(life, m.version, revoked + left.gone.size());
}

}  // namespace headrace::engine
