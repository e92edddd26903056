// SPDX-License-Identifier: Apache-2.0
#include "wire/metadata.hpp"

#include "base/hash.hpp"
#include "base/names.hpp"
#include "base/utf8.hpp"
#include "wire/byte_writer.hpp"
#include "wire/msgpack_reader.hpp"
#include "wire/msgpack_writer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>

namespace headrace::wire {
namespace {

using Limits = MetadataLimits;
constexpr std::string_view metadata_magic = "HRMD";
constexpr const char* metadata_text = "metadata";

/// The keys of the body, in the order in which they are written and checked.
enum class Key : std::size_t {
  name,
  inc,
  ver,
  since,
  part,
  end,
  backends,
  n,
  id,
  addr,
  len,
  kind,
  mask,
  named,
  public_,
  gone
};
constexpr std::array<std::string_view, 16> key_names = {
    "name", "inc",  "ver", "since", "part", "end",   "backends", "n",
    "id",   "addr", "len", "kind",  "mask", "named", "public",   "gone"};

/// A broken rule of docs/wire.md, and the key that it is about.
struct Violation {
  Key key;
  std::string sentence;
};
using Verdict = std::optional<Violation>;

template <class... Args>
Verdict violation(Key key, fmt::format_string<Args...> text, Args&&... args) {
  return Violation{key, fmt::format(text, std::forward<Args>(args)...)};
}

Verdict check_bytes(Key key, const char* field, std::size_t size, std::size_t least, std::size_t most) {
  if (size >= least && size <= most) return std::nullopt;
  return violation(key, "{} has {} bytes, {} to {} are allowed", field, size, least, most);
}

Verdict check_text(Key key, const char* field, std::string_view text, std::size_t least, std::size_t most) {
  if (auto v = check_bytes(key, field, text.size(), least, most)) return v;
  if (!is_utf8(text)) return violation(key, "{} is not UTF-8", field);
  if (has_control_character(text))
    return violation(key, "{} {} has a control character", field, name_text(text));
  return std::nullopt;
}

Verdict check_count(Key key, std::size_t count, std::size_t most) {
  if (count <= most) return std::nullopt;
  return violation(key, "{} entries, at most {} are allowed", count, most);
}

Verdict check_backends(const Metadata& m) {
  if (auto v = check_count(Key::backends, m.backends.size(), Limits::backends)) return v;
  for (std::size_t i = 0; i < m.backends.size(); ++i) {
    const Metadata::Backend& backend = m.backends[i];
    if (auto v = check_text(Key::backends, "name", backend.name, 1, Limits::backend_name_bytes)) return v;
    if (auto v = check_text(Key::backends, "version", backend.version, 0, Limits::backend_name_bytes))
      return v;
    if (auto v = check_bytes(Key::backends, "info", backend.info ? backend.info->size() : 0, 0,
                             Limits::info_bytes))
      return v;
    for (std::size_t k = 0; k < i; ++k) {
      if (m.backends[k].name == backend.name)
        return violation(Key::backends, "\"{}\" appears twice", backend.name);
    }
  }
  return std::nullopt;
}

Verdict check_columns(const Metadata& m) {
  const std::size_t n = m.ids.size();
  if (auto v = check_count(Key::n, n, Limits::regions)) return v;
  if (m.addresses.size() != n || m.lengths.size() != n || m.kinds.size() != n || m.masks.size() != n) {
    return violation(Key::n, "{} ids, but {} addresses, {} lengths, {} kinds, {} masks", n,
                     m.addresses.size(), m.lengths.size(), m.kinds.size(), m.masks.size());
  }
  std::uint64_t below = 0;  // ids count from 1
  std::uint32_t allowed = (std::uint32_t{1} << m.backends.size()) - 1;
  for (std::size_t i = 0; i < n; ++i) {
    if (m.ids[i] <= below)
      return violation(Key::id, "id {} of region {} follows {}: ids rise from 1", m.ids[i], i, below);
    below = m.ids[i];
    if (m.addresses[i] + m.lengths[i] < m.addresses[i]) {
      return violation(Key::len, "region {}: {} bytes from 0x{:x} pass the end of memory", m.ids[i],
                       m.lengths[i], m.addresses[i]);
    }
    if ((m.masks[i] & ~allowed) != 0) {
      return violation(Key::mask, "region {}: mask 0x{:x} names a backend beyond the {} listed", m.ids[i],
                       m.masks[i], m.backends.size());
    }
  }
  return std::nullopt;
}

/// The position of `id` in `ids`, not before `from`; for lists whose ids rise.
std::optional<std::size_t> find_id(const std::vector<std::uint32_t>& ids, std::size_t from,
                                   std::uint32_t id) {
  const auto found = std::lower_bound(ids.begin() + static_cast<std::ptrdiff_t>(from), ids.end(), id);
  if (found == ids.end() || *found != id) return std::nullopt;
  return static_cast<std::size_t>(found - ids.begin());
}

Verdict check_named(const Metadata& m) {
  std::size_t from = 0;
  for (const Metadata::Named& named : m.named) {
    const auto at = find_id(m.ids, from, named.id);
    if (!at) return violation(Key::named, "id {} is not listed, or out of order", named.id);
    from = *at + 1;
    if (auto v = check_text(Key::named, "name", named.name, 0, Limits::name_bytes)) return v;
    if (auto v = check_bytes(Key::named, "note", named.note.size(), 0, Limits::note_bytes)) return v;
  }
  return std::nullopt;
}

Verdict check_public_data(const Metadata& m) {
  std::size_t from = 0;
  const Metadata::PublicData* before = nullptr;
  for (const Metadata::PublicData& data : m.public_data) {
    const auto at = find_id(m.ids, from, data.id);
    if (!at || (before != nullptr && before->id == data.id && before->backend >= data.backend)) {
      return violation(Key::public_, "id {}, backend {} is not listed, or out of order", data.id,
                       data.backend);
    }
    from = *at;
    if (data.backend >= m.backends.size() || (m.masks[*at] >> data.backend & 1) == 0) {
      return violation(Key::public_, "region {} is not registered with backend {}", data.id, data.backend);
    }
    if (auto v = check_bytes(Key::public_, "public data", data.bytes.size(), 0, Limits::public_data_bytes))
      return v;
    before = &data;
  }
  return std::nullopt;
}

Verdict check_gone(const Metadata& m) {
  if (auto v = check_count(Key::gone, m.gone.size(), Limits::gone_ranges)) return v;
  std::uint64_t end = 1;  // end of the previous range; ids count from 1
  auto listed = m.ids.begin();
  for (const IdRange& range : m.gone) {
    if (range.count == 0 || range.first < end ||
        std::uint64_t{range.first} + range.count > std::uint64_t{1} << 32) {
      return violation(Key::gone, "{} ids from {} on: an empty range, out of order, or beyond the last id",
                       range.count, range.first);
    }
    end = std::uint64_t{range.first} + range.count;
    listed = std::lower_bound(listed, m.ids.end(), range.first);
    if (listed != m.ids.end() && *listed < end)
      return violation(Key::gone, "region {} is both listed and gone", *listed);
  }
  return std::nullopt;
}

Verdict check_version(const Metadata& m) {
  if (m.version > Limits::version)
    return violation(Key::ver, "version {} is greater than {}, which no agent reaches", m.version,
                     Limits::version);
  if (m.since > m.version) return violation(Key::since, "since {} is beyond version {}", m.since, m.version);
  if (!m.whole() && m.end != 0)
    return violation(Key::end, "the end of the ids is {} in a part or update, which has none", m.end);
  const std::uint64_t last = m.ids.empty() ? 0 : m.ids.back();
  if (m.whole() && (m.end <= last || m.end > std::uint64_t{1} << 32))
    return violation(Key::end, "the ids end at {} in a whole export whose last one is {}", m.end, last);
  return std::nullopt;
}

/// Checks every rule that is not about layout, for metadata to be sent and for metadata received.
Verdict check(const Metadata& m) {
  if (auto v = check_text(Key::name, "name", m.name, 1, Limits::name_bytes)) return v;
  if (m.incarnation == 0) return violation(Key::inc, "the incarnation is 0");
  if (auto v = check_backends(m)) return v;
  if (auto v = check_columns(m)) return v;
  if (auto v = check_version(m)) return v;
  if (auto v = check_named(m)) return v;
  if (auto v = check_public_data(m)) return v;
  return check_gone(m);
}

// --- writing

void pack_key(Packer& packer, Key key) { pack_text(packer, key_names[static_cast<std::size_t>(key)]); }

template <class T>
std::string_view as_bytes(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

/// The column, or only its first value if all values are equal.
template <class T>
std::string_view compressed(const std::vector<T>& column) {
  const bool constant =
      std::adjacent_find(column.begin(), column.end(), std::not_equal_to<>()) == column.end();
  return as_bytes(std::span(column).first(constant ? 1 : column.size()));
}

std::string_view compressed_ids(const std::vector<std::uint32_t>& ids) {
  const bool counting = ids.back() - ids.front() == ids.size() - 1;  // the ids rise
  return as_bytes(std::span(ids).first(counting ? 1 : ids.size()));
}

void pack_columns(Packer& packer, const Metadata& m) {
  pack_key(packer, Key::n);
  packer.pack_uint64(m.ids.size());
  pack_key(packer, Key::id);
  pack_binary(packer, compressed_ids(m.ids));
  pack_key(packer, Key::addr);
  pack_binary(packer, as_bytes(std::span(m.addresses)));
  pack_key(packer, Key::len);
  pack_binary(packer, compressed(m.lengths));
  pack_key(packer, Key::kind);
  pack_binary(packer, compressed(m.kinds));
  pack_key(packer, Key::mask);
  pack_binary(packer, compressed(m.masks));
}

void pack_backends(Packer& packer, const std::vector<Metadata::Backend>& backends) {
  pack_key(packer, Key::backends);
  packer.pack_array(static_cast<std::uint32_t>(backends.size()));
  for (const Metadata::Backend& backend : backends) {
    packer.pack_array(3);
    pack_text(packer, backend.name);
    pack_text(packer, backend.version);
    if (backend.info) {
      pack_binary(packer, *backend.info);
    } else {
      packer.pack_nil();
    }
  }
}

void pack_named(Packer& packer, const std::vector<Metadata::Named>& named) {
  pack_key(packer, Key::named);
  packer.pack_array(static_cast<std::uint32_t>(named.size()));
  for (const Metadata::Named& entry : named) {
    packer.pack_array(3);
    packer.pack_uint32(entry.id);
    pack_text(packer, entry.name);
    pack_binary(packer, entry.note);
  }
}

void pack_public_data(Packer& packer, const std::vector<Metadata::PublicData>& public_data) {
  pack_key(packer, Key::public_);
  packer.pack_array(static_cast<std::uint32_t>(public_data.size()));
  for (const Metadata::PublicData& entry : public_data) {
    packer.pack_array(3);
    packer.pack_uint32(entry.id);
    packer.pack_uint32(entry.backend);
    pack_binary(packer, entry.bytes);
  }
}

/// The size of the body, except for msgpack's heads: one allocation instead of twenty.
std::size_t guess_body_bytes(const Metadata& m) {
  std::size_t bytes = 256 + m.name.size() + 24 * m.ids.size() + 8 * m.gone.size();
  for (const auto& backend : m.backends) bytes += 160 + (backend.info ? backend.info->size() : 0);
  for (const auto& named : m.named) bytes += 16 + named.name.size() + named.note.size();
  for (const auto& data : m.public_data) bytes += 16 + data.bytes.size();
  return bytes;
}

void pack_body(Packer& packer, const Metadata& m) {
  const bool regions = !m.ids.empty();
  packer.pack_map(3 + (m.since != 0) + m.partial + (m.end != 0) + !m.backends.empty() + 6 * regions +
                  !m.named.empty() + !m.public_data.empty() + !m.gone.empty());
  pack_key(packer, Key::name);
  pack_text(packer, m.name);
  pack_key(packer, Key::inc);
  packer.pack_uint64(m.incarnation);
  pack_key(packer, Key::ver);
  packer.pack_uint64(m.version);
  if (m.since != 0) {
    pack_key(packer, Key::since);
    packer.pack_uint64(m.since);
  }
  if (m.partial) {
    pack_key(packer, Key::part);
    packer.pack_true();
  }
  if (m.end != 0) {
    pack_key(packer, Key::end);
    packer.pack_uint64(m.end);
  }
  if (!m.backends.empty()) pack_backends(packer, m.backends);
  if (regions) pack_columns(packer, m);
  if (!m.named.empty()) pack_named(packer, m.named);
  if (!m.public_data.empty()) pack_public_data(packer, m.public_data);
  if (!m.gone.empty()) {
    pack_key(packer, Key::gone);
    pack_binary(packer, as_bytes(std::span(m.gone)));
  }
}
static_assert(sizeof(IdRange) == 8);  // sent as it lies in memory

// --- reading

/// Removes the envelope.
Result<std::string_view> open_envelope(std::string_view bytes, std::uint16_t& minor) {
  BoundedReader reader(bytes, metadata_text);
  HEADRACE_TRY(found_magic, reader.bytes(metadata_magic.size(), "the magic"));
  if (found_magic != metadata_magic)
    return reader.corrupt_at(0, "it does not begin with \"{}\"", metadata_magic);
  HEADRACE_TRY(major, reader.number<std::uint16_t>("the major version"));
  HEADRACE_TRY(found_minor, reader.number<std::uint16_t>("the minor version"));
  HEADRACE_TRY(length, reader.number<std::uint64_t>("the length"));
  HEADRACE_TRY(checksum, reader.number<std::uint64_t>("the checksum"));
  if (major != Limits::major) {
    return make_error(
        Code::not_supported,
        "the metadata has version {}.{}, this agent reads {}.{}: install the same version on both", major,
        found_minor, Limits::major, Limits::minor);
  }
  if (length != reader.remaining() || length > Limits::body_bytes) {
    return reader.corrupt_at(8, "the body should have {} bytes and has {}; at most {} are allowed", length,
                             reader.remaining(), Limits::body_bytes);
  }
  const std::string_view body = bytes.substr(Limits::envelope_bytes);
  const std::uint64_t computed = metadata_checksum(bytes.substr(0, 16), body);
  if (checksum != computed)
    return reader.corrupt_at(16, "the checksum is {:016x}, the bytes give {:016x}", checksum, computed);
  minor = found_minor;
  return body;
}

/// Reads one body into one Metadata.
class BodyReader {
 public:
  BodyReader(std::string_view body, std::uint16_t minor) : body_(body), minor_(minor) {}

  Result<Metadata> read() {
    HEADRACE_TRY_VOID(find_keys());
    HEADRACE_TRY_VOID(read_scalars());
    HEADRACE_TRY_VOID(read_backends());
    HEADRACE_TRY_VOID(read_columns());
    HEADRACE_TRY_VOID(read_named());
    HEADRACE_TRY_VOID(read_public_data());
    HEADRACE_TRY_VOID(read_gone());
    if (auto broken = check(m_)) {
      return at(broken->key)
          .corrupt("{}: {}", key_names[static_cast<std::size_t>(broken->key)], broken->sentence);
    }
    drop_unknown_kinds();
    return std::move(m_);
  }

 private:
  /// Records where the value of each key begins: keys come in any order, but their meaning depends on each
  /// other.
  Result<void> find_keys() {
    MsgpackReader reader(body_, metadata_text, Limits::envelope_bytes);
    HEADRACE_TRY(pairs, reader.map("the body"));
    for (std::uint32_t i = 0; i < pairs; ++i) {
      const std::size_t key_offset = reader.offset();
      HEADRACE_TRY(key, reader.text("a key", 255));
      const auto found = std::find(key_names.begin(), key_names.end(), key);
      if (found != key_names.end()) {
        std::size_t& where = where_[static_cast<std::size_t>(found - key_names.begin())];
        if (where != absent) return reader.corrupt_at(key_offset, "key \"{}\" appears twice", key);
        where = reader.offset() - Limits::envelope_bytes;
      } else if (minor_ <= Limits::minor) {
        return reader.corrupt_at(key_offset, "version {}.{} has no such key", Limits::major, minor_);
      }
      HEADRACE_TRY_VOID(reader.skip("a value"));
    }
    return reader.end();
  }

  [[nodiscard]] bool has(Key key) const { return where_[static_cast<std::size_t>(key)] != absent; }
  /// A reader at the key's value; for an absent key it is at the start of the body.
  [[nodiscard]] MsgpackReader at(Key key) const {
    const std::size_t where = has(key) ? where_[static_cast<std::size_t>(key)] : 0;
    return MsgpackReader(body_.substr(where), metadata_text, Limits::envelope_bytes + where);
  }

  Result<void> read_number(Key key, std::uint64_t& value) {
    if (!has(key)) return {};
    HEADRACE_TRY(number, at(key).unsigned_integer(key_names[static_cast<std::size_t>(key)].data()));
    value = number;
    return {};
  }

  Result<void> read_scalars() {
    if (has(Key::name)) {
      HEADRACE_TRY(name, at(Key::name).text("name", Limits::name_bytes, 1));
      m_.name = name;
    }
    HEADRACE_TRY_VOID(read_number(Key::inc, m_.incarnation));
    HEADRACE_TRY_VOID(read_number(Key::ver, m_.version));
    HEADRACE_TRY_VOID(read_number(Key::since, m_.since));
    if (has(Key::part)) {
      HEADRACE_TRY(partial, at(Key::part).boolean("part"));
      m_.partial = partial;
    }
    return read_number(Key::end, m_.end);
  }

  /// An array of entries with `width` values each; `read_entry` reads one entry.
  template <class ReadEntry>
  Result<void> read_array(Key key, std::size_t most, std::uint32_t width, ReadEntry read_entry) {
    if (!has(key)) return {};
    MsgpackReader reader = at(key);
    const char* field = key_names[static_cast<std::size_t>(key)].data();
    HEADRACE_TRY(count, reader.array(field));
    if (count > most) return reader.corrupt("{}: {} entries, at most {} are allowed", field, count, most);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::size_t offset = reader.offset();
      HEADRACE_TRY(values, reader.array(field));
      if (values != width)
        return reader.corrupt_at(offset, "{}: {} values instead of {}", field, values, width);
      HEADRACE_TRY_VOID(read_entry(reader));
    }
    return {};
  }

  Result<void> read_backends() {
    return read_array(Key::backends, Limits::backends, 3, [this](MsgpackReader& reader) -> Result<void> {
      HEADRACE_TRY(name, reader.text("a backend's name", Limits::backend_name_bytes, 1));
      HEADRACE_TRY(version, reader.text("a backend's version", Limits::backend_name_bytes));
      Metadata::Backend& backend =
          m_.backends.emplace_back(std::string(name), std::string(version), std::nullopt);
      if (reader.take_nil()) return {};
      HEADRACE_TRY(info, reader.binary("a backend's info", Limits::info_bytes));
      backend.info = info;
      return {};
    });
  }

  Result<std::string_view> column_bytes(Key key) {
    const char* field = key_names[static_cast<std::size_t>(key)].data();
    if (!has(key)) return at(key).corrupt("{} regions, but no \"{}\"", n_, field);
    return at(key).binary(field, Limits::body_bytes);
  }

  Error wrong_size(Key key, std::size_t size, std::size_t each) {
    return at(key).corrupt("{} has {} bytes: neither one value nor one for each of {} regions of {}",
                           key_names[static_cast<std::size_t>(key)], size, n_, each);
  }

  /// A column of n values, or one value for all.
  template <class T>
  Result<void> read_column(Key key, std::vector<T>& column) {
    HEADRACE_TRY(bytes, column_bytes(key));
    if (bytes.size() == n_ * sizeof(T)) {
      column.resize(n_);
      std::memcpy(column.data(), bytes.data(), bytes.size());
    } else if (bytes.size() == sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data(), sizeof value);
      column.assign(n_, value);
    } else {
      return wrong_size(key, bytes.size(), sizeof(T));
    }
    return {};
  }

