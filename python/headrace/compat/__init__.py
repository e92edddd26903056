# SPDX-License-Identifier: Apache-2.0
"""Headrace under other libraries' names, for programs that were written for them. Nothing outside this folder
knows them."""
