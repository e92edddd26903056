# SPDX-License-Identifier: Apache-2.0
"""Headrace under the names of other libraries, for programs that were written for them. Only this folder uses
these names."""
