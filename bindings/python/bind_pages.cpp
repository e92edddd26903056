// SPDX-License-Identifier: Apache-2.0
// <headrace/pages.hpp>; what Agent.prepare takes is read in page_input.cpp.
#include <headrace/pages.hpp>

#include "bindings/python/binding.hpp"
#include "bindings/python/convert.hpp"
#include "bindings/python/page_input.hpp"
#include "bindings/python/refuse_pickle.hpp"

namespace headrace::python {

void bind_pages(nb::module_& module) {
  nb::class_<UniformPages>(module, "UniformPages",
                           "`count` pages of one length: page i begins at base_bytes + i * stride_bytes of "
                           "one region. The cheapest\n"
                           "list to make and to keep.")
      .def(
          "__init__",
          [](UniformPages* self, nb::handle region, std::uint64_t base, std::uint64_t stride,
             std::uint64_t page, std::uint64_t count) {
            new (self) UniformPages{to_region_id(region), base, stride, page, count};
          },
          nb::arg("region"), nb::arg("base_bytes"), nb::arg("stride_bytes"), nb::arg("page_bytes"),
          nb::arg("count"),
          nb::sig("def __init__(self, region: Region | Memory | int, base_bytes: int, stride_bytes: int, "
                  "page_bytes: int, count: int) -> None"),
          "Units: bytes from the region's start; a stride_bytes of 0 means page_bytes.")
      .def_prop_ro(
          "region", [](const UniformPages& self) { return self.region.value; }, "The region's id.")
      .def_ro("base_bytes", &UniformPages::base_bytes, "Where page 0 begins.")
      .def_ro("stride_bytes", &UniformPages::stride_bytes,
              "From one page's begin to the next one's; 0: page_bytes.")
      .def_ro("page_bytes", &UniformPages::page_bytes, "The length of each.")
      .def_ro("count", &UniformPages::count, "How many.")
      .def("__len__", [](const UniformPages& self) { return self.count; })
      .def(
          "__reduce__",
          [](nb::handle self) {
            const auto pages = nb::cast<UniformPages>(self);
            return nb::make_tuple(self.type(),
                                  nb::make_tuple(pages.region.value, pages.base_bytes, pages.stride_bytes,
                                                 pages.page_bytes, pages.count));
          },
          nb::sig("def __reduce__(self) -> tuple[type[UniformPages], tuple[int, int, int, int, int]]"))
      .def("__repr__", [](const UniformPages& self) {
        return nb::str("UniformPages(region={}, base_bytes={}, stride_bytes={}, page_bytes={}, count={})")
            .format(self.region.value, self.base_bytes, self.stride_bytes, self.page_bytes, self.count);
      });

  nb::class_<PageList>(module, "PageList",
                       "A prepared list, as Agent.prepare gives it. Immutable, shared by any number of "
                       "requests; it keeps nothing of\n"
                       "the arrays that it was made from.")
      .def_prop_ro("count", &PageList::count, "How many pages.")
      .def_prop_ro("bytes", &PageList::bytes, "The sum of their lengths.")
      .def_prop_ro(
          "peer", [](const PageList& self) { return to_str(self.peer()); },
          "Whose memory: the peer's name, or empty for our own.")
      .def("__len__", &PageList::count)
      .def("__repr__",
           [](const PageList& self) {
             return nb::str("PageList(count={}, bytes={}, peer={!r})")
                 .format(self.count(), self.bytes(), to_str(self.peer()));
           })
      .def("__reduce__",
           refuse_pickle("a PageList belongs to its agent: send the pages that it was made from"),
           nb::sig("def __reduce__(self) -> typing.NoReturn"));
}

}  // namespace headrace::python
