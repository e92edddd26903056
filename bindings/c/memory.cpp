// SPDX-License-Identifier: Apache-2.0
// Regions and mappings of include/headrace/c/agent.h.
#include "agent_handles.hpp"

#include <nlohmann/json.hpp>

namespace headrace::c {

Result<MemoryRange> range_of(const headrace_memory* memory) {
  HEADRACE_C_TRY(whole(memory, "memory"));
  if (memory->kind < HEADRACE_KIND_DRAM || memory->kind > HEADRACE_KIND_OBJECT)
    return wrong("there is no kind of memory " + std::to_string(memory->kind) + ": see headrace_kind");
  MemoryRange range;
  range.kind = static_cast<MemoryKind>(memory->kind);
  range.address = memory->address;
  range.length_bytes = memory->length;
  range.device = range.kind == MemoryKind::vram ? memory->device : -1;
  // Host memory has no descriptor, and a struct of zeros would name descriptor 0.
  const bool by_descriptor = range.kind == MemoryKind::block || range.kind == MemoryKind::file;
  range.file_descriptor = by_descriptor && memory->path == nullptr ? memory->file_descriptor : -1;
  range.path = text_or_empty(memory->path);
  range.writable = memory->read_only == 0;
  return range;
}

namespace {

/// From here on the caller's `drop` is certain to be called, also after a failure.
Result<RegisterOptions> register_options_of(const headrace_register_options* given) {
  RegisterOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  if (given->drop != nullptr) options.keep_alive = context_of(given->keep, given->drop);
  options.name = text_or_empty(given->name);
  if (given->note == nullptr && given->note_size > 0) return missing("note");
  options.note =
      given->note_size > 0 ? std::string(given->note, given->note_size) : text_or_empty(given->note);
  options.backends = names_in(given->backends);
  return options;
}

Result<AllocateOptions> allocate_options_of(const headrace_allocate_options* given) {
  AllocateOptions options;
  if (given == nullptr) return options;
  HEADRACE_C_TRY(whole(given, "options"));
  auto registration = register_options_of(given->registration);
  if (!registration) return std::move(registration).error();
  options.registration = std::move(*registration);
  if (given->kind < HEADRACE_KIND_DRAM || given->kind > HEADRACE_KIND_OBJECT)
    return wrong("there is no kind of memory " + std::to_string(given->kind) + ": see headrace_kind");
  options.kind = static_cast<MemoryKind>(given->kind);
  options.numa_node = given->numa_node;
  options.near_gpu = given->near_gpu;
  options.huge_pages = given->huge_pages != 0;
  options.writable = given->read_only == 0;
  return options;
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_agent_register(headrace_agent* agent, const headrace_memory* ranges,
                                     std::uint64_t count, const headrace_register_options* options,
                                     std::uint32_t* regions, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    auto wanted = register_options_of(options);
    if (!wanted) return std::move(wanted).error();
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(ranges, "ranges"));
    HEADRACE_C_TRY(given(regions, "regions"));
    std::vector<headrace::MemoryRange> all;
    for (std::uint64_t i = 0; i < count; ++i) {
      auto range = range_of(element(ranges, i));
      if (!range) return std::move(range).error().within("range " + std::to_string(i));
      all.push_back(std::move(*range));
    }
    auto made = agent->agent.register_memory(all, *wanted);
    if (!made) return std::move(made).error();
    for (std::uint64_t i = 0; i < count; ++i) regions[i] = (*made)[i].id.value;
    return {};
  });
}

std::int32_t headrace_agent_allocate(headrace_agent* agent, std::uint64_t length,
                                     const headrace_allocate_options* options, std::uint32_t* region,
                                     void** address, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    auto wanted = allocate_options_of(options);
    if (!wanted) return std::move(wanted).error();
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(region, "region"));
    auto made = agent->agent.allocate(length, *wanted);
    if (!made) return std::move(made).error();
    *region = made->id.value;
    if (address != nullptr) *address = made->bytes().data();
    return {};
  });
}