  Result<void> read_columns() {
    HEADRACE_TRY_VOID(read_number(Key::n, n_));
    if (n_ > Limits::regions)
      return at(Key::n).corrupt("n is {}, at most {} are allowed", n_, Limits::regions);
    if (n_ == 0) {
      for (const Key key : {Key::id, Key::addr, Key::len, Key::kind, Key::mask}) {
        if (has(key))
          return at(key).corrupt("\"{}\" without regions", key_names[static_cast<std::size_t>(key)]);
      }
      return {};
    }
    // Addresses first: they are never compressed, so that from here on the input's size bounds n.
    HEADRACE_TRY(addresses, column_bytes(Key::addr));
    if (addresses.size() != 8 * n_) return wrong_size(Key::addr, addresses.size(), 8);
    m_.addresses.resize(n_);
    std::memcpy(m_.addresses.data(), addresses.data(), addresses.size());

    HEADRACE_TRY_VOID(read_ids());
    HEADRACE_TRY_VOID(read_column(Key::len, m_.lengths));
    HEADRACE_TRY_VOID(read_column(Key::kind, m_.kinds));
    return read_column(Key::mask, m_.masks);
  }

  Result<void> read_ids() {
    HEADRACE_TRY_VOID(read_column(Key::id, m_.ids));
    if (column_bytes(Key::id)->size() != 4 || n_ == 1) return {};
    if (m_.ids.front() + (n_ - 1) > UINT32_MAX) {
      return at(Key::id).corrupt("{} ids from {} on: beyond the last id", n_, m_.ids.front());
    }
    std::iota(m_.ids.begin(), m_.ids.end(), m_.ids.front());
    return {};
  }

