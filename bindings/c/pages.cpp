// SPDX-License-Identifier: Apache-2.0
// Page lists of include/headrace/c/agent.h.
#include "agent_handles.hpp"

#include <algorithm>
#include <span>

namespace headrace::c {
namespace {

static_assert(sizeof(headrace_page) == sizeof(Page) && sizeof(headrace_address_page) == sizeof(AddressPage));

PageColumn column_of(const headrace_page_column& given) { return {given.first, given.stride}; }

/// nullopt: the pages are contiguous.
Result<std::optional<PageView>> view_of_pages(const headrace_page_spec& spec) {
  if (spec.dimensions == 0) return std::optional<PageView>();
  if (spec.dimensions > HEADRACE_VIEW_DIMENSIONS)
    return wrong("a view has at most 4 dimensions, this one " + std::to_string(spec.dimensions));
  PageView view;
  view.shape.assign(spec.shape, spec.shape + spec.dimensions);
  const std::span strides(spec.strides, spec.dimensions);
  if (std::ranges::any_of(strides, [](std::int64_t stride) { return stride != 0; }))
    view.strides_bytes.assign(strides.begin(), strides.end());
  view.item_bytes = spec.item_bytes;
  return std::optional<PageView>(std::move(view));
}

UniformPages uniform_of(const headrace_page_spec& spec) {
  return {{spec.region}, spec.base, spec.stride, spec.page_bytes, spec.count};
}

RegionPages columns_of(const headrace_page_spec& spec) {
  return {{spec.region}, column_of(spec.offsets), column_of(spec.lengths), spec.count, spec.origin};
}

template <class Row>
Result<std::span<const Row>> rows_of(const headrace_page_spec& spec) {
  return array_in(static_cast<const Row*>(spec.rows), spec.count, "rows");
}

Result<PageSpec> spec_of(const headrace_page_spec& given) {
  auto view = view_of_pages(given);
  if (!view) return std::move(view).error();
  const auto with_view = [&](const auto& pages) {
    return *view ? PageSpec(pages, *std::move(*view)) : PageSpec(pages);
  };
  const auto with_rows = [&](const auto& rows) -> Result<PageSpec> {
    return rows ? Result<PageSpec>(with_view(*rows)) : rows.error();
  };
  switch (given.form) {
    case HEADRACE_PAGES_ROWS:
      return with_rows(rows_of<Page>(given));
    case HEADRACE_PAGES_ADDRESSES:
      return with_rows(rows_of<AddressPage>(given));
    case HEADRACE_PAGES_UNIFORM:
      return with_view(uniform_of(given));
    case HEADRACE_PAGES_COLUMNS:
      return with_view(columns_of(given));
    default:
      return wrong("there is no form of pages " + std::to_string(given.form) + ": see headrace_page_form");
  }
}

}  // namespace
}  // namespace headrace::c

using namespace headrace::c;
using headrace::Result;

std::int32_t headrace_agent_prepare(headrace_agent* agent, const char* peer, const headrace_page_spec* spec,
                                    headrace_page_list** pages, headrace_error** error) {
  return guarded(error, [&]() -> Result<void> {
    HEADRACE_C_TRY(given(agent, "agent"));
    HEADRACE_C_TRY(whole(spec, "spec"));
    HEADRACE_C_TRY(given(pages, "pages"));
    if (peer != nullptr && *peer == '\0') return wrong("a peer's name is not empty: NULL means this agent");
    auto which = spec_of(*spec);
    if (!which) return std::move(which).error();
    return make_handle(pages,
                       peer == nullptr ? agent->agent.prepare(*which) : agent->agent.prepare(peer, *which));
  });
}

std::uint64_t headrace_page_list_count(const headrace_page_list* pages) {
  return pages == nullptr ? 0 : pages->list.count();
}
std::uint64_t headrace_page_list_bytes(const headrace_page_list* pages) {
  return pages == nullptr ? 0 : pages->list.bytes();
}
void headrace_page_list_free(headrace_page_list* pages) { delete pages; }