std::int32_t headrace_agent_deregister(headrace_agent* agent, const std::uint32_t* regions,
                                       std::uint64_t count, std::int64_t timeout_ns, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(regions, "regions"));
    auto numbers = array_in(regions, count, "regions");
    if (!numbers) return std::move(numbers).error();
    std::vector<headrace::RegionId> ids;
    for (const std::uint32_t number : *numbers) ids.push_back({number});
    return agent->agent.deregister(ids, timeout_of(timeout_ns));
  });
}

std::int32_t headrace_agent_regions(const headrace_agent* agent, headrace_regions** regions,
                                    headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(regions, "regions"));
    *regions = new headrace_regions{agent->agent.regions()};
    return {};
  });
}

std::int32_t headrace_agent_peer_regions(const headrace_agent* agent, const char* peer,
                                         headrace_regions** regions, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(peer, "peer"));
    HEADRACE_C_TRY(given(regions, "regions"));
    return make_handle(regions, agent->agent.peer_regions(peer));
  });
}

std::int32_t headrace_agent_peer_region(const headrace_agent* agent, const char* peer, const char* name,
                                        headrace_regions** regions, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(peer, "peer"));
    HEADRACE_C_TRY(given(name, "name"));
    HEADRACE_C_TRY(given(regions, "regions"));
    auto found = agent->agent.peer_region(peer, name);
    if (!found) return std::move(found).error();
    *regions = new headrace_regions{{std::move(*found)}};
    return {};
  });
}

std::uint64_t headrace_regions_count(const headrace_regions* regions) {
  return regions == nullptr ? 0 : regions->regions.size();
}

std::int32_t headrace_regions_get(const headrace_regions* regions, std::uint64_t index,
                                  headrace_region* region, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(whole(region, "region"));
    if (index >= headrace_regions_count(regions))
      return wrong("there is no region " + std::to_string(index) + " in this list of " +
                   std::to_string(headrace_regions_count(regions)));
    const headrace::Region& found = regions->regions[index];
    region->id = found.id.value;
    region->kind = static_cast<std::int32_t>(found.kind);
    region->address = found.address;
    region->length = found.length_bytes;
    region->name = found.name.c_str();
    region->note = found.note.c_str();
    region->read_only = found.writable ? 0 : 1;
    region->reserved = 0;
    region->note_size = found.note.size();
    return {};
  });
}

void headrace_regions_free(headrace_regions* regions) { delete regions; }

std::int32_t headrace_agent_query(headrace_agent* agent, const headrace_memory* what, const char* backend,
                                  headrace_bytes** json, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(backend, "backend"));
    HEADRACE_C_TRY(given(json, "json"));
    auto range = range_of(what);
    if (!range) return std::move(range).error();
    auto found = agent->agent.query(*range, backend);
    if (!found) return std::move(found).error();
    *json = nullptr;
    if (*found) give(json, nlohmann::ordered_json(**found).dump());
    return {};
  });
}

std::int32_t headrace_agent_map(headrace_agent* agent, const char* peer, std::uint32_t region,
                                std::int32_t device, std::int64_t timeout_ns, headrace_mapping** mapping,
                                headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(given(peer, "peer"));
    HEADRACE_C_TRY(given(mapping, "mapping"));
    return make_handle(mapping, agent->agent.map(peer, {region}, timeout_of(timeout_ns), device));
  });
}

void* headrace_mapping_address(const headrace_mapping* mapping) {
  return mapping == nullptr ? nullptr : mapping->mapping.bytes().data();
}
std::uint64_t headrace_mapping_length(const headrace_mapping* mapping) {
  return mapping == nullptr ? 0 : mapping->mapping.bytes().size();
}
std::int32_t headrace_mapping_read_only(const headrace_mapping* mapping) {
  return mapping != nullptr && !mapping->mapping.writable() ? 1 : 0;
}
std::int32_t headrace_mapping_alive(const headrace_mapping* mapping) {
  return mapping != nullptr && mapping->mapping.alive() ? 1 : 0;
}
void headrace_mapping_free(headrace_mapping* mapping) { delete mapping; }