  Result<void> read_named() {
    return read_array(Key::named, m_.ids.size(), 3, [this](MsgpackReader& reader) -> Result<void> {
      HEADRACE_TRY(id, reader.unsigned_integer("a named region's id", UINT32_MAX));
      HEADRACE_TRY(name, reader.text("a region's name", Limits::name_bytes));
      HEADRACE_TRY(note, reader.binary("a region's note", Limits::note_bytes));
      m_.named.emplace_back(static_cast<std::uint32_t>(id), std::string(name), std::string(note));
      return {};
    });
  }

  Result<void> read_public_data() {
    const std::size_t most = m_.ids.size() * m_.backends.size();
    return read_array(Key::public_, most, 3, [this](MsgpackReader& reader) -> Result<void> {
      HEADRACE_TRY(id, reader.unsigned_integer("a region's id", UINT32_MAX));
      HEADRACE_TRY(backend, reader.unsigned_integer("a backend's index", Limits::backends - 1));
      HEADRACE_TRY(bytes, reader.binary("public data", Limits::public_data_bytes));
      m_.public_data.emplace_back(static_cast<std::uint32_t>(id), static_cast<std::uint16_t>(backend),
                                  std::string(bytes));
      return {};
    });
  }

  Result<void> read_gone() {
    if (!has(Key::gone)) return {};
    HEADRACE_TRY(bytes, at(Key::gone).binary("gone", sizeof(IdRange) * Limits::gone_ranges));
    if (bytes.size() % sizeof(IdRange) != 0)
      return at(Key::gone).corrupt("gone has {} bytes, which is not a multiple of 8", bytes.size());
    m_.gone.resize(bytes.size() / sizeof(IdRange));
    if (!bytes.empty()) std::memcpy(m_.gone.data(), bytes.data(), bytes.size());
    return {};
  }

