// SPDX-License-Identifier: Apache-2.0
// The compiled part of {fmt}, once. Header-only, every file that formats a sentence took 10 s more to compile
// under the sanitizers; Debian's static library is not position independent.
#include <fmt/format-inl.h>

template auto fmt::detail::locale_ref::get<std::locale>() const -> std::locale;
template auto fmt::detail::thousands_sep_impl<char>(fmt::detail::locale_ref)
    -> fmt::detail::thousands_sep_result<char>;
template auto fmt::detail::thousands_sep_impl<wchar_t>(fmt::detail::locale_ref)
    -> fmt::detail::thousands_sep_result<wchar_t>;
template auto fmt::detail::decimal_point_impl<char>(fmt::detail::locale_ref) -> char;
template auto fmt::detail::decimal_point_impl<wchar_t>(fmt::detail::locale_ref) -> wchar_t;
template auto fmt::detail::dragonbox::to_decimal<float>(float) noexcept
    -> fmt::detail::dragonbox::decimal_fp<float>;
template auto fmt::detail::dragonbox::to_decimal<double>(double) noexcept
    -> fmt::detail::dragonbox::decimal_fp<double>;
