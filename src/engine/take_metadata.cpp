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
    rows[i] = {m.addresses[i], m.lengths[i], m.masks[i], kind, kind == m.kinds[i]};
  }
  return rows;
}

Result<void> take_backends(PeerLife& life, wire::Metadata& m) {
  for (std::size_t b = 0; b < m.backends.size(); ++b) {
    auto& backend = m.backends[b];
    if (b < life.backends.size() && life.backends[b].name != backend.name) {
      return make_error(Code::corrupt,
                        "metadata of peer {} renames its backend {} from {} to {} within one incarnation",
                        life.name, b, life.backends[b].name, backend.name);
    }
    if (b == life.backends.size()) life.backends.push_back({backend.name, backend.version, std::nullopt});
    if (backend.info) life.backends[b].info = std::move(backend.info);
  }
  return {};
}

}  // namespace

Result<void> take_metadata(PeerLife& life, wire::Metadata& m) {
  std::vector<RemoteRegion> rows = rows_of(m);
  const std::unique_lock lock(life.mutex);
  const bool whole = m.since == 0 && !m.partial;
  if (m.since > 0 && m.since > life.version) {
    return make_error(Code::not_found,
                      "this update of peer {} starts from version {}, we hold {}: ask it for a full export",
                      life.name, m.since, life.version);
  }
  if (whole && life.has_metadata && m.version < life.version) return {};
  if (!life.revoked.can_judge(m.version))
    return make_error(
        Code::not_found,
        "this metadata of peer {} is of version {}, and the peer has revoked regions since: ask it "
        "for a new export",
        life.name, m.version);
  life.revoked.take_out(m, rows);
  life.has_metadata = true;
  HEADRACE_TRY_VOID(take_backends(life, m));
  const std::size_t before = life.regions.size();
  if (whole) life.regions.keep_only(m.ids);
  if (!m.gone.empty()) life.regions.erase(m.gone);
  const bool lost_some = life.regions.size() < before;
  life.regions.merge(std::move(m.ids), std::move(rows));
  for (auto& named : m.named) life.regions.set_name(named.id, std::move(named.name), std::move(named.note));
  for (auto& data : m.public_data) life.regions.set_public(data.id, data.backend, std::move(data.bytes));
  life.version = std::max(life.version, m.version);
  if (lost_some) life.epoch.fetch_add(1);
  return {};
}

}  // namespace headrace::engine