  /// A later minor version may have kinds that this one does not know: their regions are dropped.
  void drop_unknown_kinds() {
    const auto unknown = [](std::uint8_t kind) {
      return (kind & ~Limits::read_only_bit) > Limits::greatest_kind;
    };
    if (std::none_of(m_.kinds.begin(), m_.kinds.end(), unknown)) return;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < m_.ids.size(); ++i) {
      if (unknown(m_.kinds[i])) continue;
      m_.ids[kept] = m_.ids[i];
      m_.addresses[kept] = m_.addresses[i];
      m_.lengths[kept] = m_.lengths[i];
      m_.kinds[kept] = m_.kinds[i];
      m_.masks[kept] = m_.masks[i];
      ++kept;
    }
    m_.ids.resize(kept);
    m_.addresses.resize(kept);
    m_.lengths.resize(kept);
    m_.kinds.resize(kept);
    m_.masks.resize(kept);
    const auto dropped = [this](const auto& entry) { return !find_id(m_.ids, 0, entry.id); };
    std::erase_if(m_.named, dropped);
    std::erase_if(m_.public_data, dropped);
  }

  static constexpr std::size_t absent = ~std::size_t{0};
  static constexpr std::array<std::size_t, key_names.size()> nowhere() {
    std::array<std::size_t, key_names.size()> where{};
    where.fill(absent);
    return where;
  }

  std::string_view body_;
  std::uint16_t minor_;
  std::array<std::size_t, key_names.size()> where_ = nowhere();
  std::uint64_t n_ = 0;
  Metadata m_;
};

}  // namespace

std::uint64_t metadata_checksum(std::string_view first_16_bytes, std::string_view body) noexcept {
  const auto hash = [](std::string_view view, std::uint64_t seed) {
    return hash64(std::as_bytes(std::span(view)), seed);
  };
  return hash(body, hash(first_16_bytes, 0));
}

Result<std::string> encode(const Metadata& metadata) {
  if (const auto broken = check(metadata)) {
    return make_error(Code::invalid_argument,
                      "the metadata of \"{}\" breaks a rule of the wire format, {}: {}", metadata.name,
                      key_names[static_cast<std::size_t>(broken->key)], broken->sentence);
  }
  ByteWriter writer;
  writer.reserve(Limits::envelope_bytes + guess_body_bytes(metadata));
  writer.bytes(metadata_magic);
  writer.number(Limits::major);
  writer.number(Limits::minor);
  writer.number(std::uint64_t{0});  // length and checksum: filled in after the body
  writer.number(std::uint64_t{0});
  Packer packer(writer);
  pack_body(packer, metadata);

  std::string bytes = std::move(writer).take();
  const std::uint64_t length = bytes.size() - Limits::envelope_bytes;
  if (length > Limits::body_bytes) {
    return make_error(Code::exhausted,
                      "the metadata of \"{}\" takes {} bytes, at most {} are allowed: export it in parts",
                      metadata.name, length, Limits::body_bytes);
  }
  std::memcpy(bytes.data() + 8, &length, sizeof length);
  const std::string_view view = bytes;
  const std::uint64_t checksum = metadata_checksum(view.substr(0, 16), view.substr(Limits::envelope_bytes));
  std::memcpy(bytes.data() + 16, &checksum, sizeof checksum);
  return bytes;
}

Result<Metadata> decode(std::string_view bytes) {
  std::uint16_t minor = 0;
  HEADRACE_TRY(body, open_envelope(bytes, minor));
  return BodyReader(body, minor).read();
}

}  // namespace headrace::wire
